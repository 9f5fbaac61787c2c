"""What a body may be: JSON by its type and by its content, and not too large."""

from collections.abc import Callable, Coroutine
from email.message import Message
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.responses import Response

from eyas.base.errors import EyasError
from eyas.server.http_errors import ApiError, bad_request

MAX_BODY_BYTES = 10 * 2**20  # what a dedicated endpoint of Vertex AI lets through


class JsonRequest(Request):
    """A request whose body is read no further than the limit, and parsed strictly."""

    async def body(self) -> bytes:
        """ApiError 413, as early as the length is known."""
        if not hasattr(self, "_body"):
            declared = self.headers.get("content-length", "0")
            size = int(declared) if declared.isdecimal() else 0
            chunks = []
            if size <= MAX_BODY_BYTES:
                size = 0
                async for chunk in self.stream():
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > MAX_BODY_BYTES:
                        break
            if size > MAX_BODY_BYTES:
                message = EyasError(
                    f"a body of {size} bytes or more", f"at most {MAX_BODY_BYTES}", "send less at a time"
                )
                raise ApiError(413, str(message), code="request_too_large")
            self._body = b"".join(chunks)
        return self._body

    async def json(self) -> Any:
        """No NaN, no half surrogate pairs, at most 200 levels deep. ApiError 400."""
        body = await self.body()
        try:
            return from_json(body, allow_inf_nan=False)
        except ValueError as error:
            raise bad_request(
                f"a body that is not JSON ({error})", "a JSON object", "mend it", code="invalid_json"
            ) from None


class JsonRoute(APIRoute):
    """A route whose body is read by `JsonRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's place to put in another class of requests."""
        inner = super().get_route_handler()

        async def handle(request: Request) -> Response:
            if self.body_field is not None:
                _require_json(request)
            return await inner(JsonRequest(request.scope, request.receive))

        return handle


def _require_json(request: Request) -> None:
    header = Message()
    header["content-type"] = request.headers.get("content-type", "")
    if header.get_content_type() != "application/json":
        message = EyasError("another content type", "application/json", "send Content-Type: application/json")
        raise ApiError(415, str(message), code="unsupported_media_type")
