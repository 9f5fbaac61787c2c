"""Counters of an engine, for statistics and benchmarks."""

from dataclasses import dataclass, field, replace


@dataclass
class EngineCounters:
    """The sums since the start or the last `reset`. Owned by the engine.

    Times in seconds: of the device by phase, and of the host. arm: of the last round that was read. drafts: draft
    trees, one for each request and round. draft_tokens: their nodes without the roots. accepted_per_position[i]: trees
    of which more than i nodes were accepted. finished: outputs by finish reason.
    """

    rounds: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    extend_s: float = 0.0
    prefill_s: float = 0.0
    device_s: float = 0.0
    host_s: float = 0.0
    arm: str = "off"
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    finished: dict[str, int] = field(default_factory=dict)

    def reset(self) -> None:
        """Sets all counters to zero."""
        self.__dict__.update(EngineCounters().__dict__)

    def copy(self) -> "EngineCounters":
        """Returns a copy. Another thread may call it while the engine counts."""
        return replace(self, accepted_per_position=[*self.accepted_per_position], finished={**self.finished})

    def count_draft(self, num_nodes: int, depth: int, num_accepted: int) -> None:
        """Counts the tree of one request in one round. num_accepted: draft tokens, without the bonus token."""
        self.drafts += 1
        self.draft_tokens += num_nodes - 1
        missing = depth - len(self.accepted_per_position)
        self.accepted_per_position += [0] * missing
        for position in range(num_accepted):
            self.accepted_per_position[position] += 1
