"""What every request passes on its way in and out: an id, the keys, a line in the log."""

import hmac
import re
import traceback
import uuid
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eyas.base.errors import EyasError
from eyas.server.access_log import AccessLogRecord
from eyas.server.http_errors import ApiError

PUBLIC_PATHS = ("/health", "/ready")  # probes carry no key
REQUEST_ID = re.compile(r"[!-~]{1,128}")
RECORD_KEY = "eyas.record"  # where the endpoint finds the record, in the ASGI scope


class AuthMiddleware:
    """The outermost ASGI application. write takes the lines of the log. open_paths: further ones that need no key."""

    def __init__(
        self, app: ASGIApp, keys: Sequence[str], log: Callable[[str], None], public_paths: Sequence[str] = ()
    ) -> None:
        self.app = app
        self.public_paths = (*PUBLIC_PATHS, *public_paths)
        self.keys = [key.encode() for key in keys]
        self.log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        record = AccessLogRecord(request_id, scope["method"], scope["path"])

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        try:
            if scope["path"] in self.public_paths or self._is_authorized(headers.get("authorization", "")):
                await self.app({**scope, RECORD_KEY: record}, receive, send_with_id)
            else:
                await _invalid_key().response()(scope, receive, send_with_id)
        except Exception as error:
            # The type and the place, not the message: that may hold what the client said.
            record.error = f"{type(error).__name__}\n{''.join(traceback.format_tb(error.__traceback__))}"
            if record.status is None:
                raise
        finally:
            self.log(record.to_line())

    def _is_authorized(self, authorization: str) -> bool:
        """Whether there are no keys, or one of them was given. Takes as long for a wrong key as for a right one."""
        if not self.keys:
            return True
        scheme, _, token = authorization.partition(" ")
        given = token.strip().encode("latin-1")  # as the bytes came in
        matches = [hmac.compare_digest(given, key) for key in self.keys]
        return any(matches) and scheme.lower() == "bearer"


def _invalid_key() -> ApiError:
    message = EyasError("no valid API key", "a key of this server", "send Authorization: Bearer KEY")
    return ApiError(401, str(message), code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
