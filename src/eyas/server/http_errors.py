"""Every refusal in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.

The message says what was found, what was expected and what to do, like every other error for users.
"""

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from eyas.base.errors import EyasError
from eyas.engine.async_engine import Draining, QueueFull
from eyas.server.openai_responses import ErrorBody, ErrorResponse

MAX_VALUE_CHARS = 60  # characters of a wrong value that a message repeats
INVALID_REQUEST = "invalid_request_error"
RETRY_AFTER_S = "1"  # a slot frees up within about an answer's length; clients back off further by themselves


class ApiError(HTTPException):
    """An answer with an error status. FastAPI passes an HTTPException on where it would hide another exception."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.body = ErrorResponse(error=ErrorBody(message=message, type=kind, param=param, code=code))

    def response(self) -> Response:
        """The HTTP response."""
        content = self.body.model_dump_json()
        return Response(content, self.status_code, self.headers, "application/json")


def bad_request(found: str, expected: str, do: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """Status 400: a request that is not as it should be."""
    return ApiError(400, str(EyasError(found, expected, do)), param=param, code=code)


def to_api_error(error: EyasError, param: str | None = None) -> ApiError:
    """What the engine or the chat template refuses: 429 for a full queue, 503 while draining, else 400."""
    if isinstance(error, QueueFull):
        headers = {"Retry-After": RETRY_AFTER_S}
        return ApiError(429, str(error), kind="rate_limit_error", code="queue_full", headers=headers)
    if isinstance(error, Draining):
        return shutting_down_error()
    return ApiError(400, str(error), param=param)


def shutting_down_error() -> ApiError:
    """Status 503: this server takes no more work."""
    message = str(EyasError("a server that shuts down", "one that goes on", "send the request to another one"))
    return ApiError(503, message, kind="server_error", code="draining", headers={"Retry-After": RETRY_AFTER_S})


def internal_error() -> ApiError:
    """Status 500: our own mistake; the reason is not the client's business."""
    message = str(EyasError("a server that failed", "an answer", "read the server's log, at this X-Request-Id"))
    return ApiError(500, message, kind="server_error", code="internal_error")


def to_validation_error(errors: Sequence[Mapping[str, Any]], body: Any, known: Iterable[str]) -> ApiError:
    """The first wrong parameter of a body, with everything that it may be. known: the parameters that there are."""
    places = [_parameter_path(error, body) for error in errors]
    first, place = errors[0], places[0]
    param = ".".join(place) or None
    if first["type"] == "extra_forbidden":
        return _unknown_parameter(place, known)
    if first["type"] == "missing":
        return bad_request(
            f"no {param or 'JSON body'}", "it to be there", "add it", param=param, code="missing_parameter"
        )
    # A union gives one error for each of its branches, all about the same parameter.
    expected = [_requirement(error) for error, other in zip(errors, places, strict=True) if other[:1] == place[:1]]
    found = f"{param or 'a body'} = {_format_value(first['input'])}"
    return bad_request(found, " or ".join(dict.fromkeys(expected)), "correct it", param=param, code="invalid_value")


def install_error_handlers(app: FastAPI, request_models: Mapping[str, type[BaseModel]]) -> None:
    """Have every error of the framework answered in OpenAI's shape. bodies: what each path takes."""

    async def on_validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return to_validation_error(error.errors(), error.body, request_models[request.url.path].model_fields).response()

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if isinstance(error, ApiError):
            return error.response()
        return _framework_error(request, error).response()

    async def on_failure(request: Request, error: Exception) -> Response:
        return internal_error().response()

    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_failure)


def _framework_error(request: Request, error: HTTPException) -> ApiError:
    """Errors of the framework itself: an unknown path, another method, a body that cannot be read."""
    found = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return ApiError(404, str(EyasError(found, "a path of this API", "read /openapi.json")), code="unknown_url")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        message = str(EyasError(found, allowed, "read /openapi.json"))
        return ApiError(405, message, code="method_not_allowed", headers=error.headers)
    kind = INVALID_REQUEST if error.status_code < 500 else "server_error"
    code = HTTPStatus(error.status_code).name.lower()
    return ApiError(error.status_code, error.detail, kind=kind, code=code, headers=error.headers)


def _unknown_parameter(place: Sequence[str], known: Iterable[str]) -> ApiError:
    """An unknown parameter, with those of a similar name."""
    param, expected = ".".join(place), "the keys that /openapi.json lists"
    if len(place) == 1:
        names = list(known)
        expected = f"one of {', '.join(difflib.get_close_matches(param, names) or names)}"
    found = f"the unknown parameter {_format_value(param)}"
    return bad_request(found, expected, "correct or drop it", param=param, code="unknown_parameter")


def _parameter_path(error: Mapping[str, Any], body: Any) -> tuple[str, ...]:
    """Where in the body: ("body", "messages", 0, "user", "content") without pydantic's own steps, here "user"."""
    parts, value = [], body
    for part in error["loc"][1:]:
        is_there = part in value if isinstance(value, dict) else isinstance(value, list) and isinstance(part, int)
        if is_there:
            value = value[part]
        if is_there or (error["type"] == "missing" and part == error["loc"][-1]):
            parts.append(str(part))
    return tuple(parts)


def _requirement(error: Mapping[str, Any]) -> str:
    """What pydantic asks for, as the end of "expected ..."."""
    if error["type"] in ("model_type", "model_attributes_type"):
        return "a JSON object"
    if error["type"] == "union_tag_invalid":
        return f"{error['ctx']['discriminator']} to be one of {error['ctx']['expected_tags']}"
    if error["type"] == "missing":
        return f"an object with {error['loc'][-1]}"
    message: str = error["msg"]
    message = message.removeprefix("Value error, ").removeprefix("Input should be ")
    return message[:1].lower() + message[1:]


def _format_value(value: Any) -> str:
    """A wrong value, if it is short; else only what it is."""
    text = json.dumps(value, default=repr)
    if len(text) <= MAX_VALUE_CHARS:
        return text
    kinds = {str: "a long string", list: "a long list", dict: "a large object", int: "a very large number"}
    return kinds.get(type(value), "a long value")
