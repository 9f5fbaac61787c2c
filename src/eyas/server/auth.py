"""The outermost ASGI application: API keys, request ids and the access log.

request -> X-Request-Id (taken from the client or new) -> API key -> app -> response with X-Request-Id -> log line
"""

import hmac
import json
import re
import time
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eyas.engine.request import RequestOutput
from eyas.server.http_errors import ApiError
from eyas.tree.acceptance_length import acceptance_length

PUBLIC_PATHS = ("/health", "/ready")  # probes send no key
REQUEST_ID = re.compile(r"[!-~]{1,128}")
RECORD_KEY = "eyas.record"  # of the ASGI scope, through which the routes reach the access log record
TENANT_KEY = "eyas.tenant"  # of the ASGI scope: the number of the API key of the request; "" without keys


@dataclass
class AccessLogRecord:
    """One line of the access log, as JSON. It contains no text of prompts or outputs.

    `AuthMiddleware` creates it, and the route adds the fields about the outputs. Fields that are None are left out.

    Attributes:
        id: The request id, as in the header X-Request-Id.
        method: The HTTP method.
        path: The path of the URL.
        status: The HTTP status.
        duration_ms: The time from the request to the end of the response.
        prompt_tokens: The prompt tokens of the call.
        output_tokens: The output tokens of the call.
        ttft_ms: The time to the first token of the first output.
        tpot_ms: The time per output token, after the first token, of the first output.
        acceptance: The acceptance length of all outputs.
        finish: The finish reasons of the outputs, separated by commas.
        error: The type and the stack of an exception in the server.
        started_s: The start of the request by time.perf_counter; not logged.
    """

    id: str
    method: str
    path: str
    status: int | None = None
    duration_ms: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    acceptance: float | None = None
    finish: str | None = None
    error: str | None = None
    started_s: float = field(default_factory=time.perf_counter)

    def add_outputs(
        self, prompt_tokens: int, output_tokens: int, outputs: Sequence[RequestOutput], is_complete: bool
    ) -> None:
        """Adds the fields about the outputs of a call.

        Args:
            prompt_tokens: the prompt tokens of the call.
            output_tokens: the output tokens of the call.
            outputs: the finished outputs.
            is_complete: False if some outputs of the call were cancelled.
        """
        self.prompt_tokens, self.output_tokens = prompt_tokens, output_tokens
        reasons = {str(output.finish_reason) for output in outputs} | (set() if is_complete else {"cancelled"})
        self.finish = ",".join(sorted(reasons))
        if outputs and outputs[0].token_times_s:
            self.ttft_ms = outputs[0].ttft_s * 1000
            self.tpot_ms = None if outputs[0].tpot_s is None else outputs[0].tpot_s * 1000
        rounds = [output.rounds for output in outputs if output.accepted]
        self.acceptance = acceptance_length(rounds) if rounds else None

    def to_line(self) -> str:
        """Returns the record as one line of JSON, without the keys that have no value."""
        self.duration_ms = (time.perf_counter() - self.started_s) * 1000
        values = {key: value for key, value in asdict(self).items() if value is not None and key != "started_s"}
        rounded = {key: round(value, 3) if isinstance(value, float) else value for key, value in values.items()}
        return json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **rounded})


class AuthMiddleware:
    """ASGI middleware that checks the API key of each request, assigns its id and writes its line of the access log.

    Args:
        app: the ASGI application behind this middleware.
        keys: the valid API keys. If there are none, requests need no key.
        log: receives the record of each response.
        public_paths: paths that need no key, besides PUBLIC_PATHS.
        path_keys: the key that a path needs, besides the API keys, which open it too.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Sequence[str],
        log: Callable[[AccessLogRecord], None],
        public_paths: Sequence[str],
        path_keys: Mapping[str, str],
    ) -> None:
        self.app = app
        self.public_paths = (*PUBLIC_PATHS, *public_paths)
        self.keys = [key.encode() for key in keys]
        self.path_keys = {path: key.encode() for path, key in path_keys.items()}
        self.log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one ASGI connection: checks the key, calls the application and logs one line."""
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
            path, authorization = scope["path"], headers.get("authorization", "")
            tenant = self._tenant(path, authorization)
            if path in self.public_paths or tenant is not None:
                await self.app({**scope, RECORD_KEY: record, TENANT_KEY: tenant or ""}, receive, send_with_id)
            else:
                text = "The request has no valid API key. Send the header Authorization: Bearer KEY."
                refusal = ApiError(401, text, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
                await refusal.response()(scope, receive, send_with_id)
        except Exception as error:
            # The type and the stack, but not the message: it may contain text of the client.
            record.error = f"{type(error).__name__}\n{''.join(traceback.format_tb(error.__traceback__))}"
            if record.status is None:
                raise
        finally:
            self.log(record)

    def _tenant(self, path: str, authorization: str) -> str | None:
        """Returns the number of the header's key, "" if no key is needed, or None without a valid key.

        Compares in constant time.
        """
        keys = [*self.keys, *([self.path_keys[path]] if path in self.path_keys else [])]
        if not keys:
            return ""
        scheme, _, token = authorization.partition(" ")
        given = token.strip().encode("latin-1")  # the bytes of the header
        matches = [hmac.compare_digest(given, key) for key in keys]
        return str(matches.index(True)) if any(matches) and scheme.lower() == "bearer" else None
