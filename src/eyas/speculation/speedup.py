"""How much faster the server is than the same server without speculation, from its own rounds.

Strata: by batch bucket, and by whether off was the best arm. Within one, the rounds that ran off are a random sample of
all rounds (the budget explores by chance), so they say what off would have taken:

    foreseen = what the cost model says that off would have taken for the tokens of a round
    truth    = seconds of the rounds that ran off / their foreseen seconds          measured: it calibrates the model
    without  = sum over strata of truth * (foreseen seconds of all rounds)
    speed-up = without / (seconds of all rounds)

The model only carries the measured rounds of off over to the batch size, the contexts and the machine's mood of the
others; where it is wrong by a factor, `truth` is that factor. A round that takes more than CAP times what was foreseen
counts as CAP times, on both sides: the few rounds of off must not hang on one hiccup.
"""

import math
from dataclasses import dataclass

HALF_LIFE = 4000  # rounds
MIN_ROUNDS = 5.0  # of off, before a stratum counts
CAP = 2.0


@dataclass(frozen=True)
class SpeedupEstimate:
    """Tokens per second over those of off, with its 95% interval. baseline_rounds: of off, faded, that it rests on."""

    value: float
    low: float
    high: float
    baseline_rounds: float


class _Sums:
    """Seconds of rounds, as they were (s) and as foreseen of off (f); old ones fade."""

    def __init__(self) -> None:
        self.round = 0
        self.weight = self.weight2 = self.seconds = self.foreseen_s = 0.0
        self._ss = self._sf = self._ff = 0.0

    def add(self, now: int, seconds: float, foreseen_s: float) -> None:
        fade = self.fade_to(now)
        self.round = now
        self.weight = self.weight * fade + 1
        self.weight2 = self.weight2 * fade**2 + 1
        self.seconds = self.seconds * fade + seconds
        self.foreseen_s = self.foreseen_s * fade + foreseen_s
        self._ss = self._ss * fade + seconds**2
        self._sf = self._sf * fade + seconds * foreseen_s
        self._ff = self._ff * fade + foreseen_s**2

    def fade_to(self, now: int) -> float:
        return 0.5 ** ((now - self.round) / HALF_LIFE)

    @property
    def rounds(self) -> float:
        """Equally weighted rounds that would say as much."""
        return self.weight**2 / self.weight2 if self.weight2 else 0.0

    @property
    def ratio(self) -> float:
        """Seconds over foreseen ones."""
        return self.seconds / self.foreseen_s

    @property
    def ratio_variance(self) -> float:
        """Of `ratio`: a ratio of sums, linearised."""
        residual = max(self._ss - 2 * self.ratio * self._sf + self.ratio**2 * self._ff, 0.0)
        return residual * self.weight / ((self.rounds - 1) * self.foreseen_s**2)


@dataclass(frozen=True)
class Stratum:
    """Rounds that are alike: their batch bucket, and whether off was the best arm."""

    bucket: int
    off_is_best: bool


class SpeedupEstimator:
    """Keeps the sums; figures on request."""

    def __init__(self) -> None:
        self._all: dict[Stratum, _Sums] = {}
        self._off: dict[Stratum, _Sums] = {}
        self._off_anywhere = _Sums()
        self._round = 0

    def observe(self, stratum: Stratum, ran_off: bool, seconds: float, foreseen_s: float) -> None:
        """One round, or a few alike. seconds: measured, capped by the caller; foreseen_s: of off, for their tokens."""
        self._round += 1
        self._all.setdefault(stratum, _Sums()).add(self._round, seconds, foreseen_s)
        if ran_off:
            self._off.setdefault(stratum, _Sums()).add(self._round, seconds, foreseen_s)
            self._off_anywhere.add(self._round, seconds, foreseen_s)

    def overall(self) -> SpeedupEstimate | None:
        """Over all rounds; None until off has run a few times. Strata where it has not take the baseline of all."""
        return self._over(list(self._all), self._off_anywhere)

    def _over(self, strata: list[Stratum], other: _Sums | None) -> SpeedupEstimate | None:
        with_s = without_s = with_variance = baseline_rounds = 0.0
        variances: list[tuple[float, float]] = []  # of each baseline, and its degrees of freedom
        for stratum in strata:
            ran, off = self._all[stratum], self._baseline(stratum, other)
            if off is None or ran.rounds < 2:
                continue
            fade = ran.fade_to(self._round)
            foreseen_s = ran.foreseen_s * fade
            with_s += ran.seconds * fade
            with_variance += foreseen_s**2 * ran.ratio_variance
            without_s += foreseen_s * off.ratio
            variances.append((foreseen_s**2 * off.ratio_variance, off.rounds - 1))
            baseline_rounds += off.rounds
        if not variances:
            return None
        variance = sum(part for part, _ in variances)
        # Welch and Satterthwaite: how many degrees of freedom a sum of estimated variances has.
        shares = sum(part**2 / rounds for part, rounds in variances)
        freedom = variance**2 / shares if shares else math.inf
        spread = math.sqrt(variance / without_s**2 + with_variance / with_s**2)
        value, reach = without_s / with_s, math.exp(_student(freedom) * spread)
        return SpeedupEstimate(value, value / reach, value * reach, baseline_rounds)

    def _baseline(self, stratum: Stratum, other: _Sums | None) -> _Sums | None:
        """The rounds of off in this stratum, or else in the other one of the same batch bucket, or else `other`."""
        twin = Stratum(stratum.bucket, not stratum.off_is_best)
        for sums in (self._off.get(stratum), self._off.get(twin), other):
            if sums is not None and sums.rounds >= MIN_ROUNDS:
                return sums
        return None


def _student(freedom: float) -> float:
    """The 97.5% point of Student's t, by Fisher's expansion: 2% short at 3 degrees of freedom, exact in the limit."""
    z = 1.959964
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2
