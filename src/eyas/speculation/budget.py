"""Chooses the arm of each round: the one with the most expected tokens per second, so that speculation never costs.

    tokens per second of an arm = sum over requests of E[tokens | arm, context]  /  seconds(arm, batch, contexts)
                                  acceptance_model                                  latency_model, over round_costs

Switching. An arm stays until another is better by SWITCH_GAIN in SWITCH_ROUNDS rounds in a row, by batch bucket. A head
with a lag reads rows before it drafts again; those seconds are spread over PAYBACK_ROUNDS.

Surveying. Cost tables have errors, and an arm that looks expensive would not run for long. So in each batch bucket
every second round goes to an arm that may still be the best, until its cost is known to SURVEY_SD.

Exploring. One round in a hundred runs another arm, by chance: off, which is the baseline of `speedup`; the next smaller
and the next larger arm; and the arm that would be best with a slightly higher acceptance. If that costs more than
EXPLORE_LOSS of the throughput, it happens less often. While off is best, the head has not read for a while and must
catch up first: an exploration is then EXTRA_ROUNDS longer, and that much rarer.

A request with speculation "off" adds a row whatever the arm (`BatchLoad.plain_contexts`). A request with "max" is not
part of the decision: it gets rounds of its own with the largest tree. Their seconds are not reported, because the
budget did not choose them, but their acceptance is learned like any other.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eyas.speculation.acceptance_model import AcceptanceModel
from eyas.speculation.arms import Arm
from eyas.speculation.batch_load import BatchLoad, RoundReport, SpeculationDecision
from eyas.speculation.latency_model import LatencyModel
from eyas.speculation.round_costs import CostTable
from eyas.speculation.speedup import CAP, SpeedupEstimate, SpeedupEstimator, Stratum

SWITCH_GAIN = 0.02
SWITCH_ROUNDS = 4
CATCH_UP_SHARE = 0.2  # a round that spends more of its seconds on a lag does not time its arm
OPTIMISM = 0.5  # `optimistic` raises all depths at once; independent errors add up to about half of that
PAYBACK_ROUNDS = 500
EXPLORE = 0.01  # of rounds
EXPLORE_LOSS = 0.005  # of throughput
EXPLORE_OFF, EXPLORE_NEIGHBOR, EXPLORE_PROMISING = 0.3, 0.15, 0.4  # weights; NEIGHBOR for each side
EXTRA_ROUNDS = 3
SURVEY_SD = 0.02  # of a cost, as a share: below it an arm is not surveyed
SURVEY_ROUNDS = 32  # of one arm, at most
TIME_EVERY = 4  # of the rounds between two comparisons, one in so many updates the latency model
SKIP_ROUNDS = 7  # rounds between two comparisons of all arms, which take as long as a layer


@dataclass
class _Incumbent:
    """The arm that a batch bucket runs, and the state of its survey.

    survey_rounds: by arm. num_times_beaten: rounds in a row in which another arm was better. survey_open: an arm is
    left to survey. rounds_to_skip: before arms are compared again.
    """

    arm: int
    survey_rounds: list[int]
    num_times_beaten: int = 0
    surveyed_last: bool = False
    survey_open: bool = True
    rounds_to_skip: int = 0


@dataclass
class _RoundRun:
    """Consecutive rounds of one kind, added up and learned together, because learning takes longer."""

    decision: SpeculationDecision
    seconds: float
    num_tokens: int
    num_rounds: int = 1

    def matches(self, decision: SpeculationDecision) -> bool:
        """Returns True if a round has the same arm, best arm and batch size."""
        own = self.decision
        same_arms = own.arm == decision.arm and own.best_arm == decision.best_arm
        return same_arms and own.load.num_requests == decision.load.num_requests

    def add(self, seconds: float, num_tokens: int) -> None:
        """Adds a round."""
        self.seconds += seconds
        self.num_tokens += num_tokens
        self.num_rounds += 1


@dataclass
class _Exploration:
    """An arm that is explored while off is best. is_single_request: only the request with the smallest lag drafts."""

    arm: int
    is_single_request: bool
    rounds_left: int


@dataclass(frozen=True)
class _Forecast:
    """The prediction for one load, by arm: tokens and seconds of a round.

    optimistic: the tokens with a slightly higher acceptance.
    """

    tokens: Sequence[float]
    optimistic: Sequence[float]
    seconds: Sequence[float]


class Budget:
    """The policy that chooses arms by measured speed. It decides before each round and learns from its report.

    Each drafter has its own.
    """

    def __init__(
        self, arms: Sequence[Arm], table: CostTable, catch_up_seconds: Callable[[int], float], seed: int = 0
    ) -> None:
        """Initializes the models from a measured cost table.

        Args:
            arms: ordered by rows; the first is off.
            table: costs of these arms.
            catch_up_seconds: returns the seconds that the head takes to read a number of rows.
            seed: of the exploration.
        """
        assert arms[0].shape is None, "the first arm is off"
        assert table.arms == tuple(arm.name for arm in arms), "a table of these arms"
        assert [arm.nodes for arm in arms] == sorted(arm.nodes for arm in arms), "arms ordered by rows"
        self.arms = tuple(arms)
        self.latency_model = LatencyModel(table)
        self.acceptance_model = AcceptanceModel(arms)
        self.num_switches = 0
        self._catch_up_seconds = catch_up_seconds
        self._speedups = SpeedupEstimator()
        self._arm_index = {arm: index for index, arm in enumerate(arms)}
        self._incumbents: dict[int, _Incumbent] = {}
        self._exploration: _Exploration | None = None
        self._round_run: _RoundRun | None = None
        self._random = random.Random(seed)

    def decide(self, load: BatchLoad) -> SpeculationDecision:
        """Returns the arm of the next round. At least one request follows the decision."""
        assert load.contexts, "no request follows the decision"
        bucket = self.latency_model.bucket(load.num_requests)
        known = self._incumbents.get(bucket)
        if known is not None and known.rounds_to_skip > 0 and not self._is_exploring:
            known.rounds_to_skip -= 1
            if self._random.random() >= EXPLORE:
                return self._decision(known.arm, known.arm, load)
            return self._explore(known.arm, self._forecast(load), load)
        forecast = self._forecast(load)
        lag = sum(load.draft_lags)
        catch_up_s = self._catch_up_seconds(lag) if lag else 0.0
        rates = [
            tokens / (seconds + catch_up_s / PAYBACK_ROUNDS * (arm > 0))
            for arm, (tokens, seconds) in enumerate(zip(forecast.tokens, forecast.seconds, strict=True))
        ]
        incumbent = self._update_incumbent(bucket, forecast, rates)
        may_survey = catch_up_s <= forecast.seconds[0]
        if may_survey and (arm := self._arm_to_survey(bucket, incumbent, rates)) is not None:
            incumbent.survey_rounds[arm] += 1
            return self._decision(arm, incumbent.arm, load)
        if incumbent.arm == 0 and self._exploration is not None and self._is_exploring:
            self._exploration.rounds_left -= 1
            return self._continue_exploration(self._exploration, load)
        if not incumbent.num_times_beaten and not (incumbent.survey_open and may_survey):
            incumbent.rounds_to_skip = SKIP_ROUNDS
        if self._random.random() < EXPLORE:
            return self._explore(incumbent.arm, forecast, load)
        return self._decision(incumbent.arm, incumbent.arm, load)

    def observe(self, report: RoundReport) -> None:
        """Learns from a round."""
        if report.seconds is not None:
            self._observe_seconds(report.decision, report.seconds, report.num_tokens)
        self.acceptance_model.observe(report.traces)

    def speedup(self) -> SpeedupEstimate | None:
        """Returns the throughput over that of the same server without speculation; None until off has run."""
        return self._speedups.overall()

    @property
    def _is_exploring(self) -> bool:
        return self._exploration is not None and self._exploration.rounds_left > 0

    def _observe_seconds(self, decision: SpeculationDecision, seconds: float, num_tokens: int) -> None:
        known = self._incumbents.get(self.latency_model.bucket(decision.load.num_requests))
        may_batch = known is not None and known.rounds_to_skip % TIME_EVERY > 0 and not decision.is_exploration
        run = self._round_run
        if run is not None and not (may_batch and run.matches(decision)):
            self._round_run = None
            self._count(run.decision, run.seconds, run.num_tokens, run.num_rounds)
            run = None
        if not may_batch:
            self._time(decision, seconds, self._count(decision, seconds, num_tokens, 1))
        elif run is None:
            self._round_run = _RoundRun(decision, seconds, num_tokens)
        else:
            run.add(seconds, num_tokens)

    def _count(self, decision: SpeculationDecision, seconds: float, num_tokens: int, num_rounds: int) -> float:
        """Adds rounds of one kind to the speedup estimate.

        Returns the predicted seconds in which the drafter reads the tokens that it lags behind.
        """
        load, arm = decision.load, self._arm_index[decision.arm]
        lag = sum(lag for lag, drafts in zip(load.draft_lags, decision.drafts, strict=True) if drafts)
        catch_up_s = self._catch_up_seconds(lag) if lag else 0.0
        predicted_s = (self.latency_model.seconds_of(arm, load) + catch_up_s) * num_rounds
        # Off gives each request one token a round.
        off_s = self.latency_model.seconds_without_offset(0, load) * num_tokens / load.num_requests
        stratum = Stratum(self.latency_model.bucket(load.num_requests), decision.best_arm.shape is None)
        self._speedups.observe(stratum, arm == 0, min(seconds, CAP * predicted_s), off_s)
        return catch_up_s

    def _time(self, decision: SpeculationDecision, seconds: float, catch_up_s: float) -> None:
        """Updates the latency model with a round, unless reading the drafter's lag took much of its time."""
        arm, load = self._arm_index[decision.arm], decision.load
        if not decision.is_partial and catch_up_s < CATCH_UP_SHARE * self.latency_model.seconds_of(arm, load):
            self.latency_model.observe(arm, load, max(seconds - catch_up_s, seconds * (1 - CATCH_UP_SHARE)))

    def _forecast(self, load: BatchLoad) -> _Forecast:
        expected = [self.acceptance_model.expected(context) for context in load.contexts]
        num_plain = len(load.plain_contexts)
        tokens = [num_plain + sum(by_arm) for by_arm in zip(*(one.tokens for one in expected), strict=True)]
        optimistic = [num_plain + sum(by_arm) for by_arm in zip(*(one.optimistic for one in expected), strict=True)]
        return _Forecast(tokens, optimistic, self.latency_model.seconds(load))

    def _update_incumbent(self, bucket: int, forecast: _Forecast, rates: Sequence[float]) -> _Incumbent:
        """Switches the arm of a bucket if another has been better for long enough. Returns the incumbent."""
        best = max(range(len(rates)), key=rates.__getitem__)
        incumbent = self._incumbents.setdefault(bucket, _Incumbent(best, [0] * len(rates)))
        gain = SWITCH_GAIN
        if best < incumbent.arm:
            # A smaller arm shows nothing about the larger one, so leaving it takes as much gain as it is uncertain.
            uncertainty = forecast.optimistic[incumbent.arm] / forecast.tokens[incumbent.arm] - 1
            gain = max(gain, OPTIMISM * uncertainty)
        if rates[best] <= rates[incumbent.arm] * (1 + gain):
            incumbent.num_times_beaten = 0
            return incumbent
        incumbent.num_times_beaten += 1
        if incumbent.num_times_beaten >= SWITCH_ROUNDS:
            incumbent.arm, incumbent.num_times_beaten = best, 0
            self.num_switches += 1
        return incumbent

    def _arm_to_survey(self, bucket: int, incumbent: _Incumbent, rates: Sequence[float]) -> int | None:
        """Returns, in every second round, the arm with the least certain cost among those that may be the best."""
        incumbent.surveyed_last = not incumbent.surveyed_last
        if not incumbent.surveyed_last:
            return None
        sds = self.latency_model.ratio_sds(bucket, incumbent.arm)
        best = rates[incumbent.arm]
        candidates = [
            arm
            for arm, (rate, sd) in enumerate(zip(rates, sds, strict=True))
            if sd > SURVEY_SD and rate * (1 + 2 * sd) > best and incumbent.survey_rounds[arm] < SURVEY_ROUNDS
        ]
        incumbent.survey_open = bool(candidates)
        return max(candidates, key=sds.__getitem__, default=None)

    def _explore(self, best: int, forecast: _Forecast, load: BatchLoad) -> SpeculationDecision:
        """Chooses another arm at random, unless it costs too much."""
        weights = self._exploration_weights(best, forecast)
        arm = self._random.choices(list(weights), list(weights.values()))[0]
        if best == 0:
            return self._explore_from_off(arm, forecast, load)
        loss_s = forecast.seconds[arm] - forecast.tokens[arm] * forecast.seconds[best] / forecast.tokens[best]
        if self._is_too_expensive(loss_s, 1, forecast.seconds[best]):
            arm = best
        return self._decision(arm, best, load)

    def _explore_from_off(self, arm: int, forecast: _Forecast, load: BatchLoad) -> SpeculationDecision:
        """Chooses an exploration while off is best: by the whole batch or, if that costs too much, by one request.

        The one request is the one with the smallest draft lag. It shows the acceptance of the arm, but not its cost.
        Each of the two ways may use half of the cost allowed for exploration.
        """
        num_rounds = 1 + EXTRA_ROUNDS
        if self._random.random() * num_rounds < 1:  # an exploration lasts that many rounds, so it starts less often
            for is_single_request in (False, True):
                exploration = _Exploration(arm, is_single_request, EXTRA_ROUNDS)
                loss_s = num_rounds * self._loss_over_off(exploration, forecast, load)
                lag = min(load.draft_lags) if is_single_request else sum(load.draft_lags)
                loss_s += self._catch_up_seconds(lag) if lag else 0.0
                if not self._is_too_expensive(2 * loss_s, num_rounds, forecast.seconds[0]):
                    self._exploration = exploration
                    return self._continue_exploration(exploration, load)
        return self._decision(0, 0, load)

    def _loss_over_off(self, exploration: _Exploration, forecast: _Forecast, load: BatchLoad) -> float:
        """Returns the seconds that a round of the exploration loses against a round without speculation.

        The time in which the drafter reads its lag is not included.
        """
        arm, off_s = exploration.arm, forecast.seconds[0]
        if not exploration.is_single_request:
            return forecast.seconds[arm] - forecast.tokens[arm] * off_s / forecast.tokens[0]
        request = _argmin(load.draft_lags)
        one = self._forecast(BatchLoad(load.contexts[request : request + 1], (0,)))
        return one.seconds[arm] - one.seconds[0] - (one.tokens[arm] - 1) * off_s / forecast.tokens[0]

    def _is_too_expensive(self, loss_s: float, num_rounds: int, best_s: float) -> bool:
        """Returns True at random, so often that exploration costs at most EXPLORE_LOSS of the throughput.

        Args:
            loss_s: The expected loss of the exploration in seconds.
            num_rounds: The number of rounds of the exploration.
            best_s: The seconds of a round of the best arm.
        """
        return self._random.random() * EXPLORE * loss_s > EXPLORE_LOSS * best_s * num_rounds

    def _continue_exploration(self, exploration: _Exploration, load: BatchLoad) -> SpeculationDecision:
        only = _argmin(load.draft_lags) if exploration.is_single_request else None
        return self._decision(exploration.arm, 0, load, only)

    def _decision(self, arm: int, best: int, load: BatchLoad, only: int | None = None) -> SpeculationDecision:
        drafts = tuple(arm > 0 and only in (None, request) for request in range(len(load.contexts)))
        return SpeculationDecision(self.arms[arm], drafts, self.arms[best], load)

    def _exploration_weights(self, best: int, forecast: _Forecast) -> dict[int, float]:
        """Returns the arms worth exploring and how much of the exploration each gets."""
        # While off is best, the smallest arm gets the weight of off: its one draft token is a cheap trial of the head.
        weights = {1 if best == 0 else 0: EXPLORE_OFF}
        for neighbor in (best - 1, best + 1):
            if 0 <= neighbor < len(self.arms):
                weights[neighbor] = weights.get(neighbor, 0.0) + EXPLORE_NEIGHBOR
        rates = [tokens / seconds for tokens, seconds in zip(forecast.optimistic, forecast.seconds, strict=True)]
        promising = max((arm for arm in range(1, len(rates)) if arm != best), key=rates.__getitem__)
        weights[promising] = weights.get(promising, 0.0) + EXPLORE_PROMISING
        return weights


def _argmin(values: Sequence[int]) -> int:
    return min(range(len(values)), key=values.__getitem__)
