"""Predicts the seconds of the next round: the cost table, corrected by the rounds that ran. The budget uses it.

A arms. For each batch bucket (batch sizes near one measured size), the model is:

    log(seconds) = log(table) + drift + offset[arm] + noise

`drift` is common to all arms, for example because the machine is busy, and may change from round to round. `offset` is
the error of the table for one arm, and changes very slowly. A Kalman filter estimates both with their covariance. So a
round of one arm also corrects the predictions for the other arms: at first mostly through the drift.
"""

import math

import numpy as np

from eyas.speculation.batch_load import BatchLoad
from eyas.speculation.round_costs import CostTable

DRIFT_SD, OFFSET_SD, NOISE_SD = 0.3, 0.2, 0.1  # initial standard deviations of logarithms: about 30%, 20%, 10%
DRIFT_STEP_SD, OFFSET_STEP_SD = 0.01, 0.001  # process noise of one round
MIN_NOISE_SD = 0.01
CLIP_SD = 3.0  # the first error beyond it is ignored; a second one in a row on the same side counts as this large
NOISE_GAIN = 0.03


class _KalmanFilter:
    """A Kalman filter of the drift and the offsets of one batch bucket.

    mean_X: The estimates, X = 1 + A: the drift, then the offset of each arm.
    """

    def __init__(self, mean_X: np.ndarray) -> None:
        self.mean_X = mean_X
        self._prior_X = np.full(len(mean_X), OFFSET_SD**2)
        self._prior_X[0] = DRIFT_SD**2
        self._steps_X = np.full(len(mean_X), OFFSET_STEP_SD**2)
        self._steps_X[0] = DRIFT_STEP_SD**2
        self._covariance_XX = np.diag(self._prior_X)
        self._noise = NOISE_SD**2
        self._outlier_sign_A = [0.0] * (len(mean_X) - 1)  # sign of an arm's last round if it was an outlier, else 0

    def ratio_sd(self, one: int, other: int) -> float:
        """Returns the standard deviation of log(seconds of arm `one` / seconds of arm `other`)."""
        covariance_XX, a, b = self._covariance_XX, 1 + one, 1 + other
        variance = covariance_XX[a, a] + covariance_XX[b, b] - 2 * covariance_XX[a, b]
        return math.sqrt(max(float(variance), 0.0))

    def update(self, arm: int, log_ratio: float) -> None:
        """Updates the estimates with a round. log_ratio: log(measured seconds / seconds of the table)."""
        diagonal_X = self._covariance_XX.reshape(-1)[:: len(self.mean_X) + 1]
        diagonal_X += self._steps_X * (diagonal_X < self._prior_X)
        column_X = self._covariance_XX[:, 0] + self._covariance_XX[:, 1 + arm]
        variance = float(column_X[0] + column_X[1 + arm]) + self._noise
        error = log_ratio - float(self.mean_X[0] + self.mean_X[1 + arm])
        bound = CLIP_SD * math.sqrt(variance)
        sign = math.copysign(1.0, error) if abs(error) > bound else 0.0
        is_outlier = bool(sign) and sign != self._outlier_sign_A[arm]
        self._outlier_sign_A[arm] = sign
        if is_outlier:
            return
        clipped = min(max(error, -bound), bound)
        gain_X = column_X / variance
        self.mean_X += gain_X * clipped
        self._covariance_XX -= np.outer(gain_X, column_X)
        self._noise = max(self._noise + NOISE_GAIN * (clipped**2 - variance), MIN_NOISE_SD**2)


class LatencyModel:
    """The predictor of the seconds of a round for each arm. It learns for each batch bucket separately."""

    def __init__(self, table: CostTable) -> None:
        self.table = table
        self._filters: dict[int, _KalmanFilter] = {}
        self._buckets: dict[int, int] = {}

    def bucket(self, batch: int) -> int:
        """Returns the batch bucket of a batch: the batch size in the cost table with the smallest ratio to `batch`."""
        if batch not in self._buckets:
            self._buckets[batch] = min(self.table.batches, key=lambda size: abs(math.log(size / batch)))
        return self._buckets[batch]

    def seconds(self, load: BatchLoad) -> list[float]:
        """Predicts the seconds of a round with this load, for each arm."""
        drift, *offsets = self._mean_X(self.bucket(load.num_requests)).tolist()
        return [self.table.seconds_for(arm, load) * math.exp(drift + offset) for arm, offset in enumerate(offsets)]

    def seconds_of(self, arm: int, load: BatchLoad) -> float:
        """Predicts the seconds of a round with this load, for the arm with this index."""
        mean_X = self._mean_X(self.bucket(load.num_requests))
        return self.table.seconds_for(arm, load) * math.exp(float(mean_X[0] + mean_X[1 + arm]))

    def seconds_without_offset(self, arm: int, load: BatchLoad) -> float:
        """Predicts the seconds of a round from the table and the drift only; the arm's offset is left out."""
        return self.table.seconds_for(arm, load) * math.exp(float(self._mean_X(self.bucket(load.num_requests))[0]))

    def ratio_sds(self, bucket: int, best: int) -> list[float]:
        """Returns the uncertainty of each arm's cost: the relative standard deviation of seconds[arm] / seconds[best].

        Args:
            bucket: the batch bucket.
            best: the index of the best arm.
        """
        known = self._filters.get(bucket)
        if known is None:
            return [math.sqrt(2) * OFFSET_SD * (arm != best) for arm in range(len(self.table.arms))]
        return [known.ratio_sd(arm, best) for arm in range(len(self.table.arms))]

    def observe(self, arm: int, load: BatchLoad, seconds: float) -> None:
        """Learns from a round. seconds: the measured time of the round with this arm and load."""
        bucket = self.bucket(load.num_requests)
        if bucket not in self._filters:
            self._filters[bucket] = _KalmanFilter(self._mean_X(bucket).copy())
        self._filters[bucket].update(arm, math.log(seconds / self.table.seconds_for(arm, load)))

    def _mean_X(self, bucket: int) -> np.ndarray:
        """Returns drift and offsets of this bucket, else of the nearest bucket with rounds, else zeros."""
        if bucket in self._filters:
            return self._filters[bucket].mean_X
        if not self._filters:
            return np.zeros(1 + len(self.table.arms))
        return self._filters[min(self._filters, key=lambda other: abs(math.log(other / bucket)))].mean_X
