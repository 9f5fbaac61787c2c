"""Submits the engine requests of one HTTP call to the engine's thread, and returns their tokens to the event loop.

    event loop         submit ------+                       deltas <- queue <- loop.call_soon_threadsafe
    engine's thread                 +-> round -> on_tokens(output, count) -------------^

The engine's RequestOutput becomes an OutputDelta for each round, and then a response of `openai_responses`.
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
from eyas.server.http_errors import ApiError, bad_request, internal_error, shutting_down, to_api_error
from eyas.server.openai_responses import PromptDetails, Usage

Result = TypeVar("Result")

CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that disconnected; it appears in the log only


@dataclass(frozen=True)
class OutputDelta:
    """The tokens that one round added to the output of one request.

    Attributes:
        index: The number of the request in the HTTP call.
        token_ids: The new tokens.
        text: The new text.
        logprobs: The log-probabilities of the new tokens, if the request wants them.
        num_cached_tokens: The prompt tokens that were found in the prefix cache.
        finish_reason: The finish reason in the last delta of a request; None before.
        time_s: The time of the newest token, in seconds since the request was submitted.
        token_texts: The text of each new token; None unless `Request.wants_rounds` is True.
        is_draft: For each new token, True if it was an accepted draft token.
        is_copy: For each new token, True if a copy of earlier text also proposed it.
        draft_tree: The draft tree of the round; None unless `Request.wants_rounds` is True.
    """

    index: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...]
    num_cached_tokens: int
    finish_reason: FinishReason | None
    time_s: float = 0.0
    token_texts: tuple[str, ...] | None = None
    is_draft: tuple[bool, ...] = ()
    is_copy: tuple[bool, ...] = ()
    draft_tree: DraftTree | None = None


class Generation:
    """The engine requests of one HTTP call. Requirement: after `submit`, the caller calls `cancel` at the end.

    Args:
        async_engine: the engine.
        requests: the requests of the first prompt, then those of the second prompt, and so on.
        num_choices: the number of requests for each prompt.
        observe_tokens: receives the time of the tokens before (None for the first) and the time of new tokens.

    Attributes:
        outputs: The finished output of each request; None while it runs.
        last_times_s: The time of the newest token of each request; None before the first.
    """

    def __init__(
        self,
        async_engine: AsyncEngine,
        requests: Sequence[Request],
        num_choices: int = 1,
        observe_tokens: Callable[[float | None, float], None] = lambda previous_s, now_s: None,
    ) -> None:
        self.async_engine = async_engine
        self.requests = requests
        self.outputs: list[RequestOutput | None] = [None] * len(requests)
        self.last_times_s: list[float | None] = [None] * len(requests)
        self.num_choices = num_choices
        self._observe_tokens = observe_tokens
        self._num_output_tokens = 0
        self._num_cached_tokens = [0] * len(requests)
        self._deltas: asyncio.Queue[tuple[OutputDelta, RequestOutput]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    @property
    def finished_outputs(self) -> list[RequestOutput]:
        """The outputs that have finished, in the order of the requests."""
        return [output for output in self.outputs if output is not None]

    @property
    def usage(self) -> Usage:
        """The token counts of all deltas that `deltas` has yielded so far.

        A prompt is counted once. Only its first choice counts cached tokens: the others reuse its prompt.
        """
        prompt = sum(len(request.prompt_ids) for request in self.requests[:: self.num_choices])
        details = PromptDetails(cached_tokens=sum(self._num_cached_tokens[:: self.num_choices]))
        output, total = self._num_output_tokens, prompt + self._num_output_tokens
        return Usage(prompt_tokens=prompt, completion_tokens=output, total_tokens=total, prompt_tokens_details=details)

    def submit(self) -> None:
        """Submits all requests. Raises ApiError, and cancels those already submitted, if one is refused."""
        self._check_size()
        for index, request in enumerate(self.requests):
            if request.max_tokens == 0:
                output = RequestOutput(request, finish_reason="length")
                self._deltas.put_nowait((OutputDelta(index, (), "", (), 0, "length"), output))
                continue
            try:
                self.async_engine.submit(request, self._on_tokens(index))
            except EyasError as error:
                self.cancel()
                raise to_api_error(error) from None

    def cancel(self) -> None:
        """Cancels the submitted requests that have not finished."""
        for request, output in zip(self.requests, self.outputs, strict=True):
            if output is None:
                self.async_engine.cancel(request.id)

    async def deltas(self) -> AsyncIterator[OutputDelta]:
        """Yields the deltas of all requests until they have finished. Raises ApiError if the server stops or fails."""
        while any(output is None for output in self.outputs):
            delta, output = await self._deltas.get()
            if delta.token_ids:
                self._observe_tokens(self.last_times_s[delta.index], delta.time_s)
                self.last_times_s[delta.index] = delta.time_s
            if delta.finish_reason == "cancelled":
                raise shutting_down()
            if delta.finish_reason == "error":
                raise internal_error()
            if delta.finish_reason is not None:
                self.outputs[delta.index] = output
            self._num_output_tokens += len(delta.token_ids)
            self._num_cached_tokens[delta.index] = delta.num_cached_tokens
            yield delta

    async def collect(self) -> list[RequestOutput]:
        """Waits until all requests have finished and returns their outputs. Raises ApiError if the server stops."""
        async for _ in self.deltas():
            pass
        return self.finished_outputs

    def _check_size(self) -> None:
        """Raises ApiError if the call has more requests than the server ever accepts."""
        num_requests, n = len(self.requests), self.num_choices
        slots, waiting = self.async_engine.engine.max_running, self.async_engine.max_waiting
        if num_requests > slots + waiting:
            needed = f"n={n} needs" if num_requests == n else f"{num_requests // n} prompts with n={n} need"
            limits = f"{slots + waiting} (--slots {slots} + --max-waiting {waiting})"
            text = f"{needed} {num_requests} sequences, but this server runs at most {limits}. Lower n."
            raise bad_request(text, param="n", code="too_many_choices")

    def _on_tokens(self, index: int) -> Callable[[RequestOutput, int], None]:
        """Returns the on_tokens callback of one request. It runs on the engine's thread and copies the new tokens.

        The engine's thread changes the output while it runs. So the event loop reads only the copies until the end.
        """
        num_tokens = num_chars = 0

        def on_tokens(output: RequestOutput, _: int) -> None:
            nonlocal num_tokens, num_chars
            token_ids = tuple(output.token_ids[num_tokens:])
            delta = OutputDelta(
                index,
                token_ids,
                output.text[num_chars:],
                tuple(output.logprobs[num_tokens:]),
                output.num_cached_tokens,
                output.finish_reason,
                output.token_times_s[-1] if output.token_times_s else 0.0,
                _token_texts(output, num_tokens, num_chars) if output.request.wants_rounds else None,
                tuple(output.is_draft[num_tokens:]),
                tuple(output.is_copy[num_tokens:]),
                output.draft_tree,
            )
            num_tokens, num_chars = num_tokens + len(token_ids), len(output.text)
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
                self._loop.call_soon_threadsafe(self._deltas.put_nowait, (delta, output))

        return on_tokens


def _token_texts(output: RequestOutput, num_tokens: int, num_chars: int) -> tuple[str, ...]:
    """Returns the text of each new token. The last token also gets text that was held back for a stop string."""
    ends = [num_chars, *output.text_ends[num_tokens:-1], len(output.text)]
    return tuple(output.text[begin:end] for begin, end in pairwise(ends))


async def cancel_on_disconnect(receive: Receive, coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Returns the result of the coroutine. If the client disconnects first, cancels it and raises ApiError 499."""
    working, leaving = asyncio.ensure_future(coroutine), asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ApiError(CLIENT_CLOSED_REQUEST, "The client closed the connection.", code="client_left")
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.wait({working, leaving})  # a cancelled task has ended when this returns


async def _wait_for_disconnect(receive: Receive) -> None:
    """Waits until the client has closed the connection. Requirement: the body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
