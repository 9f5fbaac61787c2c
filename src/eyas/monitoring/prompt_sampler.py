"""Beside a server: what each answer's rounds were like goes to a log, prompts that went badly go through the gate.

    event loop   hear(asked, task, answer) -> queue, at most QUEUE; full: dropped and counted
    thread                                      -> acceptance/log.jsonl          of answers drawn as a report's are
                                                -> badly? -> gate -> prompts.jsonl

Badly: fewer than `below` of the tokens that rounds of the same arms accept on average on this server, over LEAST_ROUNDS
drafted rounds or more. A figure would not do: a chain of two accepts three tokens at most, so a busy server would keep
everything, and an idle one with deep trees nothing. The averages forget slowly (HALF_LIFE): when all traffic turns
bad at once, its prompts are kept for as long.
"""

import contextlib
import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.base.errors import UsageError
from eyas.chat.conversation import Conversation, read_conversations
from eyas.engine.request import RequestOutput
from eyas.monitoring.acceptance_log import TASK_NAME, build_record, drafted_rounds, is_comparable
from eyas.monitoring.append_log import AppendLog, read_complete_lines
from eyas.monitoring.privacy_gate import Rejection, digest_messages
from eyas.server.observer import OUTCOMES, SamplingStats, read_prompt
from eyas.server.openai_requests import GenerationRequest
from eyas.tree.shape import TreeShape

PROMPTS_FILE = "prompts.jsonl"
LOG_FILE = "acceptance/log.jsonl"  # below, so that `prompts.source=DIR` finds prompts alone
OLD_LOG_FILE = "acceptance/log.old.jsonl"
QUEUE_SIZE = 256  # answers that wait for the thread
MIN_ROUNDS = 8  # of an answer, before it is judged
MIN_ARM_ROUNDS = 100  # of an arm, before answers are judged by it
HALF_LIFE = 20_000  # rounds
PROMPTS_BYTES = 64 * 2**20
LOG_BYTES = 16 * 2**20  # of each of two files
MAX_TASKS = 64  # names of tasks; those beyond count as none


@dataclass(frozen=True)
class SampleOptions:
    """directory: where everything goes. below: share of the average, above 0 and up to 1. limit: prompts at most."""

    directory: Path
    below: float = 0.75
    limit: int = 10_000

    def __post_init__(self) -> None:
        if not 0 < self.below <= 1:
            raise UsageError(f"--sample-below {self.below}", "a share above 0 and up to 1", "choose another one")
        if self.limit < 1:
            raise UsageError(f"--sample-limit {self.limit}", "at least 1", "raise --sample-limit")


@dataclass
class _DecayingMean:
    """Tokens of a round of one arm; old rounds fade. rounds: all that were seen."""

    rounds: int = 0
    weight: float = 0.0
    tokens: float = 0.0

    def add(self, tokens: int) -> None:
        fade = 0.5 ** (1 / HALF_LIFE)
        self.rounds += 1
        self.weight = self.weight * fade + 1
        self.tokens = self.tokens * fade + tokens

    @property
    def value(self) -> float:
        return self.tokens / self.weight


class AcceptanceBaseline:
    """What rounds of each arm accept on average here."""

    def __init__(self) -> None:
        self._means: dict[str, _DecayingMean] = {}

    def relative_acceptance(self, output: RequestOutput) -> float | None:
        """Tokens of an answer over those of average rounds of the same arms; None where too little is known."""
        rounds = [(self._means.get(evidence.arm.name), taken) for evidence, taken in drafted_rounds(output)]
        known = [(mean.value, taken) for mean, taken in rounds if mean is not None and mean.rounds >= MIN_ARM_ROUNDS]
        if len(known) < MIN_ROUNDS:
            return None
        return sum(taken for _, taken in known) / sum(value for value, _ in known)

    def add(self, output: RequestOutput) -> None:
        """Learn from an answer."""
        for evidence, taken in drafted_rounds(output):
            self._means.setdefault(evidence.arm.name, _DecayingMean()).add(taken)


class PromptSampler:
    """A `server.observer.Watch`. One server writes to a directory at a time; another run of it goes on there."""

    def __init__(
        self,
        options: SampleOptions,
        gate: Callable[[Any, str | None], Conversation | Rejection],
        heads: Sequence[str],
        shapes: Sequence[TreeShape],
        log: Callable[[str], None],
    ) -> None:
        """heads: digests of the heads by index. StorageError, InputError."""
        self.options = options
        self._gate, self._heads, self._shapes, self._log_line = gate, tuple(heads), tuple(shapes), log
        root = options.directory
        self._prompts_file, self._acceptance_log = AppendLog(root / PROMPTS_FILE), AppendLog(root / LOG_FILE)
        self._digests = {digest_messages(prompt.messages) for prompt in read_conversations(root / PROMPTS_FILE)}
        self._baseline = AcceptanceBaseline()
        self._tasks: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._has_failed = False
        self._queue: queue.Queue[tuple[GenerationRequest, int, RequestOutput] | None] = queue.Queue(QUEUE_SIZE)
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def observe(self, body: GenerationRequest, index: int, output: RequestOutput) -> None:
        if not any(output.traces):  # nothing was drafted
            return
        try:
            self._queue.put_nowait((body, index, output))
        except queue.Full:
            self._counts["missed"] += 1

    def stats(self) -> SamplingStats:
        counts = {name: self._counts[name] for name in OUTCOMES}
        return SamplingStats(counts, len(self._digests), self._prompts_file.num_bytes)

    def close(self) -> None:
        """Finish what was heard. Nothing is heard afterwards."""
        self._queue.put(None)
        self._thread.join()
        self._prompts_file.close()
        self._acceptance_log.close()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                self._counts[self._process(*item)] += 1
            except OSError as error:
                self._count_failure(f"{self.options.directory} cannot be written ({error.strerror})")
            except Exception as error:  # its message may quote the text
                self._count_failure(f"{type(error).__name__} while a prompt was looked at")

    def _count_failure(self, what: str) -> None:
        """The server goes on; the first time is said, all are counted."""
        self._counts["failed"] += 1
        if not self._has_failed:
            self._log_line(
                f"eyas: warning: {what}; prompts are not kept meanwhile, answers go on (counted in /metrics)"
            )
        self._has_failed = True

    def _process(self, body: GenerationRequest, place: int, answer: RequestOutput) -> str:
        """What became of an answer, one of OUTCOMES. OSError."""
        asked = read_prompt(body, place)
        share = self._baseline.relative_acceptance(answer)
        self._baseline.add(answer)
        task = self._check_task(asked.task)
        if is_comparable(answer):
            self._append_record(build_record(answer, self._heads[answer.drafter], task, self._shapes).to_line())
        if share is None:
            return "unjudged"
        if share >= self.options.below:
            return "well"
        if self._is_full:
            return "full"
        kept = Rejection("unreadable") if asked.record is None else self._gate(asked.record, task)
        if isinstance(kept, Rejection):
            return kept.reason
        digest, line = digest_messages(kept.messages), kept.to_line()
        if digest in self._digests:
            return "repeated"
        if self._prompts_file.num_bytes + len(line) > PROMPTS_BYTES:
            return "full"
        self._prompts_file.append(line)
        self._digests.add(digest)
        return "kept"

    @property
    def _is_full(self) -> bool:
        return len(self._digests) >= self.options.limit

    def _check_task(self, name: str | None) -> str | None:
        """The name where it is one; a client may send anything."""
        if (
            name is None
            or TASK_NAME.fullmatch(name) is None
            or (len(self._tasks) >= MAX_TASKS and name not in self._tasks)
        ):
            return None
        self._tasks.add(name)
        return name

    def _append_record(self, line: bytes) -> None:
        """To the log; a full one becomes the old one. OSError."""
        if self._acceptance_log.num_bytes + len(line) > LOG_BYTES:
            path = self._acceptance_log.path
            path.replace(self.options.directory / OLD_LOG_FILE)
            full, self._acceptance_log = self._acceptance_log, AppendLog(path)
            full.close()
        self._acceptance_log.append(line)


def read_log(directory: Path) -> list[bytes]:
    """The lines of both logs, the old one first. OSError where there is none."""
    found: list[bytes] = []
    with contextlib.suppress(FileNotFoundError):
        found += read_complete_lines(directory / OLD_LOG_FILE)
    return [*found, *read_complete_lines(directory / LOG_FILE)]
