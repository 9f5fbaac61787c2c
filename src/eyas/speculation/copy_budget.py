"""Decides, for each round, whether copies of earlier text are verified: beside the head's draft, or instead of it.

    choice    tokens of a request with a copy     seconds
    none      as the budget expects               as the budget expects
    beside    the higher one of the two           the budget's + the rows of the copies
    alone     1 + those of the copy               a round without the head + the rows of the copies

The choice with the most tokens per second runs. Where all requests copy a long piece of text, this is `alone`: the head
is then skipped for the whole batch. A round without a copy is decided by the budget alone.
"""

import math
from collections.abc import Callable, Sequence

from eyas.speculation.acceptance_model import AcceptanceModel
from eyas.speculation.arms import Arm
from eyas.speculation.batch_load import BatchLoad, CopyChoice, RoundReport, SpeculationDecision
from eyas.speculation.budget import Budget
from eyas.speculation.copy_index import COPY
from eyas.speculation.round_costs import CostTable
from eyas.speculation.speedup import CAP, Stratum

MIN_GAIN = 1.02  # expected tokens per second with copies over those without
RATIO_STEP = 0.1  # share of a round's error by which the predicted seconds of later rounds with copies change


class CopyBudget(Budget):
    """A budget that also decides about copies."""

    def __init__(
        self,
        arms: Sequence[Arm],
        table: CostTable,
        catch_up_seconds: Callable[[int], float],
        copy_table: CostTable,
        seed: int = 0,
        acceptance_model: AcceptanceModel | None = None,
    ) -> None:
        """Initializes the budget. copy_table: the measured costs of `OFF` and COPY; the rest is as in Budget."""
        super().__init__(arms, table, catch_up_seconds, seed, acceptance_model)
        self._copy_table = copy_table
        self._log_ratios: dict[CopyChoice, float] = {"alone": 0.0, "beside": 0.0}  # measured / predicted seconds

    def decide(self, load: BatchLoad) -> SpeculationDecision:
        """Returns the decision for the next round. Requirement: `load.contexts` is not empty."""
        # With `off` alone there is nothing to compare, to survey or to explore.
        decision = super().decide(load) if len(self.arms) > 1 else self._decision(0, 0, load)
        if not any(load.copies) or decision.is_exploration or load.completes_prompt:
            return decision
        arm = self.arms.index(decision.arm)
        tokens = self.acceptance_model.expected(load.contexts).tokens[arm] + len(load.plain_contexts)
        seconds = self.latency_model.seconds_of(arm, load)
        rows_s = self._rows_seconds(load)
        alone_s = self._predict("alone", self.latency_model.seconds_of(0, load) + rows_s)
        best = tokens / seconds * MIN_GAIN
        rate = (load.num_requests + sum(load.copies)) / alone_s
        if rate > best:
            best, none = rate, (False,) * len(load.contexts)
            decision = SpeculationDecision(COPY, none, decision.best_arm, load, "alone", alone_s)
        beside_s = self._predict("beside", seconds + rows_s)
        if arm > 0 and tokens + sum(load.copies) > best * beside_s:
            own = [self.acceptance_model.expected((context,)).tokens[arm] for context in load.contexts]
            tokens += sum(max(1 + more - one, 0.0) for one, more in zip(own, load.copies, strict=True))
            if tokens / beside_s > best:
                drafts = (True,) * len(load.contexts)
                beside_s += self.read_costs.seconds(sum(load.draft_lags))
                decision = SpeculationDecision(self.arms[arm], drafts, decision.best_arm, load, "beside", beside_s)
        return decision

    def observe(self, report: RoundReport) -> None:
        """Learns from the result of a round. A round with copies shows nothing about the arms of the head."""
        decision = report.decision
        if not decision.copies:
            super().observe(report)
            return
        self.read_costs.count_tokens(report.num_tokens)
        if report.seconds is not None:
            error = min(max(math.log(report.seconds / decision.predicted_s), -1.0), 1.0)
            self._log_ratios[decision.copies] += RATIO_STEP * error
            load, bucket = decision.load, self.latency_model.bucket(decision.load.num_requests)
            off_s = self.latency_model.seconds_without_offset(0, load) * report.num_tokens / load.num_requests
            seconds = min(report.seconds, CAP * decision.predicted_s)
            self._speedups.observe(Stratum(bucket, decision.best_arm.shape is None), False, seconds, off_s)

    def _predict(self, copies: CopyChoice, seconds: float) -> float:
        return seconds * math.exp(self._log_ratios[copies])

    def _rows_seconds(self, load: BatchLoad) -> float:
        """Predicts the seconds for the rows of the copies, from those of a batch in which every request has one."""
        count = len(load.contexts)
        more_s = self._copy_table.seconds_at(1, count) - self._copy_table.seconds_at(0, count)
        return max(more_s, 0.0) * sum(copy > 0 for copy in load.copies) / count
