"""How fast rounds really are: the cost table, corrected by the seconds of the rounds that ran.

A arms. By batch bucket, in logarithms:

    log(seconds) = log(table) + drift + offset[arm] + noise

`drift` is common to all arms (a busy machine, a warm one) and may move by the round. `offset` is where the table is
wrong about one arm, and hardly moves. A Kalman filter keeps both with their covariance, so that a round of one arm
corrects the others by as much as it should: at first mostly drift; once an arm's own figure is known, it stays.
"""

import math

import numpy as np

from eyas.speculation.policy import BatchLoad
from eyas.speculation.round_costs import CostTable

DRIFT_SD, OFFSET_SD, NOISE_SD = 0.3, 0.2, 0.1  # at first; logarithms, so about shares
DRIFT_STEP_SD, OFFSET_STEP_SD = 0.01, 0.001  # what a round may change
MIN_NOISE_SD = 0.01
CLIP_SD = 3.0  # further off is a hiccup; if the arm's next round is too, it is a change, and counts as this far
NOISE_GAIN = 0.03


class _KalmanFilter:
    """Drift and offsets of one batch bucket: mean_X and covariance_XX, X = 1 + A, the drift first."""

    def __init__(self, mean_X: np.ndarray) -> None:
        self.mean_X = mean_X
        self._prior_X = np.full(len(mean_X), OFFSET_SD**2)
        self._prior_X[0] = DRIFT_SD**2
        self._steps_X = np.full(len(mean_X), OFFSET_STEP_SD**2)
        self._steps_X[0] = DRIFT_STEP_SD**2
        self._covariance_XX = np.diag(self._prior_X)
        self._noise = NOISE_SD**2
        self._suspects_A = [0.0] * (len(mean_X) - 1)  # the side on which an arm's last round was too far off

    def ratio_sd(self, one: int, other: int) -> float:
        """How far the ratio of two arms' seconds may be off: one standard deviation."""
        covariance_XX, a, b = self._covariance_XX, 1 + one, 1 + other
        variance = covariance_XX[a, a] + covariance_XX[b, b] - 2 * covariance_XX[a, b]
        return math.sqrt(max(float(variance), 0.0))

    def update(self, arm: int, log_ratio: float) -> None:
        """One round of this arm took exp(log_ratio) times what the table says."""
        diagonal_X = self._covariance_XX.reshape(-1)[:: len(self.mean_X) + 1]
        diagonal_X += self._steps_X * (diagonal_X < self._prior_X)
        column_X = self._covariance_XX[:, 0] + self._covariance_XX[:, 1 + arm]
        variance = float(column_X[0] + column_X[1 + arm]) + self._noise
        found = log_ratio - float(self.mean_X[0] + self.mean_X[1 + arm])
        bound = CLIP_SD * math.sqrt(variance)
        suspect = math.copysign(1.0, found) if abs(found) > bound else 0.0
        is_hiccup = bool(suspect) and suspect != self._suspects_A[arm]
        self._suspects_A[arm] = suspect
        if is_hiccup:
            return
        surprise = min(max(found, -bound), bound)
        gain_X = column_X / variance
        self.mean_X += gain_X * surprise
        self._covariance_XX -= np.outer(gain_X, column_X)
        self._noise = max(self._noise + NOISE_GAIN * (surprise**2 - variance), MIN_NOISE_SD**2)


class LatencyModel:
    """Seconds of the next round by arm."""

    def __init__(self, table: CostTable) -> None:
        self.table = table
        self._filters: dict[int, _KalmanFilter] = {}
        self._buckets: dict[int, int] = {}

    def bucket(self, batch: int) -> int:
        """The measured batch size that is nearest, as a ratio."""
        if batch not in self._buckets:
            self._buckets[batch] = min(self.table.batches, key=lambda size: abs(math.log(size / batch)))
        return self._buckets[batch]

    def seconds(self, load: BatchLoad) -> list[float]:
        """By arm, for a round of this load."""
        drift, *offsets = self._mean_X(self.bucket(load.num_requests)).tolist()
        return [self.table.seconds_for(arm, load) * math.exp(drift + offset) for arm, offset in enumerate(offsets)]

    def seconds_of(self, arm: int, load: BatchLoad) -> float:
        """Of one arm."""
        mean_X = self._mean_X(self.bucket(load.num_requests))
        return self.table.seconds_for(arm, load) * math.exp(float(mean_X[0] + mean_X[1 + arm]))

    def seconds_without_offset(self, arm: int, load: BatchLoad) -> float:
        """Seconds of the table times the drift: without the arm's offset, of which the estimate still moves."""
        return self.table.seconds_for(arm, load) * math.exp(float(self._mean_X(self.bucket(load.num_requests))[0]))

    def ratio_sds(self, bucket: int, best: int) -> list[float]:
        """By arm: how far its seconds over those of the best arm may be off, as a share; one standard deviation."""
        known = self._filters.get(bucket)
        if known is None:
            return [math.sqrt(2) * OFFSET_SD * (arm != best) for arm in range(len(self.table.arms))]
        return [known.ratio_sd(arm, best) for arm in range(len(self.table.arms))]

    def observe(self, arm: int, load: BatchLoad, seconds: float) -> None:
        """A round of this arm took so long."""
        bucket = self.bucket(load.num_requests)
        if bucket not in self._filters:
            self._filters[bucket] = _KalmanFilter(self._mean_X(bucket).copy())
        self._filters[bucket].update(arm, math.log(seconds / self.table.seconds_for(arm, load)))

    def _mean_X(self, bucket: int) -> np.ndarray:
        """Drift and offsets of this bucket, or of the nearest that has seen a round."""
        if bucket in self._filters:
            return self._filters[bucket].mean_X
        if not self._filters:
            return np.zeros(1 + len(self.table.arms))
        return self._filters[min(self._filters, key=lambda other: abs(math.log(other / bucket)))].mean_X
