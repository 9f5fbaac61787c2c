"""Who decides what a round runs: the engine asks before each, and tells what came of it."""

from typing import Protocol

from eyas.speculation.arms import Arm, BatchLoad, SpeculationDecision
from eyas.speculation.budget import RoundReport


class Policy(Protocol):
    """`Budget`, or one arm for ever."""

    arms: tuple[Arm, ...]

    def decide(self, load: BatchLoad) -> SpeculationDecision:
        """The arm of the next round; at least one request follows it."""
        ...

    def observe(self, report: RoundReport) -> None:
        """What came of a round, in the order of the rounds."""
        ...


class FixedArm:
    """The same arm in every round: the baseline, a fixed chain, a fixed tree."""

    def __init__(self, arm: Arm) -> None:
        self.arms = (arm,)

    def decide(self, load: BatchLoad) -> SpeculationDecision:
        arm = self.arms[0]
        return SpeculationDecision(arm, (arm.shape is not None,) * len(load.contexts), arm, load)

    def observe(self, report: RoundReport) -> None:
        pass
