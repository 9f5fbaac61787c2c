"""Live acceptance beside what the report promised, slice by slice, and whether to train again.

    verdict        of a slice with LEAST_ROUNDS rounds of LEAST_REQUESTS answers or more
    worse          the live 95% interval ends below the promise's own interval and below (1 - MARGIN) of its figure
    better         likewise above
    as before      anything else
    too few        fewer rounds, or none with the tree of the promise
    no promise     the report has no such slice

Train again: where a slice is worse that holds SHARE of the answers at its temperature, as "all" does. All answers count
there: slices are promised with trees of their own, and a server may run some of them seldom. Intervals that do not
touch are a stricter test than 5%, so that ten slices at once do not cry wolf. MARGIN is what may change without any
drift: a tree that is a piece of a larger one, bfloat16, a batch that shares its nodes.
"""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from eyas.base.errors import InputError
from eyas.monitoring.acceptance_log import AcceptanceRecord, temperature_slice
from eyas.monitoring.reported_acceptance import ReferenceAcceptance, ReportedAcceptance, TrafficSlice
from eyas.tree.stats import Interval, ratio_interval

SCHEMA = 1
MIN_ROUNDS = 200
MIN_REQUESTS = 10  # tree.stats: a bootstrap over fewer is too narrow
MARGIN = 0.05
MIN_SHARE = 0.1
SEED = 0

Verdict = Literal["worse", "as before", "better", "too few", "no promise"]
Recommendation = Literal["retrain", "keep", "unknown"]
RECOMMENDATION_TEXTS = {
    "retrain": "train again: the head accepts less than its report promised",
    "keep": "no need to train: the head accepts what its report promised",
    "unknown": "nothing can be said yet",
}


@dataclass(frozen=True)
class SliceComparison:
    """One slice. requests: its answers with rounds that can be compared. live, interval: None where there is none.

    share: of the answers at its temperature, whatever trees they ran.
    """

    slice: TrafficSlice
    reference: ReferenceAcceptance | None
    share: float
    requests: int
    rounds: int
    live_length: float | None
    interval: Interval | None
    verdict: Verdict

    @property
    def difference(self) -> float | None:
        """Live over promised, less 1."""
        return (
            None if self.live_length is None or self.reference is None else self.live_length / self.reference.length - 1
        )

    def to_json(self) -> dict[str, Any]:
        promise, interval = self.reference, self.interval
        return {
            "slice": self.slice.kind,
            "name": self.slice.name or None,
            "temperature": self.slice.temperature,
            "tree": None if promise is None else promise.tree,
            "share": self.share,
            "requests": self.requests,
            "rounds": self.rounds,
            "acceptance_length": self.live_length,
            "ci95": None if interval is None else [interval.low, interval.high],
            "reference": None if promise is None else promise.length,
            "reference_ci95": None if promise is None else [promise.interval.low, promise.interval.high],
            "difference": self.difference,
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class DriftReport:
    """What was found. others: answers of other heads, left out."""

    recommendation: Recommendation
    head: str
    num_requests: int
    num_other_heads: int
    comparisons: tuple[SliceComparison, ...]

    def to_json(self) -> dict[str, Any]:
        fields = {"head": self.head, "requests": self.num_requests, "requests_of_other_heads": self.num_other_heads}
        rules = {"least_rounds": MIN_ROUNDS, "least_requests": MIN_REQUESTS, "margin": MARGIN, "share": MIN_SHARE}
        slices = [row.to_json() for row in self.comparisons]
        return {"schema": SCHEMA, "verdict": self.recommendation, **fields, "rules": rules, "slices": slices}


def compare_acceptance(
    report: ReportedAcceptance, lines: Sequence[AcceptanceRecord], since: datetime.datetime | None = None
) -> DriftReport:
    """since: older answers are left out. InputError where no answer is left, or all are of other heads."""
    recent = [one for one in lines if since is None or _record_time(one) >= since]
    mine = [one for one in recent if one.head == report.head]
    if not mine:
        if not recent:
            raise InputError("no answer in the log", "rounds of the head that is served", "wait for traffic")
        heads = ", ".join(sorted({one.head for one in recent}))
        raise InputError(
            f"answers of the head {heads} alone",
            f"of {report.head}, which the report is of",
            "name the run of that head",
        )
    rows = tuple(_compare_slice(part, report.references.get(part), mine) for part in _list_slices(report, mine))
    return DriftReport(_recommend(rows), report.head, len(mine), len(recent) - len(mine), rows)


def format_report(drift: DriftReport) -> str:
    """For a terminal."""
    head = f"{'slice':<28}{'answers':>8}{'rounds':>8}{'live (95 %)':>22}{'promised (95 %)':>22}{'change':>9}  verdict"
    lines = [head]
    for row in drift.comparisons:
        name = f"{row.slice.kind} {row.slice.name}".strip() + f", temperature {row.slice.temperature}"
        promised = None if row.reference is None else row.reference.length
        span = None if row.reference is None else row.reference.interval
        change = "" if row.difference is None else f"{row.difference:+.1%}"
        lines.append(
            f"{name:<28}{row.requests:>8}{row.rounds:>8}{_format_length(row.live_length, row.interval):>22}"
            f"{_format_length(promised, span):>22}{change:>9}  {row.verdict}"
        )
    return "\n".join([*lines, RECOMMENDATION_TEXTS[drift.recommendation]])


def _format_length(value: float | None, interval: Interval | None) -> str:
    return "" if value is None or interval is None else f"{value:.2f} ({interval.low:.2f}-{interval.high:.2f})"


def _list_slices(report: ReportedAcceptance, lines: Iterable[AcceptanceRecord]) -> list[TrafficSlice]:
    """Every slice that was promised or is there, by temperature, the whole first."""
    found = set(report.references)
    for one in lines:
        temperature = temperature_slice(one.temperature)
        found.add(TrafficSlice(temperature, "all"))
        found |= {TrafficSlice(temperature, "context", context) for context in one.rounds}
        if one.task is not None:
            found.add(TrafficSlice(temperature, "task", one.task))
    order = ("all", "task", "context")
    return sorted(found, key=lambda part: (part.temperature, order.index(part.kind), len(part.name), part.name))


def _compare_slice(
    part: TrafficSlice, promise: ReferenceAcceptance | None, lines: Iterable[AcceptanceRecord]
) -> SliceComparison:
    whole = [one for one in lines if temperature_slice(one.temperature) == part.temperature]
    contexts = (part.name,) if part.kind == "context" else None
    some = [one for one in whole if _belongs(one, part)]
    share = len(some) / len(whole) if whole else 0.0
    if promise is None:
        return SliceComparison(part, None, share, len(some), 0, None, None, "no promise")
    pairs = [_count_rounds(one.rounds, promise.tree, contexts) for one in some]
    rounds = np.array([rounds for rounds, _ in pairs if rounds], dtype=np.int64)
    tokens = np.array([tokens for rounds, tokens in pairs if rounds], dtype=np.int64)
    if not len(rounds):
        return SliceComparison(part, promise, share, 0, 0, None, None, "too few")
    total, interval = int(rounds.sum()), ratio_interval(tokens, rounds, SEED)
    verdict = _verdict(promise, interval) if total >= MIN_ROUNDS and len(rounds) >= MIN_REQUESTS else "too few"
    return SliceComparison(part, promise, share, len(rounds), total, float(tokens.sum() / total), interval, verdict)


def _belongs(one: AcceptanceRecord, part: TrafficSlice) -> bool:
    """Of an answer at the slice's temperature."""
    if part.kind == "all":
        return True
    return one.task == part.name if part.kind == "task" else part.name in one.rounds


def _count_rounds(
    rounds: Mapping[str, Mapping[str, tuple[int, int]]], tree: str, contexts: tuple[str, ...] | None
) -> tuple[int, int]:
    """Rounds and tokens with one tree."""
    some = [trees[tree] for name, trees in rounds.items() if tree in trees and (contexts is None or name in contexts)]
    return sum(count for count, _ in some), sum(tokens for _, tokens in some)


def _verdict(reference: ReferenceAcceptance, live: Interval) -> Verdict:
    if live.high < min(reference.interval.low, reference.length * (1 - MARGIN)):
        return "worse"
    return "better" if live.low > max(reference.interval.high, reference.length * (1 + MARGIN)) else "as before"


def _recommend(rows: Sequence[SliceComparison]) -> Recommendation:
    judged = [row for row in rows if row.verdict in ("worse", "as before", "better")]
    if any(row.verdict == "worse" and row.share >= MIN_SHARE for row in judged):
        return "retrain"
    return "keep" if judged else "unknown"


def _record_time(one: AcceptanceRecord) -> datetime.datetime:
    return datetime.datetime.fromisoformat(one.time)
