"""Checks request bodies before they are validated: content type, size and JSON syntax. All routes use `JsonRoute`."""

import re
from collections.abc import Callable, Coroutine
from email.message import Message
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.responses import Response

from eyas.server.http_errors import ApiError, bad_request

MAX_BODY_BYTES = 10 * 2**20  # a dedicated endpoint of Vertex AI passes on this much
POSITION = re.compile(r"line (\d+) column (\d+)")  # in an error of pydantic_core.from_json


class JsonRequest(Request):
    """A request that stops reading its body at the size limit and parses it strictly."""

    async def body(self) -> bytes:
        """Reads the body. Raises ApiError 413 as soon as the body is known to be larger than MAX_BODY_BYTES."""
        if not hasattr(self, "_body"):
            body, declared = bytearray(), self.headers.get("content-length", "0")
            is_large = declared.isdecimal() and int(declared) > MAX_BODY_BYTES
            if not is_large:
                async for chunk in self.stream():
                    body += chunk
                    if is_large := len(body) > MAX_BODY_BYTES:
                        break
            if is_large:
                text = f"The request body is larger than {MAX_BODY_BYTES} bytes. Split it into several requests."
                raise ApiError(413, text, code="request_too_large")
            self._body = bytes(body)
        return self._body

    async def json(self) -> Any:
        """Parses the body. Raises ApiError 400 for invalid JSON, NaN, half a surrogate pair, or over 200 levels."""
        body = await self.body()
        try:
            return from_json(body, allow_inf_nan=False)
        except ValueError as error:
            found = POSITION.search(str(error))
            where = f" (line {found[1]}, column {found[2]})" if found else ""
            raise bad_request(f"The request body is not valid JSON{where}.", code="invalid_json") from None


class JsonRoute(APIRoute):
    """A route whose handler receives a `JsonRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns FastAPI's handler, wrapped so that it gets a JsonRequest (FastAPI documents this way to do it)."""
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
        text = "The content type is not JSON. Send the header Content-Type: application/json."
        raise ApiError(415, text, code="unsupported_media_type")
