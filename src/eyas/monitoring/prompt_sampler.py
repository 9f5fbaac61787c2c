"""Logs the acceptance of every output, and stores prompts with low acceptance after the privacy gate has cleaned them.

    event loop   observe(body, index, output) -> queue; if the queue is full, the output is dropped and counted
    thread       each output                  -> acceptance/log.jsonl
                 if its acceptance is low     -> PrivacyGate -> prompts.jsonl

Acceptance is low if an output with at least MIN_ROUNDS drafted rounds has fewer than `below` times the tokens that
rounds of the same arms give on average on this server. The limit depends on the arm, because a chain of two gives at
most three tokens per round, and deep trees give more. The averages change slowly (HALF_LIFE). So if all traffic gets
worse at once, its prompts are stored until the averages have adapted.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from eyas.base.config import require_range
from eyas.chat.conversation import Conversation, digest_messages, read_conversations
from eyas.engine.request import RequestOutput
from eyas.monitoring.acceptance_log import LOG_FILE, OLD_LOG_FILE, TASK_NAME, AppendLog, build_record, drafted_rounds
from eyas.monitoring.privacy_gate import Rejection
from eyas.server.openai_requests import ChatRequest, GenerationRequest
from eyas.tree.shape import TreeShape

PROMPTS_FILE = "prompts.jsonl"
QUEUE_SIZE = 256  # outputs that wait for the thread
MIN_ROUNDS = 8  # of an output, before it is judged
MIN_ARM_ROUNDS = 100  # of an arm, before outputs are judged by its average
HALF_LIFE = 20_000  # rounds
PROMPTS_BYTES = 64 * 2**20
LOG_BYTES = 16 * 2**20  # of each of two files
MAX_TASKS = 64  # names of tasks; further ones count as none
OUTCOMES = ("unjudged", "well", "kept", "repeated", "refused", "unreadable", "full", "missed", "failed")
"""The ways in which the prompt of an output is handled: values of the label `outcome` of eyas_sampled_answers.

unjudged     not stored: too few drafted rounds
well         not stored: acceptance was not low
kept         stored
repeated     not stored: the same prompt is stored already
refused      not stored: a quality rule or the privacy filter refused it
unreadable   not stored: it has no text, or it uses tools
full         not stored: the limit of prompts or of bytes is reached
missed       not stored: the queue was full
failed       not stored: an error occurred, for example a full disk
"""


@dataclass(frozen=True)
class SampleOptions:
    """Options of the sampler.

    Attributes:
        directory: The directory of the log and the prompts.
        below: A prompt is stored if its acceptance is below this share of the average. Above 0, at most 1.
        limit: The maximum number of stored prompts.
    """

    directory: Path
    below: float = 0.75
    limit: int = 10_000

    def __post_init__(self) -> None:
        require_range("--sample-below", self.below, 0, 1, exclude_low=True)
        require_range("--sample-limit", self.limit, 1)


@dataclass
class _DecayingMean:
    """The mean number of tokens per round of one arm. Older rounds have exponentially less weight.

    Attributes:
        rounds: The number of all rounds.
        weight: The sum of the rounds' weights.
        tokens: The weighted sum of their tokens.
    """

    rounds: int = 0
    weight: float = 0.0
    tokens: float = 0.0

    def add(self, tokens: int) -> None:
        decay = 0.5 ** (1 / HALF_LIFE)
        self.rounds += 1
        self.weight = self.weight * decay + 1
        self.tokens = self.tokens * decay + tokens

    @property
    def value(self) -> float:
        return self.tokens / self.weight


class AcceptanceBaseline:
    """The mean number of tokens per round of each arm on this server."""

    def __init__(self) -> None:
        self._means: dict[str, _DecayingMean] = {}

    def relative_acceptance(self, output: RequestOutput) -> float | None:
        """Returns an output's tokens divided by the tokens that average rounds of the same arms would have given.

        For example, 0.5 means half as many accepted tokens as usual. Rounds of arms with fewer than MIN_ARM_ROUNDS
        rounds on this server are ignored.

        Returns:
            The ratio; None if fewer than MIN_ROUNDS rounds are left.
        """
        rounds = [(self._means.get(trace.arm.name), num_taken) for trace, num_taken in drafted_rounds(output)]
        known = [(mean.value, taken) for mean, taken in rounds if mean is not None and mean.rounds >= MIN_ARM_ROUNDS]
        if len(known) < MIN_ROUNDS:
            return None
        return sum(taken for _, taken in known) / sum(mean for mean, _ in known)

    def add(self, output: RequestOutput) -> None:
        """Updates the means with the rounds of an output."""
        for trace, num_taken in drafted_rounds(output):
            self._means.setdefault(trace.arm.name, _DecayingMean()).add(num_taken)


class PromptSampler(Collector):
    """The observer that `eyas serve --sample-low-acceptance` adds. It implements `OutputObserver` (server/routes.py).

    Requirement: no other server writes to its directory. outcomes: the number of outputs by outcome, see OUTCOMES.
    """

    def __init__(
        self,
        options: SampleOptions,
        gate: Callable[[Any, str | None], Conversation | Rejection],
        heads: Sequence[str],
        shapes: Sequence[TreeShape],
        log: Callable[[str], None],
    ) -> None:
        """Opens the files and starts the thread.

        Args:
            options: the directory and the limits.
            gate: screens a prompt with its task; usually a PrivacyGate.
            heads: the digest of each head, in the order of the engine's drafters.
            shapes: the trees for which acceptance is logged.
            log: receives warnings, one line each.

        Raises:
            StorageError: the directory cannot be written.
            InputError: another server writes to it.
        """
        self.options = options
        self._gate, self._heads, self._shapes, self._log = gate, tuple(heads), tuple(shapes), log
        root = options.directory
        self._prompts_file, self._acceptance_log = AppendLog(root / PROMPTS_FILE), AppendLog(root / LOG_FILE)
        self._digests = {digest_messages(prompt.messages) for prompt in read_conversations(root / PROMPTS_FILE)}
        self._baseline = AcceptanceBaseline()
        self._tasks: set[str] = set()
        self.outcomes: dict[str, int] = dict.fromkeys(OUTCOMES, 0)
        self._queue: queue.Queue[tuple[GenerationRequest, int, RequestOutput] | None] = queue.Queue(QUEUE_SIZE)
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    @property
    def num_prompts(self) -> int:
        """The number of stored prompts."""
        return len(self._digests)

    def observe(self, body: GenerationRequest, index: int, output: RequestOutput) -> None:
        """Queues a finished output for the thread, if a round of it drafted. Returns at once.

        Args:
            body: the body of the HTTP request.
            index: the number of the output among those of the body.
            output: the finished output.
        """
        if not any(output.traces):
            return
        try:
            self._queue.put_nowait((body, index, output))
        except queue.Full:
            self.outcomes["missed"] += 1

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics of the sampler."""
        text = "Answers with drafted rounds. The label `outcome` is kept if the prompt was stored, else the reason."
        outputs = CounterMetricFamily("eyas_sampled_answers", text, labels=["outcome"])
        for outcome, count in self.outcomes.items():
            outputs.add_metric([outcome], count)
        yield outputs
        yield GaugeMetricFamily("eyas_sampled_prompts", "Number of stored prompts.", self.num_prompts)
        text = "Size of the file with the stored prompts, in bytes."
        yield GaugeMetricFamily("eyas_sampled_bytes", text, self._prompts_file.num_bytes)

    def close(self) -> None:
        """Processes the queued outputs and closes the files. Requirement: `observe` is not called afterwards."""
        self._queue.put(None)
        self._thread.join()
        self._prompts_file.close()
        self._acceptance_log.close()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                self.outcomes[self._process(*item)] += 1
            except OSError as error:
                self._count_failure(f"{self.options.directory} cannot be written ({error.strerror})")
            except Exception as error:  # its message may quote the prompt
                self._count_failure(f"screening a prompt failed ({type(error).__name__})")

    def _count_failure(self, problem: str) -> None:
        if not self.outcomes["failed"]:
            self._log(f"eyas: warning: {problem}. Prompts are lost meanwhile; /metrics counts them as failed.")
        self.outcomes["failed"] += 1

    def _process(self, body: GenerationRequest, index: int, output: RequestOutput) -> str:
        """Logs an output, stores its prompt if its acceptance is low, and returns one of OUTCOMES. Raises OSError."""
        relative = self._baseline.relative_acceptance(output)
        self._baseline.add(output)
        task = self._check_task((body.metadata or {}).get("task"))
        record = build_record(output, self._heads[output.drafter], task, self._shapes)
        if record is not None:
            self._append_record(record.to_line())
        if relative is None:
            return "unjudged"
        if relative >= self.options.below:
            return "well"
        if self.num_prompts >= self.options.limit:
            return "full"
        source = read_prompt(body, index)
        prompt = "unreadable" if source is None else self._gate(source, task)
        if isinstance(prompt, str):
            return prompt
        digest, line = digest_messages(prompt.messages), prompt.to_line()
        if digest in self._digests:
            return "repeated"
        if self._prompts_file.num_bytes + len(line) > PROMPTS_BYTES:
            return "full"
        self._prompts_file.append(line)
        self._digests.add(digest)
        return "kept"

    def _check_task(self, name: str | None) -> str | None:
        """Returns the client's task name; None if it is not valid, or if MAX_TASKS other names are in use already."""
        is_one_too_many = len(self._tasks) >= MAX_TASKS and name not in self._tasks
        if name is None or TASK_NAME.fullmatch(name) is None or is_one_too_many:
            return None
        self._tasks.add(name)
        return name

    def _append_record(self, line: bytes) -> None:
        """Appends a line to log.jsonl. If that is full, first renames it to log.old.jsonl. Raises OSError."""
        if self._acceptance_log.num_bytes + len(line) > LOG_BYTES:
            path = self._acceptance_log.path
            path.replace(self.options.directory / OLD_LOG_FILE)
            full, self._acceptance_log = self._acceptance_log, AppendLog(path)
            full.close()
        self._acceptance_log.append(line)


def read_prompt(body: GenerationRequest, index: int) -> dict[str, Any] | None:
    """Returns the prompt of the output number `index` of a body, for the gate; None if the prompt is token ids."""
    if isinstance(body, ChatRequest):
        return {"messages": [message.model_dump(exclude_none=True) for message in body.messages]}
    prompt = getattr(body, "prompt", None)
    if isinstance(prompt, list):
        prompt = prompt[index // (body.n or 1)] if isinstance(prompt[0], str) else None
    return None if prompt is None else {"rendered": prompt}
