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
from eyas.server.http_errors import ApiError, failed, from_eyas, shutting_down

Result = TypeVar("Result")

GONE = 499  # nginx's status for a client that left; only the log sees it


@dataclass(frozen=True)
class Part:
    """The tokens of a piece one by one: text, and whether it was drafted. tree: of the round."""

    texts: tuple[str, ...]
    drafted: tuple[bool, ...]
    tree: DraftTree | None


@dataclass(frozen=True)
class Piece:
    """What one round added to the answer of request `index`; finish with its last piece.

    cached: how much of the prompt was found in memory. part: if the request wants rounds.
    """

    index: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...]
    cached: int
    finish: FinishReason | None
    part: Part | None = None


class Call:
    """The requests of one HTTP call; whoever submits it cancels it at the end, whatever the end was."""

    def __init__(self, service: AsyncEngine, requests: Sequence[Request]) -> None:
        self.service = service
        self.requests = requests
        self._answers: list[RequestOutput | None] = [None] * len(requests)  # an answer is here once it is finished
        self._pieces: asyncio.Queue[tuple[Piece, RequestOutput]] = asyncio.Queue()
        self._submitted = 0
        self._loop = asyncio.get_running_loop()

    @property
    def done(self) -> list[RequestOutput]:
        """The finished answers, in order."""
        return [answer for _, answer in self.placed]

    @property
    def placed(self) -> list[tuple[int, RequestOutput]]:
        """The finished answers with their places among all."""
        return [(place, answer) for place, answer in enumerate(self._answers) if answer is not None]

    def submit(self) -> None:
        """Hand all requests in, or none. ApiError."""
        for index, request in enumerate(self.requests):
            try:
                self.service.submit(request, self._receiver(index))
            except EyasError as error:
                self.cancel()
                raise from_eyas(error) from None
            self._submitted += 1

    def cancel(self) -> None:
        """End what is not finished."""
        for request, answer in zip(self.requests[: self._submitted], self._answers, strict=False):
            if answer is None:
                self.service.cancel(request.id)

    async def pieces(self) -> AsyncIterator[Piece]:
        """Everything, as it comes, until all answers are finished. ApiError if the server stops before."""
        while any(answer is None for answer in self._answers):
            piece, answer = await self._pieces.get()
            if piece.finish == "cancelled":
                raise shutting_down()
            if piece.finish == "error":
                raise failed()
            if piece.finish is not None:
                self._answers[piece.index] = answer
            yield piece

    async def finished(self, add: Callable[[Piece], None]) -> list[RequestOutput]:
        """All answers, finished; `add` sees each piece. ApiError as above."""
        async for piece in self.pieces():
            add(piece)
        return self.done

    def _receiver(self, index: int) -> Callable[[RequestOutput, int], None]:
        """Runs on the engine's thread, which goes on changing the answer: what is new is copied here."""
        num_tokens = num_chars = 0

        def receive(answer: RequestOutput, _: int) -> None:
            nonlocal num_tokens, num_chars
            tokens, logprobs = tuple(answer.token_ids[num_tokens:]), tuple(answer.logprobs[num_tokens:])
            part = _part(answer, num_tokens, num_chars) if answer.request.wants_rounds else None
            piece = Piece(
                index, tokens, answer.text[num_chars:], logprobs, answer.num_cached_tokens, answer.finish_reason, part
            )
            num_tokens, num_chars = num_tokens + len(tokens), len(answer.text)
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended, nobody waits
                self._loop.call_soon_threadsafe(self._pieces.put_nowait, (piece, answer))

        return receive


def _part(answer: RequestOutput, num_tokens: int, num_chars: int) -> Part:
    """What is new behind so many tokens and characters. What the end of the answer released is the last token's."""
    ends = [num_chars, *answer.text_ends[num_tokens:-1], len(answer.text)]
    texts = tuple(answer.text[begin:end] for begin, end in pairwise(ends))
    return Part(texts, tuple(answer.is_draft[num_tokens:]), answer.draft_tree)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of the work; if the client leaves first, the work is cancelled and ApiError raised."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_leaves(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ApiError(GONE, "the client left", code="client_left")
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.wait({working, leaving})  # cancelled work has ended when this returns


async def _leaves(receive: Receive) -> None:
    """Return when the client has closed the connection; the body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
