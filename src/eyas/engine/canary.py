"""Compares a second head, the canary, with the main head on a share of the traffic, until one is known to be better.

    new request       -> a hash of its id and a seed chooses the head, for the whole request
    finished output   -> its rounds and tokens are added to the sums of its head, by arm
    interim analysis  -> the ratio of tokens per second, canary to main head, with its confidence interval

    ratio = sum over arms of (canary's tokens)
            / sum over arms of (canary's rounds * main head's tokens per round * cost)

Rounds are compared with rounds of the same arm, because acceptance depends mostly on the arm. `cost` is the seconds of
a round with the canary divided by the seconds with the main head; it is 1 if both heads have the same sizes.

The first interim analysis runs when each head has FIRST_ANALYSIS outputs. The next one runs whenever the head with
fewer outputs has twice as many as before. Repeated analyses at 95% would too often find a difference by chance. So
analysis k uses the confidence level 1 - ALPHA / (k (k + 1)): together they err in at most 5% of experiments.

    interval below 1    the canary gets no new requests        "returned"
    interval above 1    the canary gets all new requests       "promoted"
    else                the experiment continues               "running"

Running requests keep their head. The head does not change the output text, because the target verifies every token.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from eyas.base.errors import UsageError
from eyas.engine.request import Request, RequestOutput
from eyas.tree.intervals import Interval, log_scale_interval

DRAFTER_NAMES = ("main", "canary")
"""Names of the engine's drafters in metrics and logs, by index."""
MAIN, CANARY = 0, 1

FIRST_ANALYSIS = 30  # outputs of each head
ALPHA = 0.05
MAX_OUTPUTS = 2**17  # of both heads; later outputs are not analyzed
MIN_OUTPUTS_PER_ARM = 10  # outputs of the main head with rounds of an arm, before the arm is compared

State = Literal["running", "returned", "promoted"]


@dataclass(frozen=True)
class CanaryOptions:
    """The options of the experiment.

    Attributes:
        share: The share of the requests that the canary gets, above 0 and below 1.
        seed: The seed of the hash that assigns requests to heads.
    """

    share: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise UsageError(f"--canary-share {self.share} is out of range", "Set it between 0 and 1, for example 0.1")


@dataclass(frozen=True)
class Ratio:
    """The canary's tokens per second divided by the main head's, with its confidence interval."""

    value: float
    interval: Interval


@dataclass(frozen=True)
class CanaryStatus:
    """The state of the experiment. The mappings have the keys "main" and "canary".

    Attributes:
        state: "running", "returned" or "promoted".
        share: The share of new requests that the canary gets now.
        ratio: The ratio at the last interim analysis; None before the first one.
        rounds: The number of rounds that drafted.
        tokens: The number of tokens from these rounds.
    """

    state: State
    share: float
    ratio: Ratio | None
    rounds: Mapping[str, int]
    tokens: Mapping[str, int]


@dataclass
class _Sample:
    """The finished outputs of one head.

    Attributes:
        rounds: For each output, the number of its rounds of each arm.
        tokens: For each output, the number of tokens from its rounds of each arm.
        num_rounds: The rounds of all outputs, including those too late for the analysis.
        num_tokens: The tokens of these rounds.
    """

    rounds: list[tuple[int, ...]] = field(default_factory=list)
    tokens: list[tuple[int, ...]] = field(default_factory=list)
    num_rounds: int = 0
    num_tokens: int = 0


class CanaryExperiment:
    """A comparison of the canary head with the main head.

    The engine's thread calls `assign` and `observe`; any thread may call `status`.
    """

    def __init__(
        self, options: CanaryOptions, arms: Sequence[str], costs: Mapping[str, float], log: Callable[[str], None]
    ) -> None:
        """Prepares the experiment.

        Args:
            options: The share and the seed.
            arms: The names of the arms that draft.
            costs: By arm, the seconds of a round with the canary divided by those with the main head. A missing arm
                has the cost 1.
            log: Receives one line after each interim analysis.
        """
        self.options = options
        self.state: State = "running"
        self.ratio: Ratio | None = None
        self._arm_index = {arm: index for index, arm in enumerate(arms)}
        self._costs_A = np.array([costs.get(arm, 1.0) for arm in arms])
        self._log = log
        self._samples = (_Sample(), _Sample())
        self._num_analyses = 0

    @property
    def share(self) -> float:
        """The share of new requests that the canary gets now."""
        return {"running": self.options.share, "returned": 0.0, "promoted": 1.0}[self.state]

    def assign(self, request: Request) -> int:
        """Returns MAIN or CANARY for a new request. A request with speculation "off" gets MAIN."""
        if request.speculation == "off":
            return MAIN
        key = f"{self.options.seed}:{request.id}".encode()
        uniform = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) / 2**64
        return CANARY if uniform < self.share else MAIN

    def observe(self, output: RequestOutput) -> None:
        """Adds a finished output to the comparison. Runs an interim analysis if there are enough outputs for it."""
        rounds, tokens = [0] * len(self._arm_index), [0] * len(self._arm_index)
        for trace, num_accepted in zip(output.traces, output.accepted, strict=True):
            if trace is not None:
                index = self._arm_index[trace.arm.name]
                rounds[index] += 1
                tokens[index] += num_accepted
        if not any(rounds):
            return
        sample = self._samples[output.drafter]
        sample.num_rounds, sample.num_tokens = sample.num_rounds + sum(rounds), sample.num_tokens + sum(tokens)
        if self.state != "running" or sum(len(one.rounds) for one in self._samples) >= MAX_OUTPUTS:
            return
        sample.rounds.append(tuple(rounds))
        sample.tokens.append(tuple(tokens))
        if min(len(one.rounds) for one in self._samples) >= FIRST_ANALYSIS * 2**self._num_analyses:
            self._analyze()

    def status(self) -> CanaryStatus:
        """Returns the current state."""
        named = list(zip(DRAFTER_NAMES, self._samples, strict=True))
        rounds = {name: sample.num_rounds for name, sample in named}
        tokens = {name: sample.num_tokens for name, sample in named}
        return CanaryStatus(self.state, self.share, self.ratio, rounds, tokens)

    def _analyze(self) -> None:
        self._num_analyses += 1
        tables = [np.array(part, dtype=np.float64) for one in self._samples for part in (one.rounds, one.tokens)]
        level = 1 - ALPHA / (self._num_analyses * (self._num_analyses + 1))
        self.ratio = ratio_of(tables[0], tables[1], tables[2], tables[3], self._costs_A, level)
        if self.ratio is None:
            return
        interval = self.ratio.interval
        figure = f"{self.ratio.value:.3f} times the main head's tokens per second ({interval.low:.3f} to "
        figure += f"{interval.high:.3f})"
        if interval.high < 1:
            self.state = "returned"
            self._log(f"The canary head is worse: {figure}. All new requests go to the main head.")
        elif interval.low > 1:
            self.state = "promoted"
            self._log(f"The canary head is better: {figure}. All new requests go to the canary head.")
        else:
            self._log(f"The canary experiment continues: {figure}.")


def ratio_of(
    main_rounds_NA: np.ndarray,
    main_tokens_NA: np.ndarray,
    rounds_MA: np.ndarray,
    tokens_MA: np.ndarray,
    costs_A: np.ndarray,
    level: float,
) -> Ratio | None:
    """Returns the ratio of tokens per second with its interval; None if no arm ran often enough with both heads.

    The interval is computed for the ratio's logarithm, with the delta method. Its samples are outputs, because the
    rounds of one output are correlated.

    Args:
        main_rounds_NA: rounds of the main head: N outputs, A arms.
        main_tokens_NA: tokens of these rounds.
        rounds_MA: rounds of the canary: M outputs, A arms.
        tokens_MA: tokens of these rounds.
        costs_A: seconds of a round with the canary divided by those with the main head.
        level: confidence level of the interval, for example 0.95.
    """
    arms_A = ((main_rounds_NA > 0).sum(axis=0) >= MIN_OUTPUTS_PER_ARM) & (rounds_MA.sum(axis=0) > 0)
    if not arms_A.any():
        return None
    main_rounds_NA, main_tokens_NA = main_rounds_NA[:, arms_A], main_tokens_NA[:, arms_A]
    means_A = main_tokens_NA.sum(axis=0) / main_rounds_NA.sum(axis=0)
    expected_MA = rounds_MA[:, arms_A] * means_A * costs_A[arms_A]
    tokens_M, expected_M = tokens_MA[:, arms_A].sum(axis=1), expected_MA.sum(axis=1)
    value = tokens_M.sum() / expected_M.sum()
    # The variance comes from the canary's outputs, and from the main head's through means_A.
    own_M = tokens_M / tokens_M.sum() - expected_M / expected_M.sum()
    shares_A = expected_MA.sum(axis=0) / expected_M.sum()
    main_N = ((main_tokens_NA - means_A * main_rounds_NA) / main_tokens_NA.sum(axis=0)) @ shares_A
    variance = sum(len(part) / max(len(part) - 1, 1) * float((part**2).sum()) for part in (own_M, main_N))
    return Ratio(float(value), log_scale_interval(float(value), variance, level=level))
