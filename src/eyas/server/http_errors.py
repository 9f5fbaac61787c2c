"""HTTP errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.

Every message says what is wrong and, where something helps, what to do. It never contains text of pydantic or jinja.
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from eyas.base.errors import EyasError
from eyas.base.json_parser import describe_requirement
from eyas.engine.async_engine import Draining, QueueFull
from eyas.server.openai_responses import ErrorBody, ErrorResponse

MAX_VALUE_CHARS = 60  # a message quotes a wrong value up to this length
INVALID_REQUEST = "invalid_request_error"
RETRY_AFTER_S = "1"  # a slot frees up within about the time of one response; clients back off further by themselves


class ApiError(HTTPException):
    """An error response. A route raises it, and the error handlers send it in OpenAI's shape."""

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
        """Returns the HTTP response."""
        return Response(self.body.model_dump_json(), self.status_code, self.headers, "application/json")


def bad_request(message: str, *, param: str | None = None, code: str = "unsupported_value") -> ApiError:
    """Builds an error with status 400."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, code: str) -> ApiError:
    """Builds an error with status 503. The client may retry."""
    return ApiError(503, message, kind="server_error", code=code, headers={"Retry-After": RETRY_AFTER_S})


def shutting_down() -> ApiError:
    """Builds the error of a request that arrives, or still runs, while the server drains."""
    return unavailable("The server is shutting down. Retry on another replica.", "draining")


def internal_error() -> ApiError:
    """Builds an error with status 500. The reason goes to the log, not to the client."""
    message = "The server failed. Its log has the reason, at the X-Request-Id of this response."
    return ApiError(500, message, kind="server_error", code="internal_error")


def to_api_error(error: EyasError, param: str | None = None) -> ApiError:
    """Converts an error of the engine or the chat template: 429 for a full queue, 503 while draining, else 400."""
    if isinstance(error, QueueFull):
        headers = {"Retry-After": RETRY_AFTER_S}
        return ApiError(429, str(error), kind="rate_limit_error", code="queue_full", headers=headers)
    if isinstance(error, Draining):
        return shutting_down()
    return bad_request(str(error), param=param)


def to_validation_error(
    errors: Sequence[Mapping[str, Any]], body: Any, model: type[BaseModel], depth: int = 0
) -> ApiError:
    """Converts the first of pydantic's validation errors to an error response.

    Args:
        errors: pydantic's errors. Requirement: each location starts with "body".
        body: the JSON value that the client sent.
        model: the model of the body, to suggest the nearest known name for a wrong one.
        depth: the number of parts of a path that lead to the model, if it is only a part of the body.
    """
    paths = [_parameter_path(error, body) for error in errors]
    first, path = errors[0], paths[0]
    param = ".".join(path) or None
    if first["type"] == "extra_forbidden":
        schema = model.model_json_schema()
        known = _known_names(schema, path[depth:-1], schema.get("$defs", {}))
        near = difflib.get_close_matches(path[-1], sorted(known), n=1)
        fix = f"Did you mean {near[0]}?" if near else "GET /openapi.json lists all parameters."
        return bad_request(f"Unknown parameter {_format_value(param)}. {fix}", param=param, code="unknown_parameter")
    if first["type"] == "missing":
        missing = f"The parameter {param} is missing. Add it to the request body."
        text = missing if param else "The request body is empty. Send a JSON object."
        return bad_request(text, param=param, code="missing_parameter")
    if first["type"] == "value_error":  # raised by our own validators, with a whole sentence
        return bad_request(str(first["ctx"]["error"]), param=param)
    if first["type"] == "unknown_tool":
        return bad_request(first["msg"], param=param, code="unknown_tool")
    # A union gives one error for each of its branches, all about the same parameter.
    wanted = [describe_requirement(error) for error, other in zip(errors, paths, strict=True) if other[:1] == path[:1]]
    text = f"{param or 'The request body'} is {_format_value(first['input'])}, but must be "
    return bad_request(f"{text}{' or '.join(dict.fromkeys(wanted))}.", param=param, code="invalid_value")


def install_error_handlers(app: FastAPI, request_models: Mapping[str, type[BaseModel]]) -> None:
    """Adds exception handlers to the app, so that every error response has OpenAI's shape.

    Args:
        app: the FastAPI app.
        request_models: for each path, the pydantic model of its request body.
    """

    async def on_validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return to_validation_error(error.errors(), error.body, request_models[request.url.path]).response()

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return (error if isinstance(error, ApiError) else _framework_error(request, error)).response()

    async def on_failure(request: Request, error: Exception) -> Response:
        return internal_error().response()

    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_failure)


def _framework_error(request: Request, error: HTTPException) -> ApiError:
    """Converts an error that Starlette raised, for example for an unknown path or a wrong method."""
    called, status = f"{request.method} {request.url.path}", HTTPStatus(error.status_code)
    code, text = status.name.lower(), f"{called} failed: {status.phrase}."
    if status == HTTPStatus.NOT_FOUND:
        code, text = "unknown_url", f"{called} does not exist. GET /openapi.json lists all paths."
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        text = f"{called} does not exist. Use {(error.headers or {}).get('Allow', 'another method')}."
    kind = INVALID_REQUEST if status < 500 else "server_error"
    return ApiError(status, text, kind=kind, code=code, headers=error.headers)


def _known_names(schema: Mapping[str, Any], path: Sequence[str], definitions: Mapping[str, Any]) -> set[str]:
    """Returns the keys that the object at a path may have, in all alternatives of a schema.

    Args:
        schema: the schema of the value where the path starts.
        path: keys of objects and indices of lists, such as ("messages", "0").
        definitions: the schemas that `$ref` names.
    """
    schema = definitions.get(schema.get("$ref", "").rpartition("/")[2], schema)
    inner, parts = schema.get("properties", {}), (*schema.get("anyOf", ()), *schema.get("oneOf", ()))
    nested = inner.get(path[0], schema.get("items", {})) if path else {}
    names = _known_names(nested, path[1:], definitions) if path else set(inner)
    return names.union(*(_known_names(part, path, definitions) for part in parts))


def _parameter_path(error: Mapping[str, Any], body: Any) -> tuple[str, ...]:
    """Returns the path of a wrong parameter in the body, without the parts of pydantic's location that are not keys.

    ("body", "messages", 0, "user", "content") -> ("messages", "0", "content"). Here "user" is the tag of a union.
    """
    parts, value = [], body
    for part in error["loc"][1:]:
        is_key = part in value if isinstance(value, dict) else isinstance(value, list) and isinstance(part, int)
        if is_key:
            value = value[part]
        if is_key or (error["type"] == "missing" and part == error["loc"][-1]):
            parts.append(str(part))
    return tuple(parts)


def _format_value(value: Any) -> str:
    """Returns a value for an error message: as JSON if that is short, else its kind such as "a long string"."""
    text = json.dumps(value, default=repr)
    if len(text) <= MAX_VALUE_CHARS:
        return text
    kinds = {str: "a long string", list: "a long list", dict: "a large object", int: "a very large number"}
    return kinds.get(type(value), "a long value")
