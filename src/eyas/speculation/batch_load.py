"""The interface between the engine and the policy that chooses the arm of each round.

before a round    scheduler:  BatchLoad   -> policy.decide  -> SpeculationDecision
after a round     engine:     RoundReport -> policy.observe
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from eyas.speculation.acceptance_trace import AcceptanceTrace
from eyas.speculation.arms import Arm

CopyChoice = Literal["", "beside", "alone"]
"""The use of copies in a round: "" is none, "beside" adds them to the arm's tree, "alone" runs no head."""


@dataclass(frozen=True)
class BatchLoad:
    """The requests of a round, as the policy sees them. A context is the number of tokens before the root.

    Attributes:
        contexts: The context of each request that runs with the chosen arm.
        draft_lags: For each of these requests, the number of committed tokens that the drafter has not read.
        plain_contexts: The context of each request with speculation "off". It gets one token in this round, whatever
            arm is chosen.
        new_prompt_tokens: The number of prompt tokens that the drafter has not read, of requests in their first round.
        num_new: The number of requests in their first round.
        copies: For each request of `contexts`, the number of tokens of its copy that the target is expected to accept;
            0 for a request without a copy. Empty if no request has one.
        completes_prompt: True if the last chunk of a waiting prompt runs in the same forward. A `Budget` does not draft
            then, so that the first token of that prompt comes earlier. A `FixedArm` always runs its arm.
    """

    contexts: tuple[int, ...]
    draft_lags: tuple[int, ...]
    plain_contexts: tuple[int, ...] = ()
    new_prompt_tokens: int = 0
    num_new: int = 0
    copies: tuple[float, ...] = ()
    completes_prompt: bool = False

    @property
    def num_requests(self) -> int:
        """The number of requests in the round."""
        return len(self.contexts) + len(self.plain_contexts)


@dataclass(frozen=True)
class SpeculationDecision:
    """The decision for one round. The engine passes it back to the policy in the RoundReport.

    Attributes:
        arm: The arm to run.
        drafts: For each request of load.contexts, True if it drafts. All are False for the arm `off`. Exactly one is
            True in a cheap exploration while `off` is the best arm. Otherwise all are True.
        best_arm: The arm that would run without exploration.
        load: The requests of the round.
        copies: How the round uses the copies of its requests.
        predicted_s: The predicted seconds of a round with copies.
    """

    arm: Arm
    drafts: tuple[bool, ...]
    best_arm: Arm
    load: BatchLoad
    copies: CopyChoice = ""
    predicted_s: float = 0.0

    @property
    def is_exploration(self) -> bool:
        """True if the round runs another arm than the best one, in order to learn how that arm performs."""
        return self.arm != self.best_arm and not self.copies

    @property
    def is_partial(self) -> bool:
        """True if only some requests draft. Such a round shows the acceptance of the arm, but not its cost."""
        return any(self.drafts) and not all(self.drafts)


@dataclass(frozen=True)
class RoundReport:
    """The result of a round. Reports come in the order of their rounds, and may come some rounds later.

    Attributes:
        decision: The decision of the policy.
        seconds: The time of the whole round on the device, including the drafter's read of lagging tokens; None if the
            policy did not choose the arm, or if the round shared its forward with prompts.
        num_tokens: The number of tokens that the round added to all outputs.
        traces: The acceptance trace of each request that drafted and has not ended.
    """

    decision: SpeculationDecision
    seconds: float | None
    num_tokens: int
    traces: tuple[AcceptanceTrace, ...]


class Policy(Protocol):
    """The interface of a policy, which chooses the arm of each round. `Budget` and `FixedArm` implement it."""

    arms: tuple[Arm, ...]

    def decide(self, load: BatchLoad) -> SpeculationDecision:
        """Returns the decision for the next round. Requirement: `load.contexts` is not empty."""
        ...

    def observe(self, report: RoundReport) -> None:
        """Learns from the result of a round."""
        ...


class FixedArm:
    """A policy that runs the same arm in every round: plain decoding, a chain or a tree."""

    def __init__(self, arm: Arm) -> None:
        self.arms = (arm,)

    def decide(self, load: BatchLoad) -> SpeculationDecision:
        """Returns the decision to run the fixed arm for all requests."""
        arm = self.arms[0]
        return SpeculationDecision(arm, (arm.shape is not None,) * len(load.contexts), arm, load)

    def observe(self, report: RoundReport) -> None:
        """Ignores the report."""
