"""Server-sent events: `data: {...}` for each piece, the usage if wanted, `data: [DONE]`."""

from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from eyas.server.generation import Generation, cancel_on_disconnect
from eyas.server.http_errors import ApiError
from eyas.server.openai_requests import StreamOptions
from eyas.server.openai_responses import ResponseMetrics, ResponseModel
from eyas.server.response_builder import ResponseBuilder
from eyas.server.usage import UsageCounter

DONE_EVENT = b"data: [DONE]\n\n"


class EventStreamResponse(Response):
    """Sends events as they come. The client leaving ends `events` and runs `at_end`, like the last event does."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], on_close: Callable[[], None]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.events = events
        self.on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await cancel_on_disconnect(receive, self._send_all(send))
        except ApiError:
            pass  # the client left: there is nobody to tell
        finally:
            self.on_close()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for event in self.events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def stream_events(
    call: Generation,
    form: ResponseBuilder,
    tally: UsageCounter,
    options: StreamOptions,
    metrics: Callable[[], ResponseMetrics | None],
) -> AsyncIterator[bytes]:
    """The events of a call. A shutdown before its end is told as an event, as vLLM does."""
    extra: dict[str, Any] = {"usage": None} if options.include_usage else {}
    try:
        async for piece in call.deltas():
            tally.add(piece)
            request = call.requests[piece.index]
            if options.continuous_usage_stats:
                extra = {"usage": tally.usage}
            says_something = piece.text or piece.finish is not None or extra.get("usage") is not None
            if says_something or form.header.wants_token_ids or piece.logprobs or piece.round is not None:
                yield _to_event(form.build_chunk(piece, request, extra))
        if options.include_usage:
            yield _to_event(form.build_usage_chunk({"usage": tally.usage, "metrics": metrics()}))
    except ApiError as error:
        yield _to_event(error.body)
    yield DONE_EVENT


def _to_event(reply: ResponseModel) -> bytes:
    return b"data: " + reply.json_bytes() + b"\n\n"
