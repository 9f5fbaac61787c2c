"""The contract between the engine and whatever decides how much each round drafts.

scheduler   BatchLoad            ->  policy.decide    ->  SpeculationDecision  ->  the round
engine      result of the round  ->  RoundReport      ->  policy.observe
"""

from dataclasses import dataclass
from typing import Protocol

from eyas.speculation.acceptance_trace import AcceptanceTrace
from eyas.speculation.arms import Arm


@dataclass(frozen=True)
class BatchLoad:
    """The requests of a round.

    contexts: tokens before the root, of each request that follows the decision. draft_lags: committed tokens that the
    drafter has not read, of each of them. plain_contexts: contexts of the requests with speculation "off", which take
    part with one row whatever the arm.
    """

    contexts: tuple[int, ...]
    draft_lags: tuple[int, ...]
    plain_contexts: tuple[int, ...] = ()

    @property
    def num_requests(self) -> int:
        """Requests of the round."""
        return len(self.contexts) + len(self.plain_contexts)


@dataclass(frozen=True)
class SpeculationDecision:
    """The decision for one round; the engine returns it with the report.

    arm: the arm to run. drafts: which of load.contexts draft: none for off, else all; or one alone, where off is best
    and another arm is explored. best_arm: the arm that would run without exploration.
    """

    arm: Arm
    drafts: tuple[bool, ...]
    best_arm: Arm
    load: BatchLoad

    @property
    def is_exploration(self) -> bool:
        """True if the round runs in order to learn from it."""
        return self.arm != self.best_arm

    @property
    def is_partial(self) -> bool:
        """True if only some requests draft: such a round shows acceptance, but not the cost of the arm."""
        return any(self.drafts) and not all(self.drafts)


@dataclass(frozen=True)
class RoundReport:
    """The result of a round. It may arrive rounds later; reports come in the order of their rounds.

    seconds: of the whole round on the device, reading a lag included; None if the policy did not choose the round.
    num_tokens: tokens added to all outputs. traces: of each request that drafted and still runs.
    """

    decision: SpeculationDecision
    seconds: float | None
    num_tokens: int
    traces: tuple[AcceptanceTrace, ...]


class Policy(Protocol):
    """The chooser of the arm of each round: a `Budget` or a `FixedArm`."""

    arms: tuple[Arm, ...]

    def decide(self, load: BatchLoad) -> SpeculationDecision:
        """Returns the arm of the next round. At least one request follows the decision."""
        ...

    def observe(self, report: RoundReport) -> None:
        """Learns from a round."""
        ...


class FixedArm:
    """The same arm in every round: plain decoding, a fixed chain or a fixed tree."""

    def __init__(self, arm: Arm) -> None:
        self.arms = (arm,)

    def decide(self, load: BatchLoad) -> SpeculationDecision:
        """Returns the arm."""
        arm = self.arms[0]
        return SpeculationDecision(arm, (arm.shape is not None,) * len(load.contexts), arm, load)

    def observe(self, report: RoundReport) -> None:
        """Ignores the report."""
