"""Estimates how much faster a server is than the same server with plain decoding, from the server's own rounds.

The arm `off` is plain decoding. The budget runs it now and then, at random. Rounds are put into groups: one for each
batch bucket (batch sizes near one measured size), separately for rounds in which `off` was the best arm. Within a
group, the rounds that ran `off` are a random sample, so they show how long plain decoding takes:

    predicted   = seconds that the latency model predicts for `off` to generate the tokens of a round
    calibration = seconds of the group's rounds that ran `off` / their predicted seconds
    without     = sum over groups of calibration * (predicted seconds of all rounds of the group)
    speedup     = without / (seconds of all rounds)

The latency model transfers the measured rounds of `off` to other batch sizes, contexts and times. Its constant errors
cancel in the calibration. A round that takes more than CAP times its predicted seconds counts as CAP times, so that one
outlier does not dominate the few rounds of `off`.
"""

import math
from dataclasses import dataclass

from eyas.tree.intervals import log_scale_interval

HALF_LIFE = 4000  # rounds
MIN_ROUNDS = 5.0  # rounds of `off` before a group has a baseline
CAP = 2.0


@dataclass(frozen=True)
class SpeedupEstimate:
    """The estimated speedup: tokens per second of the server / tokens per second with plain decoding.

    Attributes:
        value: The speedup; 1.5 means 50% more tokens per second.
        low: The lower end of its 95% interval.
        high: The upper end of its 95% interval.
        baseline_rounds: The number of rounds with plain decoding behind the estimate. Older rounds count less.
    """

    value: float
    low: float
    high: float
    baseline_rounds: float


class _Sums:
    """Exponentially decaying sums over rounds: measured seconds (s), and predicted seconds of plain decoding (p)."""

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
        """The effective sample size: the number of equally weighted rounds that give the same variance."""
        return self.weight**2 / self.weight2 if self.weight2 else 0.0

    @property
    def ratio(self) -> float:
        """The measured seconds divided by the predicted seconds."""
        return self.seconds / self.predicted_s

    @property
    def ratio_variance(self) -> float:
        """The variance of `ratio`, by the delta method."""
        residual = max(self._ss - 2 * self.ratio * self._sp + self.ratio**2 * self._pp, 0.0)
        return residual * self.weight / ((self.rounds - 1) * self.predicted_s**2)


@dataclass(frozen=True)
class Stratum:
    """The key of a group of similar rounds.

    Attributes:
        bucket: The batch bucket: the measured batch size that is nearest to the batch.
        off_is_best: True if the budget considered `off` the best arm.
    """

    bucket: int
    off_is_best: bool


class SpeedupEstimator:
    """The estimator of the speedup. The budget owns it and adds every round that it has chosen."""

    def __init__(self) -> None:
        self._all: dict[Stratum, _Sums] = {}
        self._off: dict[Stratum, _Sums] = {}
        self._off_anywhere = _Sums()
        self._round = 0

    def observe(self, stratum: Stratum, ran_off: bool, seconds: float, predicted_s: float) -> None:
        """Adds a round, or several rounds with the same arm and batch size as one.

        Args:
            stratum: the group of the round.
            ran_off: True if the round ran the arm `off`.
            seconds: the measured seconds. The caller must have capped them at CAP times the predicted seconds.
            predicted_s: the predicted seconds of `off` for the same tokens.
        """
        self._round += 1
        self._all.setdefault(stratum, _Sums()).add(self._round, seconds, predicted_s)
        if ran_off:
            self._off.setdefault(stratum, _Sums()).add(self._round, seconds, predicted_s)
            self._off_anywhere.add(self._round, seconds, predicted_s)

    def overall(self) -> SpeedupEstimate | None:
        """Returns the estimate over all rounds; None until `off` has run at least MIN_ROUNDS rounds."""
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
        """Returns the sums over rounds of `off` with which a group is compared; None if there are too few rounds.

        These are the rounds of the same group; else those of the other group with the same batch bucket; else the
        rounds of all groups.
        """
        twin = Stratum(stratum.bucket, not stratum.off_is_best)
        candidates = (self._off.get(stratum), self._off.get(twin), self._off_anywhere)
        return next((sums for sums in candidates if sums is not None and sums.rounds >= MIN_ROUNDS), None)
