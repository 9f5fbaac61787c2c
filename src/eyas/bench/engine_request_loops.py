"""The closed and the open request loop for an engine in this process. `http_request_loops.py` has them for HTTP."""

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eyas.bench.request_metrics import BlockResult, RequestSample, SpecDecodeStats
from eyas.bench.workload import Prompt
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, plain_loop
from eyas.engine.request import Request, RequestOutput


@dataclass(frozen=True)
class EngineBlock:
    """The answers of a block, and the block as an HTTP client would have measured it. Both in the order of requests.

    Times in the result are seconds after the block started. Those in an answer count from its admission.
    """

    answers: tuple[RequestOutput, ...]
    result: BlockResult


def run_closed_loop(engine: Engine, prompts: Sequence[Prompt], max_tokens: int) -> EngineBlock:
    """Runs as many streams as the engine has slots.

    A stream sends its next request when its answer finishes. The wait until the engine admits the request counts:

        stream   ...answer | sent ..waits.. added, prefill -> first token
    """
    engine.clear_prefix_cache()
    start_s = time.perf_counter()
    free_s = deque([0.0] * engine.max_running)  # when each idle stream finished its last answer
    sent_s: list[float] = []
    added_s: list[float] = []

    def requests() -> Iterator[Request]:
        for index, prompt in enumerate(prompts):
            sent_s.append(free_s.popleft())
            added_s.append(time.perf_counter() - start_s)
            yield Request(str(index), prompt.ids, max_tokens)

    answers = []
    for answer in plain_loop(engine, RequestList(requests())):
        free_s.append(time.perf_counter() - start_s)
        answers.append(answer)
    return _build_block(engine, answers, sent_s, added_s, time.perf_counter() - start_s)


def run_open_loop(
    engine: Engine, prompts: Sequence[Prompt], arrivals_s: Sequence[float], max_tokens: int
) -> EngineBlock:
    """Sends prompt i at arrivals_s[i]. A request that finds no free slot waits, and the wait counts."""
    engine.clear_prefix_cache()
    source = _TimedSource(prompts, arrivals_s, max_tokens)
    answers = list(plain_loop(engine, source))
    return _build_block(engine, answers, arrivals_s, source.added_s, time.perf_counter() - source.start_s)


class _TimedSource:
    """A source of requests (`engine.loops.Source`) that arrive at given times."""

    def __init__(self, prompts: Sequence[Prompt], arrivals_s: Sequence[float], max_tokens: int) -> None:
        self._pending = deque(zip(prompts, arrivals_s, strict=True))
        self._max_tokens = max_tokens
        self.added_s: list[float] = []
        self.start_s = time.perf_counter()

    def admit(self, engine: Engine, may_wait: bool) -> bool:
        while self._pending and engine.has_capacity:
            prompt, arrival_s = self._pending[0]
            early_s = arrival_s - (time.perf_counter() - self.start_s)
            if early_s > 0 and not may_wait:
                break
            time.sleep(max(early_s, 0.0))
            self._pending.popleft()
            engine.add(Request(str(len(self.added_s)), prompt.ids, self._max_tokens))
            self.added_s.append(time.perf_counter() - self.start_s)
            may_wait = False
        return bool(self._pending)


def _build_block(
    engine: Engine,
    answers: Sequence[RequestOutput],
    sent_s: Sequence[float],
    added_s: Sequence[float],
    seconds: float,
) -> EngineBlock:
    """Builds a block from its answers and, by request, when it was sent and when the engine admitted it."""
    ordered = tuple(sorted(answers, key=lambda answer: int(answer.request.id)))
    with_spec_decode = bool(engine.runner.drafters)
    rows = zip(ordered, sent_s, added_s, strict=True)
    return EngineBlock(ordered, BlockResult(tuple(to_sample(*row, with_spec_decode) for row in rows), seconds))


def to_sample(answer: RequestOutput, sent_s: float, added_s: float, with_spec_decode: bool) -> RequestSample:
    """Returns the answer as a sample. The tokens of a round arrive together, as one chunk."""
    chunk_times_s = tuple(added_s + time_s for time_s in dict.fromkeys(answer.token_times_s))
    spec_decode = None
    if with_spec_decode and answer.accepted:
        accepted = [count - 1 for count in answer.accepted]  # without the bonus token
        rounds = Counter(accepted)
        histogram = tuple(rounds[count] for count in range(max(accepted) + 1))
        spec_decode = SpecDecodeStats(len(accepted), sum(accepted), histogram)
    return RequestSample(
        answer.request.id,
        sent_s,
        chunk_times_s[-1],
        chunk_times_s,
        len(answer.request.prompt_ids),
        len(answer.token_ids),
        spec_decode=spec_decode,
    )
