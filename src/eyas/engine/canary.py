"""A second head on a share of the traffic, until one of the two is known to be the better one.

    request id -> hash with a seed -> share -> head, for the request's whole life
    answers    -> rounds and tokens by arm -> ratio of the canary to the main head, with its interval, at each look

    ratio = sum over arms of (canary's tokens)  /  sum over arms of (canary's rounds * main's tokens a round * cost)

Rounds of one arm are compared with rounds of the same arm: what an arm accepts depends on the arm first. cost: seconds
of a round with the canary over those with the main head, 1 where both have the same sizes.

Looks. After FIRST_LOOK answers of each head and whenever the scarcer one has doubled since. Looking again and again at
95% would find a difference where there is none, so look k has 1 - ALPHA / (k (k + 1)): all together err in 5% of cases.

    interval below 1    the canary gets nothing more           "returned"
    interval above 1    the canary gets everything             "promoted"
    else                it goes on                             "running"

What runs keeps its head to its end. Words are the target's with either.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from eyas.base.errors import UsageError
from eyas.engine.request import CANARY, MAIN, Request, RequestOutput
from eyas.tree.stats import Interval

FIRST_ANALYSIS = 30  # answers of each head
ALPHA = 0.05
MAX_OUTPUTS = 2**17  # of both heads: then the last look is over
MIN_OUTPUTS_PER_ARM = 10  # main's answers with rounds of an arm, before it is compared

State = Literal["running", "returned", "promoted"]


@dataclass(frozen=True)
class CanaryOptions:
    """share: of the requests, above 0 and below 1. seed: of their hash. Raises UsageError."""

    share: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise UsageError(f"--canary-share {self.share}", "a share above 0 and below 1", "choose another one")


@dataclass(frozen=True)
class Ratio:
    """Tokens per second of the canary's rounds over the main head's, at the last look."""

    value: float
    interval: Interval


@dataclass(frozen=True)
class CanaryStatus:
    """How the trial stands. share: of new requests. By head: answers, drafted rounds, their tokens."""

    state: State
    share: float
    ratio: Ratio | None
    answers: Mapping[str, int]
    rounds: Mapping[str, int]
    tokens: Mapping[str, int]


@dataclass
class _DrafterSample:
    """Answers of one head: for each, rounds and tokens by arm."""

    rounds: list[tuple[int, ...]]
    tokens: list[tuple[int, ...]]
    num_rounds: int = 0
    num_tokens: int = 0


class CanaryExperiment:
    """Assigns and observes, both on the engine's thread; `standing` may be read from any."""

    def __init__(
        self, options: CanaryOptions, arms: Sequence[str], costs: Mapping[str, float], say: Callable[[str], None]
    ) -> None:
        """arms: names of those that draft. costs: by arm, where they differ from 1."""
        self.options = options
        self.state: State = "running"
        self.ratio: Ratio | None = None
        self._places = {arm: place for place, arm in enumerate(arms)}
        self._costs_A = np.array([costs.get(arm, 1.0) for arm in arms])
        self._say = say
        self._seen = {MAIN: _DrafterSample([], []), CANARY: _DrafterSample([], [])}
        self._num_analyses = 0

    @property
    def share(self) -> float:
        """Of new requests."""
        return {"running": self.options.share, "returned": 0.0, "promoted": 1.0}[self.state]

    def assign(self, request: Request) -> str:
        """The head of a request; who wants no speculation has the main one."""
        if request.speculation == "off":
            return MAIN
        key = f"{self.options.seed}:{request.id}".encode()
        place = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) / 2**64
        return CANARY if place < self.share else MAIN

    def observe(self, output: RequestOutput) -> None:
        """A finished answer."""
        rounds, tokens = [0] * len(self._places), [0] * len(self._places)
        for evidence, taken in zip(output.traces, output.accepted, strict=True):
            if evidence is not None:
                place = self._places[evidence.arm.name]
                rounds[place] += 1
                tokens[place] += taken
        if not any(rounds):
            return
        seen = self._seen[output.head]
        seen.num_rounds, seen.num_tokens = seen.num_rounds + sum(rounds), seen.num_tokens + sum(tokens)
        if self.state != "running" or sum(len(one.rounds) for one in self._seen.values()) >= MAX_OUTPUTS:
            return
        seen.rounds.append(tuple(rounds))
        seen.tokens.append(tuple(tokens))
        if min(len(one.rounds) for one in self._seen.values()) >= FIRST_ANALYSIS * 2**self._num_analyses:
            self._interim_analysis()

    def status(self) -> CanaryStatus:
        """A view from outside."""
        return CanaryStatus(
            self.state,
            self.share,
            self.ratio,
            {name: len(seen.rounds) for name, seen in self._seen.items()},
            {name: seen.num_rounds for name, seen in self._seen.items()},
            {name: seen.num_tokens for name, seen in self._seen.items()},
        )

    def _interim_analysis(self) -> None:
        self._num_analyses += 1
        tables = [np.array(part, dtype=np.float64) for one in self._seen.values() for part in (one.rounds, one.tokens)]
        level = 1 - ALPHA / (self._num_analyses * (self._num_analyses + 1))
        self.ratio = ratio_of(tables[0], tables[1], tables[2], tables[3], self._costs_A, level)
        if self.ratio is None:
            return
        value, interval = self.ratio.value, self.ratio.interval
        said = f"{value:.3f} ({interval.low:.3f} to {interval.high:.3f}) of the main head's tokens per second"
        if interval.high < 1:
            self.state = "returned"
            self._say(f"the canary head is worse, {said}: all requests go to the main head from here on")
        elif interval.low > 1:
            self.state = "promoted"
            self._say(f"the canary head is better, {said}: all requests go to it from here on")
        else:
            self._say(f"the canary head goes on, {said}")


def ratio_of(
    main_rounds_NA: np.ndarray,
    main_tokens_NA: np.ndarray,
    rounds_MA: np.ndarray,
    tokens_MA: np.ndarray,
    costs_A: np.ndarray,
    level: float,
) -> Ratio | None:
    """N answers of the main head, M of the canary, A arms; None where no arm ran often enough with both.

    The interval is that of the ratio's logarithm, by the delta method over answers: rounds of one answer hang together.
    """
    arms_A = ((main_rounds_NA > 0).sum(axis=0) >= MIN_OUTPUTS_PER_ARM) & (rounds_MA.sum(axis=0) > 0)
    if not arms_A.any():
        return None
    main_rounds_NA, main_tokens_NA = main_rounds_NA[:, arms_A], main_tokens_NA[:, arms_A]
    means_A = main_tokens_NA.sum(axis=0) / main_rounds_NA.sum(axis=0)
    expected_MA = rounds_MA[:, arms_A] * means_A * costs_A[arms_A]
    tokens_M, expected_M = tokens_MA[:, arms_A].sum(axis=1), expected_MA.sum(axis=1)
    value = tokens_M.sum() / expected_M.sum()
    # Of the canary's answers, and of the main head's through the means that are expected.
    own_M = tokens_M / tokens_M.sum() - expected_M / expected_M.sum()
    shares_A = expected_MA.sum(axis=0) / expected_M.sum()
    main_N = ((main_tokens_NA - means_A * main_rounds_NA) / main_tokens_NA.sum(axis=0)) @ shares_A
    variance = sum(len(part) / max(len(part) - 1, 1) * float((part**2).sum()) for part in (own_M, main_N))
    reach = math.exp(NormalDist().inv_cdf((1 + level) / 2) * math.sqrt(variance))
    return Ratio(float(value), Interval(float(value / reach), float(value * reach)))
