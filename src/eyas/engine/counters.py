"""Counters of an engine, for statistics and benchmarks."""

from bisect import bisect_left
from copy import copy
from dataclasses import dataclass, field, replace

STEP_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)  # tokens of a prefill or a round


@dataclass
class EngineCounters:
    """The sums since the start or the last `reset`. The engine owns and updates them.

    Attributes:
        rounds: The number of rounds.
        draft_s: The seconds of the draft phase of all rounds.
        verify_s: The seconds of the verify phase of all rounds.
        extend_s: The seconds of the extend phase of all rounds.
        host_s: The host's seconds in the scheduler and the output processor.
        arm: The arm of the last round whose result was read.
        prompt_tokens: The prompt tokens of all requests that have started.
        cached_tokens: The prompt tokens among them that were found in the prefix cache.
        output_tokens: The output tokens of all requests.
        preemptions: The number of preempted requests.
        device_syncs: The number of times that launched work waited for the device, because a grammar needed its values.
        drafts: The number of draft trees: one for each request in each round that drafts.
        draft_tokens: The number of nodes of these trees, roots excluded.
        copied_tokens: The number of accepted draft tokens that a copy of earlier text also proposed.
        accepted_per_position: Element i is the number of trees of which more than i nodes were accepted.
        finished: The number of finished outputs, by finish reason.
        rounds_by_arm: The number of rounds, by the name of the arm.
        step_tokens: The prompt tokens of all prefills and the output tokens of all rounds.
        steps: Element i is the number of prefills and rounds with at most STEP_BOUNDS[i] tokens, and more than the
            bound before; the last element has those above all bounds.
    """

    rounds: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    extend_s: float = 0.0
    host_s: float = 0.0
    arm: str = "off"
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    device_syncs: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    copied_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    finished: dict[str, int] = field(default_factory=dict)
    rounds_by_arm: dict[str, int] = field(default_factory=dict)
    step_tokens: int = 0
    steps: list[int] = field(default_factory=lambda: [0] * (len(STEP_BOUNDS) + 1))

    def reset(self) -> None:
        """Sets all counters to zero."""
        self.__dict__.update(EngineCounters().__dict__)

    def copy(self) -> "EngineCounters":
        """Returns a copy. Any thread may call it while the engine runs."""
        containers = {name: copy(value) for name, value in vars(self).items() if isinstance(value, list | dict)}
        return replace(self, **containers)

    def since(self, earlier: "EngineCounters") -> "EngineCounters":
        """Returns what was counted after `earlier`, a copy of these counters."""
        new = EngineCounters(arm=self.arm)
        for name, value in vars(self).items():
            before = getattr(earlier, name)
            if isinstance(value, dict):
                setattr(new, name, {key: count - before.get(key, 0) for key, count in value.items()})
            elif isinstance(value, list):
                before = [*before, *([0] * (len(value) - len(before)))]
                setattr(new, name, [count - old for count, old in zip(value, before, strict=True)])
            elif not isinstance(value, str):
                setattr(new, name, value - before)
        return new

    def count_step(self, num_tokens: int) -> None:
        """Counts a prefill with its prompt tokens, or a round with its output tokens."""
        self.step_tokens += num_tokens
        self.steps[bisect_left(STEP_BOUNDS, num_tokens)] += 1

    def count_draft(self, num_proposed: int, depth: int, num_accepted: int) -> None:
        """Counts the draft tree of one request in one round.

        Args:
            num_proposed: the nodes of the tree, without the root.
            depth: the depth of the tree.
            num_accepted: the accepted draft tokens, without the bonus token.
        """
        self.drafts += 1
        self.draft_tokens += num_proposed
        self.accepted_per_position += [0] * (depth - len(self.accepted_per_position))
        for position in range(num_accepted):
            self.accepted_per_position[position] += 1
