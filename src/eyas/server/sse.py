"""Server-sent events: `data: {...}` for each chunk, a chunk with the usage if wanted, `data: [DONE]`."""

from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from eyas.server.generation import Generation, cancel_on_disconnect
from eyas.server.http_errors import ApiError
from eyas.server.openai_requests import StreamOptions
from eyas.server.openai_responses import ResponseModel
from eyas.server.response_builder import ResponseBuilder

DONE_EVENT = b"data: [DONE]\n\n"


class EventStreamResponse(Response):
    """A response that sends server-sent events while they are generated.

    Args:
        events: the events, as bytes. It is cancelled if the client disconnects.
        on_close: called once, after the last event or after the client has disconnected.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], on_close: Callable[[], None]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.events = events
        self.on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the response."""
        try:
            await cancel_on_disconnect(receive, self._send_all(send))
        except ApiError:
            pass  # the client has disconnected, so nothing can be sent
        finally:
            self.on_close()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for event in self.events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def stream_events(
    generation: Generation, builder: ResponseBuilder, options: StreamOptions | None
) -> AsyncIterator[bytes]:
    """Yields the events of a submitted generation. If the server stops before its end, sends the error as an event.

    Args:
        generation: the submitted requests of one call.
        builder: builds the chunks.
        options: the stream options of the body; None for the defaults.
    """
    options = options or StreamOptions()
    extra: dict[str, Any] = {"usage": None} if options.include_usage else {}
    try:
        async for delta in generation.deltas():
            if options.continuous_usage_stats:
                extra = {"usage": generation.usage}
            has_news = delta.text or delta.logprobs or delta.finish_reason is not None or delta.token_texts is not None
            if has_news or builder.wants_token_ids or extra.get("usage") is not None:
                for chunk in builder.build_chunks(delta, generation.requests[delta.index], extra):
                    yield _to_event(chunk)
        if options.include_usage:
            yield _to_event(builder.build_usage_chunk(generation.usage, generation.finished_outputs))
    except ApiError as error:
        yield _to_event(error.body)
    yield DONE_EVENT


def _to_event(message: ResponseModel) -> bytes:
    return b"data: " + message.json_bytes() + b"\n\n"
