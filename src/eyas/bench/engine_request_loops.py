"""The closed and the open request loop for an engine in this process. `client/load_generator.py` has them for HTTP."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from eyas.bench.request_metrics import BlockResult, RequestSample, SpecDecodeStats
from eyas.bench.workload import Prompt
from eyas.engine.engine import Engine
from eyas.engine.loops import plain_loop
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
    return _run_block(engine, prompts, [0.0] * engine.max_running, max_tokens)


def run_open_loop(
    engine: Engine, prompts: Sequence[Prompt], arrivals_s: Sequence[float], max_tokens: int
) -> EngineBlock:
    """Sends prompt i at arrivals_s[i]. A request that finds no free slot waits, and the wait counts."""
    return _run_block(engine, prompts, arrivals_s, max_tokens)


class _TimedSource:
    """A source (`engine.loops.RequestSource`) of requests that are sent at given times.

    sent_s[i]: when request i is sent. A closed loop appends the finish of each answer, when its stream is free again.
    added_s[i]: when the engine admitted request i.
    """

    def __init__(self, prompts: Sequence[Prompt], sent_s: Sequence[float], max_tokens: int) -> None:
        self._prompts = prompts
        self._max_tokens = max_tokens
        self.sent_s = list(sent_s)
        self.added_s: list[float] = []
        self.start_s = time.perf_counter()

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.start_s

    def admit(self, engine: Engine, may_wait: bool) -> bool:
        while len(self.added_s) < len(self._prompts) and engine.has_capacity:
            number = len(self.added_s)
            early_s = self.sent_s[number] - self.now_s
            if early_s > 0 and not may_wait:
                break
            time.sleep(max(early_s, 0.0))
            engine.add(Request(str(number), self._prompts[number].ids, self._max_tokens))
            self.added_s.append(self.now_s)
            may_wait = False
        return len(self.added_s) < len(self._prompts)


def _run_block(engine: Engine, prompts: Sequence[Prompt], sent_s: Sequence[float], max_tokens: int) -> EngineBlock:
    engine.clear_prefix_cache()
    source = _TimedSource(prompts, sent_s, max_tokens)
    answers = []
    for answer in plain_loop(engine, source):
        source.sent_s.append(source.now_s)
        answers.append(answer)
    seconds = source.now_s
    answers.sort(key=lambda answer: int(answer.request.id))
    with_spec_decode = bool(engine.runner.drafters)
    times = zip(answers, source.sent_s, source.added_s, strict=False)
    samples = tuple(to_sample(*row, with_spec_decode) for row in times)
    return EngineBlock(tuple(answers), BlockResult(samples, seconds))


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
