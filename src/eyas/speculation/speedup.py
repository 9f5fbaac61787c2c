"""Estimates how much faster a server is than the same server without speculation, from its own rounds.

Strata are batch buckets, split by whether off was the best arm. Within a stratum the rounds that ran off are a random
sample of all rounds (the budget explores by chance), so they show how long off would have taken:

    predicted   = seconds that the cost model predicts for off, for the tokens of a round
    calibration = seconds of the rounds that ran off / their predicted seconds
    without     = sum over strata of calibration * (predicted seconds of all rounds)
    speedup     = without / (seconds of all rounds)

The model only carries the measured rounds of off over to other batch sizes, contexts and moments; its constant errors
cancel in the calibration. A round that takes more than CAP times its prediction counts as CAP times, with and without
speculation, so that one outlier does not decide between the few rounds of off.
"""

import math
from dataclasses import dataclass

from eyas.tree.intervals import log_scale_interval

HALF_LIFE = 4000  # rounds
MIN_ROUNDS = 5.0  # rounds of off before a stratum has a baseline
CAP = 2.0


@dataclass(frozen=True)
class SpeedupEstimate:
    """The ratio of tokens per second to those without speculation, with its 95% interval.

    baseline_rounds: the number of rounds without speculation that it is based on; older rounds count less.
    """

    value: float
    low: float
    high: float
    baseline_rounds: float


class _Sums:
    """Exponentially decaying sums of measured seconds (s) and of predicted seconds without speculation (p)."""

    def __init__(self) -> None:
        self.round = 0
        self.weight = self.weight2 = self.seconds = self.predicted_s = 0.0
        self._ss = self._sp = self._pp = 0.0

    def add(self, now: int, seconds: float, predicted_s: float) -> None:
        fade = self.fade_to(now)
        self.round = now
        self.weight = self.weight * fade + 1
        self.weight2 = self.weight2 * fade**2 + 1
        self.seconds = self.seconds * fade + seconds
        self.predicted_s = self.predicted_s * fade + predicted_s
        self._ss = self._ss * fade + seconds**2
        self._sp = self._sp * fade + seconds * predicted_s
        self._pp = self._pp * fade + predicted_s**2

    def fade_to(self, now: int) -> float:
        return 0.5 ** ((now - self.round) / HALF_LIFE)

    @property
    def rounds(self) -> float:
        """Effective number of rounds: equally weighted rounds with the same variance."""
        return self.weight**2 / self.weight2 if self.weight2 else 0.0

    @property
    def ratio(self) -> float:
        """The measured seconds divided by the predicted ones."""
        return self.seconds / self.predicted_s

    @property
    def ratio_variance(self) -> float:
        """Variance of `ratio`, a ratio of sums, linearized."""
        residual = max(self._ss - 2 * self.ratio * self._sp + self.ratio**2 * self._pp, 0.0)
        return residual * self.weight / ((self.rounds - 1) * self.predicted_s**2)


@dataclass(frozen=True)
class Stratum:
    """A group of similar rounds: their batch bucket, and whether off was the best arm."""

    bucket: int
    off_is_best: bool


class SpeedupEstimator:
    """The estimator of the speedup, from sums by stratum. Owned by the budget."""

    def __init__(self) -> None:
        self._all: dict[Stratum, _Sums] = {}
        self._off: dict[Stratum, _Sums] = {}
        self._off_anywhere = _Sums()
        self._round = 0

    def observe(self, stratum: Stratum, ran_off: bool, seconds: float, predicted_s: float) -> None:
        """Adds one round, or a few of the same kind.

        Args:
            seconds: measured, capped by the caller.
            predicted_s: of off, for the same tokens.
        """
        self._round += 1
        self._all.setdefault(stratum, _Sums()).add(self._round, seconds, predicted_s)
        if ran_off:
            self._off.setdefault(stratum, _Sums()).add(self._round, seconds, predicted_s)
            self._off_anywhere.add(self._round, seconds, predicted_s)

    def overall(self) -> SpeedupEstimate | None:
        """Returns the estimate over all rounds; None until off has run a few times.

        Strata without rounds of off take the baseline of all strata.
        """
        with_s = without_s = with_variance = baseline_rounds = 0.0
        variances: list[tuple[float, float]] = []  # of each baseline, and its degrees of freedom
        for stratum, ran in self._all.items():
            off = self._baseline(stratum)
            if off is None or ran.rounds < 2:
                continue
            fade = ran.fade_to(self._round)
            predicted_s = ran.predicted_s * fade
            with_s += ran.seconds * fade
            with_variance += predicted_s**2 * ran.ratio_variance
            without_s += predicted_s * off.ratio
            variances.append((predicted_s**2 * off.ratio_variance, off.rounds - 1))
            baseline_rounds += off.rounds
        if not variances:
            return None
        variance = sum(part for part, _ in variances)
        # Welch and Satterthwaite: the degrees of freedom of a sum of estimated variances.
        shares = sum(part**2 / rounds for part, rounds in variances)
        freedom = variance**2 / shares if shares else math.inf
        log_variance = variance / without_s**2 + with_variance / with_s**2
        interval = log_scale_interval(without_s / with_s, log_variance, degrees_of_freedom=freedom)
        return SpeedupEstimate(without_s / with_s, interval.low, interval.high, baseline_rounds)

    def _baseline(self, stratum: Stratum) -> _Sums | None:
        """Returns the sums of the rounds without speculation to compare this stratum with.

        They are its own, else those of the other stratum of the same batch bucket, else those of all strata.
        """
        twin = Stratum(stratum.bucket, not stratum.off_is_best)
        for sums in (self._off.get(stratum), self._off.get(twin), self._off_anywhere):
            if sums is not None and sums.rounds >= MIN_ROUNDS:
                return sums
        return None
