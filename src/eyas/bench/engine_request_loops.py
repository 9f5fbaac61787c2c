"""When an engine in this process is given its requests: a closed loop of streams, or at moments that nothing shifts."""

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eyas.bench.client import http_request_loops as load
from eyas.bench.client.response_parser import RequestSample, SpecDecodeStats
from eyas.bench.workload import Prompt
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, plain_loop
from eyas.engine.request import Request, RequestOutput


@dataclass(frozen=True)
class EngineBlock:
    """One run over some requests, in the order in which they ended. Times are seconds after it began.

    sent_s: when a request was sent. added_s: when the engine took it up; the answer's own clock begins there.
    """

    answers: tuple[RequestOutput, ...]
    sent_s: tuple[float, ...]
    added_s: tuple[float, ...]
    seconds: float

    @property
    def output_tps(self) -> float:
        """Output tokens per second, from the first request sent to the last token (as SGLang and vLLM count it)."""
        return sum(len(answer.token_ids) for answer in self.answers) / self.seconds

    @property
    def ttft_s(self) -> tuple[float, ...]:
        """By answer, from the sending of its request to its first token."""
        rows = zip(self.answers, self.sent_s, self.added_s, strict=True)
        return tuple(added_s + answer.ttft_s - sent_s for answer, sent_s, added_s in rows)

    def to_block_result(self, drafts: bool) -> load.BlockResult:
        """As a client would have seen it, in the order of the requests. drafts: whether rounds tell of drafting."""
        rows = sorted(zip(self.answers, self.sent_s, self.added_s, strict=True), key=lambda row: int(row[0].request.id))
        return load.BlockResult(tuple(_seen(*row, drafts) for row in rows), self.seconds)


def run_closed_loop(engine: Engine, prompts: Sequence[Prompt], max_tokens: int) -> EngineBlock:
    """As many streams as the engine has slots. A request that waits for another one's prefill waits on the clock.

    A stream is free from the end of its answer on; the engine takes up the next request when it comes to it:

        stream   ...answer | sent ..waits.. added, prefill -> first token
    """
    engine.clear_prefix_cache()
    began_s = time.perf_counter()
    free_s = deque([0.0] * engine.max_running)
    sent_s: list[float] = []
    added_s: list[float] = []

    def requests() -> Iterator[Request]:
        for index, prompt in enumerate(prompts):
            sent_s.append(free_s.popleft())
            added_s.append(time.perf_counter() - began_s)
            yield Request(str(index), prompt.ids, max_tokens)

    answers = []
    for answer in plain_loop(engine, RequestList(requests())):
        free_s.append(time.perf_counter() - began_s)
        answers.append(answer)
    return _block(answers, sent_s, added_s, time.perf_counter() - began_s)


def run_open_loop(
    engine: Engine, prompts: Sequence[Prompt], arrivals_s: Sequence[float], max_tokens: int
) -> EngineBlock:
    """Prompt i is sent at arrivals_s[i], not before the one before; beyond the engine's slots it waits on the clock."""
    engine.clear_prefix_cache()
    arriving = _Arriving(prompts, arrivals_s, max_tokens)
    answers = list(plain_loop(engine, arriving))
    return _block(answers, arrivals_s, arriving.added_s, time.perf_counter() - arriving.began_s)


class _Arriving:
    """A source of requests (`engine.loops.Source`) that come when they come."""

    def __init__(self, prompts: Sequence[Prompt], arrivals_s: Sequence[float], max_tokens: int) -> None:
        self._coming = deque(zip(prompts, arrivals_s, strict=True))
        self._max_tokens = max_tokens
        self.added_s: list[float] = []
        self.began_s = time.perf_counter()

    def admit(self, engine: Engine, may_wait: bool) -> bool:
        while self._coming and engine.has_capacity:
            prompt, moment_s = self._coming[0]
            early_s = moment_s - (time.perf_counter() - self.began_s)
            if early_s > 0 and not may_wait:
                break
            time.sleep(max(early_s, 0.0))
            self._coming.popleft()
            engine.add(Request(str(len(self.added_s)), prompt.ids, self._max_tokens))
            self.added_s.append(time.perf_counter() - self.began_s)
            may_wait = False
        return bool(self._coming)


def _block(
    answers: Sequence[RequestOutput], sent_s: Sequence[float], added_s: Sequence[float], seconds: float
) -> EngineBlock:
    places = [int(answer.request.id) for answer in answers]
    return EngineBlock(tuple(answers), tuple(sent_s[i] for i in places), tuple(added_s[i] for i in places), seconds)


def _seen(answer: RequestOutput, sent_s: float, added_s: float, drafts: bool) -> RequestSample:
    """A step is a round: its tokens come together."""
    steps_s = tuple(added_s + time_s for time_s in dict.fromkeys(answer.token_times_s))
    drafting = None
    if drafts and answer.accepted:
        drafted = [accepted - 1 for accepted in answer.accepted]  # without the bonus
        rounds = Counter(drafted)
        drafting = SpecDecodeStats(
            len(drafted), sum(drafted), tuple(rounds[count] for count in range(max(drafted) + 1))
        )
    return RequestSample(
        answer.request.id,
        sent_s,
        steps_s[-1],
        steps_s,
        len(answer.request.prompt_ids),
        len(answer.token_ids),
        spec_decode=drafting,
    )
