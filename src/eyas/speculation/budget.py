"""Which arm the next round runs: the one with the most expected tokens per second, so that speculation never costs.

    tokens per second of an arm = sum over requests of E[tokens | arm, context]  /  seconds(arm, batch, contexts)
                                  `acceptance`                                      `pace`, over the table of `costs`

Switching. An arm stays until another is better by SWITCH_GAIN in SWITCH_ROUNDS rounds in a row, by batch bucket. A head
that lags has rows to read before it drafts again; those seconds are spread over PAYBACK_ROUNDS.

Surveying. Tables err, and an arm that looks dear would not be run for long. So in each batch bucket every second round
goes to an arm that may be the best for all that is known of its cost, until that is known to SURVEY_DOUBT.

Exploring. One round in a hundred runs another arm, by chance: off, which is the baseline of `speed_up`; the next
smaller and the next larger arm; and the arm that would be best if its acceptance were a little better than
thought. Where that would cost more than EXPLORE_LOSS of the throughput, it happens less often. While off is best, the
head has read nothing of late and must catch up first: then a trial is ENCORES rounds longer and that much rarer.

Requests with their own wish. One with speculation "off" adds a row whatever the arm: `Load.fixed`. One with "max" is no
part of the decision: the engine gives it rounds of its own with the largest tree, whose seconds are not reported (they
are not what the budget chose), while what it accepts is evidence like any other.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eyas.speculation.acceptance_model import AcceptanceModel
from eyas.speculation.arms import Arm
from eyas.speculation.latency_model import LatencyModel
from eyas.speculation.policy import BatchLoad, RoundReport, SpeculationDecision
from eyas.speculation.round_costs import CostTable
from eyas.speculation.speedup import CAP, SpeedupEstimate, SpeedupEstimator, Stratum

SWITCH_GAIN = 0.02
SWITCH_ROUNDS = 4
CATCH_UP = 0.2  # a round that reads more than this share of its seconds for the head's lag says little of its arm
DOUBT = 0.5  # `optimistic` raises all depths at once; independent errors add up to about half of that
PAYBACK_ROUNDS = 500
EXPLORE = 0.01  # of rounds
EXPLORE_LOSS = 0.005  # of throughput
EXPLORE_OFF, EXPLORE_NEAR, EXPLORE_HOPE = 0.3, 0.15, 0.4  # shares; NEAR for each side
ENCORES = 3
SURVEY_DOUBT = 0.02  # of a cost, as a share: below it there is nothing to survey
SURVEY_ROUNDS = 32  # of one arm, at most
PACE_EVERY = 4  # of the rounds between comparisons one is timed for the pace
REST_ROUNDS = 7  # nothing changes from round to round: comparing all arms takes as long as a layer


@dataclass
class _Incumbent:
    """The arm that a batch bucket runs, for how many rounds in a row another was better, and which arms it surveyed."""

    arm: int
    survey_rounds: list[int]
    num_times_beaten: int = 0
    is_surveying: bool = False
    has_unsurveyed: bool = True  # whether a further arm waits to be surveyed
    rounds_to_skip: int = 0  # rounds before the arms are compared again


@dataclass
class _RoundRun:
    """Rounds of one kind in a row, counted together: counting takes longer than adding up."""

    choice: SpeculationDecision
    seconds: float
    tokens: int
    rounds: int = 1

    def is_like(self, choice: SpeculationDecision) -> bool:
        """Whether a round is of this kind."""
        mine = self.choice
        return (mine.arm, mine.best_arm, mine.load.num_requests) == (
            choice.arm,
            choice.best_arm,
            choice.load.num_requests,
        )

    def add(self, seconds: float, tokens: int) -> None:
        """One more."""
        self.seconds, self.tokens, self.rounds = self.seconds + seconds, self.tokens + tokens, self.rounds + 1


@dataclass
class _Exploration:
    """An arm that is tried while off is best, and for how many further rounds. is_alone: by one request."""

    arm: int
    is_single_request: bool
    rounds_left: int


@dataclass(frozen=True)
class _Forecast:
    """By arm, for one load: tokens and seconds of a round, and tokens if acceptance were a little better."""

    tokens: Sequence[float]
    optimistic: Sequence[float]
    seconds: Sequence[float]


class Budget:
    """Decides round by round and learns from what comes back. All on the host; one object an engine."""

    def __init__(
        self, arms: Sequence[Arm], table: CostTable, catch_up_seconds: Callable[[int], float], seed: int = 0
    ) -> None:
        """arms: by rows, the first is off. warm_cost: seconds in which the head reads so many rows."""
        assert arms[0].shape is None, "the first arm is off"
        assert table.arms == tuple(arm.name for arm in arms), "a table of these arms"
        assert [arm.nodes for arm in arms] == sorted(arm.nodes for arm in arms), "arms by rows"
        self.arms = tuple(arms)
        self.latency_model = LatencyModel(table)
        self.acceptance_model = AcceptanceModel(arms)
        self.num_switches = 0
        self._catch_up_seconds = catch_up_seconds
        self._speed_ups = SpeedupEstimator()
        self._numbers = {arm: number for number, arm in enumerate(arms)}
        self._incumbents: dict[int, _Incumbent] = {}
        self._exploration: _Exploration | None = None
        self._round_run: _RoundRun | None = None
        self._random = random.Random(seed)

    def decide(self, load: BatchLoad) -> SpeculationDecision:
        """The arm of the next round. At least one request follows it."""
        assert load.contexts, "nobody follows the arm"
        bucket = self.latency_model.bucket(load.num_requests)
        if (known := self._incumbents.get(bucket)) is not None and known.rounds_to_skip > 0 and not self._is_exploring:
            known.rounds_to_skip -= 1
            if self._random.random() >= EXPLORE:
                return self._decision(known.arm, known.arm, load)
            return self._explore(known.arm, self._forecast(load), load)
        outlook = self._forecast(load)
        lag = sum(load.draft_lags)
        warm_s = self._catch_up_seconds(lag) if lag else 0.0
        rates = [
            tokens / (seconds + warm_s / PAYBACK_ROUNDS * (arm > 0))
            for arm, (tokens, seconds) in enumerate(zip(outlook.tokens, outlook.seconds, strict=True))
        ]
        incumbent = self._update_incumbent(bucket, outlook, rates)
        may_survey = warm_s <= outlook.seconds[0]
        if may_survey and (arm := self._arm_to_survey(bucket, incumbent, rates)) is not None:
            incumbent.survey_rounds[arm] += 1
            return self._decision(arm, incumbent.arm, load)
        if incumbent.arm == 0 and self._exploration is not None and self._is_exploring:
            self._exploration.rounds_left -= 1
            return self._explore_on(self._exploration, load)
        if not incumbent.num_times_beaten and not (incumbent.has_unsurveyed and may_survey):
            incumbent.rounds_to_skip = REST_ROUNDS
        if self._random.random() < EXPLORE:
            return self._explore(incumbent.arm, outlook, load)
        return self._decision(incumbent.arm, incumbent.arm, load)

    @property
    def _is_exploring(self) -> bool:
        return self._exploration is not None and self._exploration.rounds_left > 0

    def observe(self, report: RoundReport) -> None:
        """Learn from a round."""
        if report.seconds is not None:
            self._observe_seconds(report.decision, report.seconds, report.num_tokens)
        self.acceptance_model.observe(report.traces)

    def _observe_seconds(self, choice: SpeculationDecision, seconds: float, tokens: int) -> None:
        known = self._incumbents.get(self.latency_model.bucket(choice.load.num_requests))
        is_old_news = known is not None and known.rounds_to_skip % PACE_EVERY > 0 and not choice.is_exploration
        gathered = self._round_run
        if gathered is not None and not (is_old_news and gathered.is_like(choice)):
            self._round_run = None
            self._count(gathered.choice, gathered.seconds, gathered.tokens, gathered.rounds)
            gathered = None
        if not is_old_news:
            self._time(choice, seconds, self._count(choice, seconds, tokens, 1))
        elif gathered is None:
            self._round_run = _RoundRun(choice, seconds, tokens)
        else:
            gathered.add(seconds, tokens)

    def _count(self, choice: SpeculationDecision, seconds: float, tokens: int, rounds: int) -> float:
        """Rounds of one kind, for the speed-up. Returns what was foreseen for catching up, in seconds."""
        load, arm = choice.load, self._numbers[choice.arm]
        lag = sum(lag for lag, drafts in zip(load.draft_lags, choice.drafts, strict=True) if drafts)
        warm_s = self._catch_up_seconds(lag) if lag else 0.0
        foreseen_s = (self.latency_model.seconds_of(arm, load) + warm_s) * rounds
        off_s = (
            self.latency_model.seconds_without_offset(0, load) * tokens / load.num_requests
        )  # off gives each request one token a round
        stratum = Stratum(self.latency_model.bucket(load.num_requests), choice.best_arm.shape is None)
        self._speed_ups.observe(stratum, arm == 0, min(seconds, CAP * foreseen_s), off_s)
        return warm_s

    def _time(self, choice: SpeculationDecision, seconds: float, warm_s: float) -> None:
        """A round, for the pace of its arm, unless it was spent on catching up."""
        arm = self._numbers[choice.arm]
        if not choice.is_partial and warm_s < CATCH_UP * self.latency_model.seconds_of(arm, choice.load):
            self.latency_model.observe(arm, choice.load, max(seconds - warm_s, seconds * (1 - CATCH_UP)))

    def speedup(self) -> SpeedupEstimate | None:
        """How much faster than without speculation; None until off has run a few times."""
        return self._speed_ups.overall()

    def _forecast(self, load: BatchLoad) -> _Forecast:
        expected = [self.acceptance_model.expected(context) for context in load.contexts]
        alone = len(load.plain_contexts)
        tokens = [alone + sum(by_arm) for by_arm in zip(*(one.tokens for one in expected), strict=True)]
        optimistic = [alone + sum(by_arm) for by_arm in zip(*(one.optimistic for one in expected), strict=True)]
        return _Forecast(tokens, optimistic, self.latency_model.seconds(load))

    def _update_incumbent(self, bucket: int, outlook: _Forecast, rates: Sequence[float]) -> _Incumbent:
        """The best arm of this bucket, with patience."""
        top = max(range(len(rates)), key=rates.__getitem__)
        incumbent = self._incumbents.setdefault(bucket, _Incumbent(top, [0] * len(rates)))
        gain = SWITCH_GAIN
        if top < incumbent.arm:
            # A smaller arm says nothing about the larger one: leave that only as surely as it is known.
            doubt = outlook.optimistic[incumbent.arm] / outlook.tokens[incumbent.arm] - 1
            gain = max(gain, DOUBT * doubt)
        if rates[top] <= rates[incumbent.arm] * (1 + gain):
            incumbent.num_times_beaten = 0
            return incumbent
        incumbent.num_times_beaten += 1
        if incumbent.num_times_beaten >= SWITCH_ROUNDS:
            incumbent.arm, incumbent.num_times_beaten = top, 0
            self.num_switches += 1
        return incumbent

    def _arm_to_survey(self, bucket: int, incumbent: _Incumbent, rates: Sequence[float]) -> int | None:
        """The arm to survey, every second round: the one whose cost is least known, of those that may be the best."""
        incumbent.is_surveying = not incumbent.is_surveying
        if not incumbent.is_surveying:
            return None
        doubts = self.latency_model.ratio_sds(bucket, incumbent.arm)
        best = rates[incumbent.arm]
        due = [
            arm
            for arm, (rate, doubt) in enumerate(zip(rates, doubts, strict=True))
            if doubt > SURVEY_DOUBT and rate * (1 + 2 * doubt) > best and incumbent.survey_rounds[arm] < SURVEY_ROUNDS
        ]
        incumbent.has_unsurveyed = bool(due)
        return max(due, key=doubts.__getitem__, default=None)

    def _explore(self, best: int, outlook: _Forecast, load: BatchLoad) -> SpeculationDecision:
        """Another arm, unless it costs too much."""
        shares = self._exploration_shares(best, outlook)
        arm = self._random.choices(list(shares), list(shares.values()))[0]
        if best == 0:
            return self._explore_from_off(arm, outlook, load)
        loss_s = outlook.seconds[arm] - outlook.tokens[arm] * outlook.seconds[best] / outlook.tokens[best]
        if self._is_too_expensive(loss_s, 1, outlook.seconds[best]):
            arm = best
        return self._decision(arm, best, load)

    def _explore_from_off(self, arm: int, outlook: _Forecast, load: BatchLoad) -> SpeculationDecision:
        """The whole batch, or if its catching up is too dear, the one request that lags least: it says as much about
        acceptance, though nothing about the arm's cost. Each may use half of what exploring may cost.
        """
        rounds = 1 + ENCORES
        if self._random.random() * rounds < 1:  # a trial goes on for as many rounds, so it starts that much more rarely
            for trial in (_Exploration(arm, False, ENCORES), _Exploration(arm, True, ENCORES)):
                loss_s = rounds * self._loss_over_off(trial, outlook, load)
                lag = min(load.draft_lags) if trial.is_single_request else sum(load.draft_lags)
                loss_s += self._catch_up_seconds(lag) if lag else 0.0
                if not self._is_too_expensive(2 * loss_s, rounds, outlook.seconds[0]):
                    self._exploration = trial
                    return self._explore_on(trial, load)
        return self._decision(0, 0, load)

    def _loss_over_off(self, trial: _Exploration, outlook: _Forecast, load: BatchLoad) -> float:
        """Seconds that a round of the trial loses on off, catching up apart."""
        arm, off_s = trial.arm, outlook.seconds[0]
        if not trial.is_single_request:
            return outlook.seconds[arm] - outlook.tokens[arm] * off_s / outlook.tokens[0]
        place = _argmin(load.draft_lags)
        one = self._forecast(BatchLoad(load.contexts[place : place + 1], (0,)))
        return one.seconds[arm] - one.seconds[0] - (one.tokens[arm] - 1) * off_s / outlook.tokens[0]

    def _is_too_expensive(self, loss_s: float, rounds: int, best_s: float) -> bool:
        """By chance, so often that what is explored costs EXPLORE_LOSS at most. loss_s: of so many rounds together."""
        return self._random.random() * EXPLORE * loss_s > EXPLORE_LOSS * best_s * rounds

    def _explore_on(self, trial: _Exploration, load: BatchLoad) -> SpeculationDecision:
        return self._decision(trial.arm, 0, load, _argmin(load.draft_lags) if trial.is_single_request else None)

    def _decision(self, arm: int, best: int, load: BatchLoad, alone: int | None = None) -> SpeculationDecision:
        drafts = tuple(arm > 0 and alone in (None, place) for place in range(len(load.contexts)))
        return SpeculationDecision(self.arms[arm], drafts, self.arms[best], load)

    def _exploration_shares(self, best: int, outlook: _Forecast) -> dict[int, float]:
        """Which arms are worth a look, and how much of the exploring goes to each."""
        # From off, the smallest arm takes the share of off: its one guess says for little whether the head is of use.
        shares = {1 if best == 0 else 0: EXPLORE_OFF}
        for near in (best - 1, best + 1):
            if 0 <= near < len(self.arms):
                shares[near] = shares.get(near, 0.0) + EXPLORE_NEAR
        hopes = [tokens / seconds for tokens, seconds in zip(outlook.optimistic, outlook.seconds, strict=True)]
        hope = max((arm for arm in range(1, len(hopes)) if arm != best), key=hopes.__getitem__)
        shares[hope] = shares.get(hope, 0.0) + EXPLORE_HOPE
        return shares


def _argmin(lags: Sequence[int]) -> int:
    return min(range(len(lags)), key=lags.__getitem__)
