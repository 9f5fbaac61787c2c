"""Server-sent events: `data: {...}` for each piece, the usage if wanted, `data: [DONE]`."""

from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from eyas.server.generation import Call, unless_gone
from eyas.server.http_errors import ApiError
from eyas.server.openai_requests import StreamOptions
from eyas.server.openai_responses import Metrics, Reply
from eyas.server.response_builder import Form
from eyas.server.usage import Tally

DONE = b"data: [DONE]\n\n"


class EventStream(Response):
    """Sends events as they come. The client leaving ends `events` and runs `at_end`, like the last event does."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], at_end: Callable[[], None]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.events = events
        self.at_end = at_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send_all(send))
        except ApiError:
            pass  # the client left: there is nobody to tell
        finally:
            self.at_end()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for event in self.events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def events(
    call: Call, form: Form, tally: Tally, options: StreamOptions, metrics: Callable[[], Metrics | None]
) -> AsyncIterator[bytes]:
    """The events of a call. A shutdown before its end is told as an event, as vLLM does."""
    extra: dict[str, Any] = {"usage": None} if options.include_usage else {}
    try:
        async for piece in call.pieces():
            tally.add(piece)
            request = call.requests[piece.index]
            if options.continuous_usage_stats:
                extra = {"usage": tally.usage}
            says_something = piece.text or piece.finish is not None or extra.get("usage") is not None
            if says_something or form.envelope.wants_ids or piece.logprobs or piece.part is not None:
                yield _event(form.piece(piece, request, extra))
        if options.include_usage:
            yield _event(form.last({"usage": tally.usage, "metrics": metrics()}))
    except ApiError as error:
        yield _event(error.body)
    yield DONE


def _event(reply: Reply) -> bytes:
    return b"data: " + reply.json_bytes() + b"\n\n"
