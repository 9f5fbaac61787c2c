"""One HTTP call as requests of the engine: from the engine's thread to the server's event loop and back.

event loop          submit --------+                      pieces <- queue <- loop.call_soon_threadsafe
engine's thread                    +-> round -> on_tokens(answer, count) ------------^
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from starlette.types import Receive

from eyas.base.errors import EyasError
from eyas.engine.async_engine import AsyncEngine
from eyas.engine.request import DraftTree, FinishReason, Request, RequestOutput, TokenLogprob
from eyas.server.http_errors import ApiError, internal_error, shutting_down_error, to_api_error

Result = TypeVar("Result")

CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that left; only the log sees it


@dataclass(frozen=True)
class RoundTokens:
    """The tokens of a piece one by one: text, and whether it was drafted. tree: of the round."""

    texts: tuple[str, ...]
    drafted: tuple[bool, ...]
    tree: DraftTree | None


@dataclass(frozen=True)
class OutputDelta:
    """What one round added to the answer of request `index`; finish with its last piece.

    cached: how much of the prompt was found in memory. part: if the request wants rounds.
    """

    index: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...]
    num_cached_tokens: int
    finish: FinishReason | None
    round: RoundTokens | None = None


class Generation:
    """The requests of one HTTP call; whoever submits it cancels it at the end, whatever the end was."""

    def __init__(self, async_engine: AsyncEngine, requests: Sequence[Request]) -> None:
        self.async_engine = async_engine
        self.requests = requests
        self._outputs: list[RequestOutput | None] = [None] * len(requests)  # an answer is here once it is finished
        self._deltas: asyncio.Queue[tuple[OutputDelta, RequestOutput]] = asyncio.Queue()
        self._num_submitted = 0
        self._loop = asyncio.get_running_loop()

    @property
    def outputs(self) -> list[RequestOutput]:
        """The finished answers, in order."""
        return [answer for _, answer in self.indexed_outputs]

    @property
    def indexed_outputs(self) -> list[tuple[int, RequestOutput]]:
        """The finished answers with their places among all."""
        return [(place, answer) for place, answer in enumerate(self._outputs) if answer is not None]

    def submit(self) -> None:
        """Hand all requests in, or none. ApiError."""
        for index, request in enumerate(self.requests):
            try:
                self.async_engine.submit(request, self._on_tokens(index))
            except EyasError as error:
                self.cancel()
                raise to_api_error(error) from None
            self._num_submitted += 1

    def cancel(self) -> None:
        """End what is not finished."""
        for request, answer in zip(self.requests[: self._num_submitted], self._outputs, strict=False):
            if answer is None:
                self.async_engine.cancel(request.id)

    async def deltas(self) -> AsyncIterator[OutputDelta]:
        """Everything, as it comes, until all answers are finished. ApiError if the server stops before."""
        while any(answer is None for answer in self._outputs):
            piece, answer = await self._deltas.get()
            if piece.finish == "cancelled":
                raise shutting_down_error()
            if piece.finish == "error":
                raise internal_error()
            if piece.finish is not None:
                self._outputs[piece.index] = answer
            yield piece

    async def collect(self, on_delta: Callable[[OutputDelta], None]) -> list[RequestOutput]:
        """All answers, finished; `add` sees each piece. ApiError as above."""
        async for piece in self.deltas():
            on_delta(piece)
        return self.outputs

    def _on_tokens(self, index: int) -> Callable[[RequestOutput, int], None]:
        """Runs on the engine's thread, which goes on changing the answer: what is new is copied here."""
        num_tokens = num_chars = 0

        def receive(answer: RequestOutput, _: int) -> None:
            nonlocal num_tokens, num_chars
            tokens, logprobs = tuple(answer.token_ids[num_tokens:]), tuple(answer.logprobs[num_tokens:])
            part = _round_tokens(answer, num_tokens, num_chars) if answer.request.wants_rounds else None
            piece = OutputDelta(
                index, tokens, answer.text[num_chars:], logprobs, answer.num_cached_tokens, answer.finish_reason, part
            )
            num_tokens, num_chars = num_tokens + len(tokens), len(answer.text)
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended, nobody waits
                self._loop.call_soon_threadsafe(self._deltas.put_nowait, (piece, answer))

        return receive


def _round_tokens(answer: RequestOutput, num_tokens: int, num_chars: int) -> RoundTokens:
    """What is new behind so many tokens and characters. What the end of the answer released is the last token's."""
    ends = [num_chars, *answer.text_ends[num_tokens:-1], len(answer.text)]
    texts = tuple(answer.text[begin:end] for begin, end in pairwise(ends))
    return RoundTokens(texts, tuple(answer.is_draft[num_tokens:]), answer.draft_tree)


async def cancel_on_disconnect(receive: Receive, coroutine: Coroutine[Any, Any, Result]) -> Result:
    """The result of the work; if the client leaves first, the work is cancelled and ApiError raised."""
    working, leaving = asyncio.ensure_future(coroutine), asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ApiError(CLIENT_CLOSED_REQUEST, "the client left", code="client_left")
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.wait({working, leaving})  # cancelled work has ended when this returns


async def _wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has closed the connection; the body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
