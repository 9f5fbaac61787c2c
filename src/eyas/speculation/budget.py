"""Chooses the arm of each round: the arm with the most expected tokens per second. This can be `off`, plain decoding.

    tokens per second of an arm = sum over requests of E[tokens | arm, context]  /  seconds(arm, batch, contexts)
                                  from acceptance_model                             from latency_model and round_costs

Everything below is done for each batch bucket (batch sizes near one measured size) separately.

Switching. The arm changes when another arm is better by SWITCH_GAIN in SWITCH_ROUNDS rounds in a row; to `off` it
changes when drafting is no better. When the batch size returns to a bucket, the first comparison already changes the
arm. If the head has not read the newest tokens, it reads them before it drafts again. This time is divided by the
rounds for which the batch usually stays in the bucket, at most PAYBACK_ROUNDS, and added to the seconds of a round.

What the head reads of new prompts, divided by the generated tokens, is added to the cost of every arm that drafts
(`read_costs`). With long prompts and short answers, drafting may not pay.

Costs that no round shows. A last round may draft beyond the end of its answer, and a round of `off` between others
takes longer than one of many. So the rounds of an arm that drafts count as longer by HIDDEN_SHARE.

Surveying. The measured costs have errors, and an arm that looks too expensive would not run for a long time. So at
first every second round runs an arm that may still be the best, until the error of its cost is below SURVEY_SD. No
survey starts with a read that takes more than CATCH_UP_SHARE of a round, because such a round does not time its arm.

Exploring. One round in a hundred runs another arm, chosen at random: `off`, which `speedup` uses as its baseline; the
next smaller or next larger arm; or the arm that would be best with slightly higher acceptance. Explorations become
rarer if they would cost more than EXPLORE_LOSS of the throughput. While `off` is the best arm, the head must first read
the newest tokens. An exploration then lasts EXTRA_ROUNDS more rounds and starts less often by the same factor.

A request with speculation "off" gets one token per round, whatever arm runs (`BatchLoad.plain_contexts`). Requests with
speculation "max" run in separate rounds with the largest tree. The budget does not choose these rounds, so it ignores
their seconds, but it learns from their acceptance.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress

from eyas.speculation.acceptance_model import AcceptanceModel
from eyas.speculation.arms import Arm
from eyas.speculation.batch_load import BatchLoad, RoundReport, SpeculationDecision
from eyas.speculation.forecast_check import ForecastCheck
from eyas.speculation.incumbent import PAYBACK_ROUNDS, Incumbent
from eyas.speculation.latency_model import LatencyModel
from eyas.speculation.read_costs import ReadCosts
from eyas.speculation.round_costs import CostTable
from eyas.speculation.speedup import CAP, SpeedupEstimate, SpeedupEstimator, Stratum

SWITCH_GAIN = 0.02
SWITCH_ROUNDS = 4
CATCH_UP_SHARE = 0.2  # a round that spends more of its seconds on a lag does not time its arm
OPTIMISM = 0.5  # `optimistic` raises all depths at once; independent errors add up to about half of that
HIDDEN_SHARE = 0.03  # SmolLM2 on a CPU with AMX: 0.5 % beyond ends of answers, up to 5 % for rounds of `off`
EXPLORE = 0.01  # of rounds
EXPLORE_LOSS = 0.005  # of throughput
EXPLORE_OFF, EXPLORE_NEIGHBOR, EXPLORE_PROMISING = 0.3, 0.15, 0.4  # weights; NEIGHBOR for each side
EXTRA_ROUNDS = 3
SURVEY_SD = 0.02  # relative error of a cost; an arm with a smaller error is not surveyed
SURVEY_ROUNDS = 32  # of one arm, at most
TIME_EVERY = 4  # of the rounds between two comparisons, one in so many updates the latency model
SKIP_ROUNDS = 7  # rounds between two comparisons of all arms, which take as long as a layer


@dataclass
class _RoundRun:
    """Consecutive rounds with the same arm, best arm and batch size. They are summed up and learned in one update."""

    decision: SpeculationDecision
    seconds: float
    num_tokens: int
    num_rounds: int = 1

    def matches(self, decision: SpeculationDecision) -> bool:
        """Returns True if a round has the same arm, best arm and batch size."""
        own = self.decision
        same_arms = own.arm == decision.arm and own.best_arm == decision.best_arm
        return same_arms and own.load.num_requests == decision.load.num_requests


@dataclass
class _Exploration:
    """An exploration while `off` is the best arm.

    Attributes:
        arm: The index of the explored arm.
        is_single_request: True if only the request with the smallest draft lag drafts.
        rounds_left: The number of rounds that the exploration still lasts.
    """

    arm: int
    is_single_request: bool
    rounds_left: int


@dataclass(frozen=True)
class _Forecast:
    """The prediction of the next round for each arm.

    Attributes:
        tokens: The tokens of all requests.
        optimistic: The tokens of all requests, with slightly higher acceptance.
        seconds: The time of the round.
    """

    tokens: Sequence[float]
    optimistic: Sequence[float]
    seconds: Sequence[float]


class Budget:
    """The policy that chooses the arm with the most expected tokens per second. Each drafter has its own budget."""

    def __init__(
        self,
        arms: Sequence[Arm],
        table: CostTable,
        catch_up_seconds: Callable[[int], float],
        seed: int = 0,
        acceptance_model: AcceptanceModel | None = None,
    ) -> None:
        """Initializes the latency model from a measured cost table.

        Args:
            arms: the arms, ordered by `Arm.nodes`; the first is `off`.
            table: the measured costs of these arms.
            catch_up_seconds: returns the seconds that the head takes to read a given number of lagging tokens.
            seed: seed of the random explorations.
            acceptance_model: the estimates of acceptance for these arms; None to start without measurements.
        """
        assert arms[0].shape is None, "the first arm is `off`"
        assert table.arms == tuple(arm.name for arm in arms), "a table of these arms"
        assert [arm.nodes for arm in arms] == sorted(arm.nodes for arm in arms), "arms ordered by rows"
        self.arms = tuple(arms)
        self.latency_model = LatencyModel(table)
        self.acceptance_model = acceptance_model or AcceptanceModel(arms)
        self.read_costs = ReadCosts(catch_up_seconds, table.seconds_at(0, 1))
        self.num_switches, self.forecast_check, self._speedups = 0, ForecastCheck(), SpeedupEstimator()
        self._arm_index = {arm: index for index, arm in enumerate(arms)}
        self._incumbents: dict[int, Incumbent] = {}
        self._exploration: _Exploration | None = None
        self._round_run: _RoundRun | None = None
        self._last_bucket, self._random = 0, random.Random(seed)

    def decide(self, load: BatchLoad) -> SpeculationDecision:
        """Returns the decision for the next round. Requirement: `load.contexts` is not empty."""
        assert load.contexts, "no request runs with the chosen arm"
        bucket = self.latency_model.bucket(load.num_requests)
        known = self._incumbents.get(bucket)
        if bucket != self._last_bucket:
            _change_bucket(self._incumbents.get(self._last_bucket), known)
            self._last_bucket = bucket
        if known is not None:
            known.stay += 1
        self.read_costs.count_prompts(load)
        if load.completes_prompt:
            return self._decision(0, 0, load)
        if known is not None and known.rounds_to_skip > 0 and self._exploration is None:
            known.rounds_to_skip -= 1
            if self._random.random() >= EXPLORE:
                return self._decision(known.arm, known.arm, load)
            return self._explore(known.arm, self._forecast(load), load)
        forecast = self._forecast(load)
        catch_up_s, token_read_s = self.read_costs.of(load)
        more_s = catch_up_s / (PAYBACK_ROUNDS if known is None else known.usual_stay)
        rates = [
            tokens / (seconds + (HIDDEN_SHARE * seconds + more_s + tokens * token_read_s) * (arm > 0))
            for arm, (tokens, seconds) in enumerate(zip(forecast.tokens, forecast.seconds, strict=True))
        ]
        incumbent = self._update_incumbent(bucket, forecast, rates)
        may_survey = catch_up_s <= CATCH_UP_SHARE * forecast.seconds[0]
        if may_survey and (arm := self._arm_to_survey(bucket, incumbent, rates)) is not None:
            incumbent.survey_rounds[arm] += 1
            return self._decision(arm, incumbent.arm, load)
        if incumbent.arm == 0 and (exploration := self._exploration) is not None:
            exploration.rounds_left -= 1
            self._exploration = exploration if exploration.rounds_left else None
            return self._continue_exploration(exploration, load)
        if not incumbent.num_times_beaten and not (incumbent.survey_open and may_survey):
            incumbent.rounds_to_skip = SKIP_ROUNDS
        if self._random.random() < EXPLORE:
            return self._explore(incumbent.arm, forecast, load)
        return self._decision(incumbent.arm, incumbent.arm, load)

    def observe(self, report: RoundReport) -> None:
        """Learns from the result of a round."""
        self.read_costs.count_tokens(report.num_tokens)
        if report.seconds is not None:
            self._observe_seconds(report.decision, report.seconds, report.num_tokens)
        self.acceptance_model.observe(report.traces)

    def speedup(self) -> SpeedupEstimate | None:
        """Returns the estimated speedup over plain decoding on this server; None until `off` has run a few rounds."""
        return self._speedups.overall()

    def _observe_seconds(self, decision: SpeculationDecision, seconds: float, num_tokens: int) -> None:
        known = self._incumbents.get(self.latency_model.bucket(decision.load.num_requests))
        may_batch = known is not None and known.rounds_to_skip % TIME_EVERY > 0 and not decision.is_exploration
        may_batch = may_batch and not any(compress(decision.load.draft_lags, decision.drafts))
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
            run.seconds += seconds
            run.num_tokens += num_tokens
            run.num_rounds += 1

    def _count(self, decision: SpeculationDecision, seconds: float, num_tokens: int, num_rounds: int) -> float:
        """Adds rounds with the same decision to the speedup estimate and the forecast check.

        Args:
            decision: the decision of the rounds.
            seconds: the seconds of all rounds together.
            num_tokens: the tokens of all rounds together.
            num_rounds: the number of rounds.

        Returns:
            The predicted seconds, per round, in which the drafter reads lagging tokens.
        """
        load, arm = decision.load, self._arm_index[decision.arm]
        catch_up_s = self.read_costs.seconds(sum(compress(load.draft_lags, decision.drafts)))
        predicted_s = (self.latency_model.seconds_of(arm, load) + catch_up_s) * num_rounds
        # The arm `off` gives each request one token per round.
        off_s = self.latency_model.seconds_without_offset(0, load) * num_tokens / load.num_requests
        stratum = Stratum(self.latency_model.bucket(load.num_requests), decision.best_arm.shape is None)
        self._speedups.observe(stratum, arm == 0, min(seconds, CAP * predicted_s), off_s)
        if not decision.is_exploration:
            own = self.acceptance_model.expected(load.contexts).tokens[arm] if arm else len(load.contexts)
            expected = (len(load.plain_contexts) + own) * num_rounds
            self.forecast_check.observe(num_rounds, num_tokens, expected, seconds, predicted_s)
        return catch_up_s

    def _time(self, decision: SpeculationDecision, seconds: float, catch_up_s: float) -> None:
        """Updates the latency model with a round; or the costs of reads, if a read took much of the round."""
        arm, load = self._arm_index[decision.arm], decision.load
        round_s = self.latency_model.seconds_of(arm, load)
        if catch_up_s < CATCH_UP_SHARE * round_s and not decision.is_partial:
            self.latency_model.observe(arm, load, max(seconds - catch_up_s, seconds * (1 - CATCH_UP_SHARE)))
        elif not decision.is_partial:
            self.read_costs.learn(catch_up_s, seconds - round_s)

    def _forecast(self, load: BatchLoad) -> _Forecast:
        expected, num_plain = self.acceptance_model.expected(load.contexts), len(load.plain_contexts)
        tokens, optimistic = ([num_plain + found for found in sums] for sums in (expected.tokens, expected.optimistic))
        return _Forecast(tokens, optimistic, self.latency_model.seconds(load))

    def _update_incumbent(self, bucket: int, forecast: _Forecast, rates: Sequence[float]) -> Incumbent:
        """Switches the arm of a batch bucket if another arm has been better for SWITCH_ROUNDS rounds.

        Args:
            bucket: the batch bucket.
            forecast: the prediction of the next round.
            rates: the expected tokens per second of each arm.

        Returns:
            The state of the bucket with the arm to run.
        """
        best = max(range(len(rates)), key=rates.__getitem__)
        incumbent = self._incumbents.setdefault(bucket, Incumbent(best, [0] * len(rates)))
        gain = SWITCH_GAIN if best else 0.0  # a draft that gains nothing is not worth its risk
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

    def _arm_to_survey(self, bucket: int, incumbent: Incumbent, rates: Sequence[float]) -> int | None:
        """Returns the arm to survey: of the arms that may be the best, the one with the least certain cost.

        Returns None in every second round, and when no arm is left to survey.
        """
        incumbent.surveyed_last = not incumbent.surveyed_last
        if not incumbent.surveyed_last:
            return None
        sds = self.latency_model.ratio_sds(bucket, incumbent.arm)
        best, rounds = rates[incumbent.arm], incumbent.survey_rounds
        candidates = [
            arm
            for arm, (rate, sd) in enumerate(zip(rates, sds, strict=True))
            if sd > SURVEY_SD and rate * (1 + 2 * sd) > best and rounds[arm] < SURVEY_ROUNDS
        ]
        incumbent.survey_open = bool(candidates)
        return max(candidates, key=sds.__getitem__, default=None)

    def _explore(self, best: int, forecast: _Forecast, load: BatchLoad) -> SpeculationDecision:
        """Returns a decision to explore a random arm, or to run the best arm if exploring would cost too much."""
        weights = _exploration_weights(best, forecast)
        arm = self._random.choices(list(weights), list(weights.values()))[0]
        if best == 0:
            return self._explore_from_off(arm, forecast, load)
        loss_s = forecast.seconds[arm] - forecast.tokens[arm] * forecast.seconds[best] / forecast.tokens[best]
        if self._is_too_expensive(loss_s, 1, forecast.seconds[best]):
            arm = best
        return self._decision(arm, best, load)

    def _explore_from_off(self, arm: int, forecast: _Forecast, load: BatchLoad) -> SpeculationDecision:
        """Returns a decision to explore `arm` while `off` is the best arm, or to run `off` if that costs too much.

        First it considers that the whole batch drafts. If that costs too much, only the request with the smallest draft
        lag drafts, which shows the acceptance of the arm but not its cost. Each of the two ways may use half of the
        cost that is allowed for exploration.
        """
        num_rounds = 1 + EXTRA_ROUNDS
        if self._random.random() * num_rounds < 1:  # an exploration lasts that many rounds, so it starts less often
            for is_single_request in (False, True):
                exploration = _Exploration(arm, is_single_request, EXTRA_ROUNDS)
                loss_s = num_rounds * self._loss_over_off(exploration, forecast, load)
                lag = min(load.draft_lags) if is_single_request else sum(load.draft_lags)
                loss_s += self.read_costs.seconds(lag)
                if not self._is_too_expensive(2 * loss_s, num_rounds, forecast.seconds[0]):
                    self._exploration = exploration
                    return self._continue_exploration(exploration, load)
        return self._decision(0, 0, load)

    def _loss_over_off(self, exploration: _Exploration, forecast: _Forecast, load: BatchLoad) -> float:
        """Returns the seconds that a round of the exploration loses compared with plain decoding.

        The time in which the drafter reads lagging tokens is not included.
        """
        arm, off_s = exploration.arm, forecast.seconds[0]
        if not exploration.is_single_request:
            return forecast.seconds[arm] - forecast.tokens[arm] * off_s / forecast.tokens[0]
        request = _argmin(load.draft_lags)
        one = self._forecast(BatchLoad(load.contexts[request : request + 1], (0,)))
        return one.seconds[arm] - one.seconds[0] - (one.tokens[arm] - 1) * off_s / forecast.tokens[0]

    def _is_too_expensive(self, loss_s: float, num_rounds: int, best_s: float) -> bool:
        """Decides at random whether an exploration is skipped, so that all together cost at most EXPLORE_LOSS.

        Args:
            loss_s: The expected loss of the exploration in seconds.
            num_rounds: The number of rounds of the exploration.
            best_s: The seconds of a round of the best arm.

        Returns:
            True if the exploration is skipped.
        """
        return self._random.random() * EXPLORE * loss_s > EXPLORE_LOSS * best_s * num_rounds

    def _continue_exploration(self, exploration: _Exploration, load: BatchLoad) -> SpeculationDecision:
        only = _argmin(load.draft_lags) if exploration.is_single_request else None
        return self._decision(exploration.arm, 0, load, only)

    def _decision(self, arm: int, best: int, load: BatchLoad, only: int | None = None) -> SpeculationDecision:
        count, can = len(load.contexts), arm > 0
        drafts = (can,) * count if only is None else tuple(can and request == only for request in range(count))
        return SpeculationDecision(self.arms[arm], drafts, self.arms[best], load)


def _change_bucket(left: Incumbent | None, come: Incumbent | None) -> None:
    """Ends the stay of the batch size in one bucket, and prepares a comparison of all arms in the other one."""
    if left is not None:
        left.end_stay()
    if come is not None:  # meanwhile, the rounds of other buckets may have changed the expected acceptance
        come.rounds_to_skip, come.num_times_beaten = 0, SWITCH_ROUNDS - 1


def _argmin(values: Sequence[int]) -> int:
    return min(range(len(values)), key=values.__getitem__)


def _exploration_weights(best: int, forecast: _Forecast) -> dict[int, float]:
    """Returns the arms to explore, each with its weight: the relative frequency with which it is chosen."""
    # While `off` is best, the smallest drafting arm gets its weight: one draft token is a cheap trial of the head.
    weights = {1 if best == 0 else 0: EXPLORE_OFF}
    for neighbor in (best - 1, best + 1):
        if 0 <= neighbor < len(forecast.seconds):
            weights[neighbor] = weights.get(neighbor, 0.0) + EXPLORE_NEIGHBOR
    rates = [tokens / seconds for tokens, seconds in zip(forecast.optimistic, forecast.seconds, strict=True)]
    promising = max((arm for arm in range(1, len(rates)) if arm != best), key=rates.__getitem__)
    weights[promising] = weights.get(promising, 0.0) + EXPLORE_PROMISING
    return weights
