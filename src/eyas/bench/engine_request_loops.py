"""Sends requests to an engine in this process, in a closed or an open loop, and measures the answers.

`client/load_generator.py` does the same over HTTP.
"""

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
    """The answers of a block of requests and their measured times.

    Attributes:
        answers: The answers in the order of the requests. Their times are seconds after the admission of the request.
        result: The samples in the order of the requests. Their times are seconds after the start of the block.
    """

    answers: tuple[RequestOutput, ...]
    result: BlockResult


def run_closed_loop(engine: Engine, prompts: Sequence[Prompt], max_tokens: int) -> EngineBlock:
    """Runs one stream for each slot of the engine. A stream sends its next request when its answer finishes.

    TTFT starts when the request is sent. So it includes the wait for admission:

        previous answer ends = request sent -> wait -> engine admits the request -> prefill -> first token
    """
    return run_open_loop(engine, prompts, [0.0] * engine.max_running, max_tokens)


class _TimedSource:
    """A source (`engine.loops.RequestSource`) of requests that are sent at given times.

    Attributes:
        sent_s: The time at which request i is sent. `run_open_loop` appends the time at which an answer finishes,
            because the stream then sends its next request.
        added_s: The time at which the engine admitted request i.
        start_s: The start of the block; the other times are seconds after it.
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
        while len(self.added_s) < len(self._prompts) and engine.num_free > 0:
            number = len(self.added_s)
            early_s = self.sent_s[number] - self.now_s
            if early_s > 0 and not may_wait:
                break
            time.sleep(max(early_s, 0.0))
            self.added_s.append(self.now_s)  # first, so that no token seems to come after the end of the block
            engine.add(Request(str(number), self._prompts[number].ids, self._max_tokens))
            may_wait = False
        return len(self.added_s) < len(self._prompts)


def run_open_loop(engine: Engine, prompts: Sequence[Prompt], sent_s: Sequence[float], max_tokens: int) -> EngineBlock:
    """Sends prompt i at sent_s[i]. A request waits if no slot is free, and TTFT includes the wait.

    Each prompt without a time is sent when an answer finishes.
    """
    engine.kv_cache.clear_prefix_cache()
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
    """Returns an answer as a sample. All tokens of a round are one chunk.

    Args:
        answer: The answer.
        sent_s: The time at which the request was sent.
        added_s: The time at which the engine admitted the request.
        with_spec_decode: True to report the accepted draft tokens.
    """
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
