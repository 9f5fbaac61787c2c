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
from eyas.monitoring.acceptance_log import Heard, temperature_of
from eyas.monitoring.reported_acceptance import Promise, Report, Slice
from eyas.tree.stats import Interval, ratio_interval

SCHEMA = 1
LEAST_ROUNDS = 200
LEAST_REQUESTS = 10  # tree.stats: a bootstrap over fewer is too narrow
MARGIN = 0.05
SHARE = 0.1
SEED = 0

Verdict = Literal["worse", "as before", "better", "too few", "no promise"]
Advice = Literal["retrain", "keep", "unknown"]
SAID = {
    "retrain": "train again: the head accepts less than its report promised",
    "keep": "no need to train: the head accepts what its report promised",
    "unknown": "nothing can be said yet",
}


@dataclass(frozen=True)
class Row:
    """One slice. requests: its answers with rounds that can be compared. live, interval: None where there is none.

    share: of the answers at its temperature, whatever trees they ran.
    """

    slice: Slice
    promise: Promise | None
    share: float
    requests: int
    rounds: int
    live: float | None
    interval: Interval | None
    verdict: Verdict

    @property
    def difference(self) -> float | None:
        """Live over promised, less 1."""
        return None if self.live is None or self.promise is None else self.live / self.promise.length - 1

    def to_json(self) -> dict[str, Any]:
        promise, interval = self.promise, self.interval
        return {
            "slice": self.slice.kind,
            "name": self.slice.name or None,
            "temperature": self.slice.temperature,
            "tree": None if promise is None else promise.tree,
            "share": self.share,
            "requests": self.requests,
            "rounds": self.rounds,
            "acceptance_length": self.live,
            "ci95": None if interval is None else [interval.low, interval.high],
            "reference": None if promise is None else promise.length,
            "reference_ci95": None if promise is None else [promise.interval.low, promise.interval.high],
            "difference": self.difference,
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class Drift:
    """What was found. others: answers of other heads, left out."""

    advice: Advice
    head: str
    requests: int
    others: int
    rows: tuple[Row, ...]

    def to_json(self) -> dict[str, Any]:
        fields = {"head": self.head, "requests": self.requests, "requests_of_other_heads": self.others}
        rules = {"least_rounds": LEAST_ROUNDS, "least_requests": LEAST_REQUESTS, "margin": MARGIN, "share": SHARE}
        slices = [row.to_json() for row in self.rows]
        return {"schema": SCHEMA, "verdict": self.advice, **fields, "rules": rules, "slices": slices}


def compare(report: Report, lines: Sequence[Heard], since: datetime.datetime | None = None) -> Drift:
    """since: older answers are left out. InputError where no answer is left, or all are of other heads."""
    recent = [one for one in lines if since is None or _time(one) >= since]
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
    rows = tuple(_row(part, report.promises.get(part), mine) for part in _parts(report, mine))
    return Drift(_advice(rows), report.head, len(mine), len(recent) - len(mine), rows)


def describe(drift: Drift) -> str:
    """For a terminal."""
    head = f"{'slice':<28}{'answers':>8}{'rounds':>8}{'live (95 %)':>22}{'promised (95 %)':>22}{'change':>9}  verdict"
    lines = [head]
    for row in drift.rows:
        name = f"{row.slice.kind} {row.slice.name}".strip() + f", temperature {row.slice.temperature}"
        promised = None if row.promise is None else row.promise.length
        span = None if row.promise is None else row.promise.interval
        change = "" if row.difference is None else f"{row.difference:+.1%}"
        lines.append(
            f"{name:<28}{row.requests:>8}{row.rounds:>8}{_figure(row.live, row.interval):>22}"
            f"{_figure(promised, span):>22}{change:>9}  {row.verdict}"
        )
    return "\n".join([*lines, SAID[drift.advice]])


def _figure(value: float | None, interval: Interval | None) -> str:
    return "" if value is None or interval is None else f"{value:.2f} ({interval.low:.2f}-{interval.high:.2f})"


def _parts(report: Report, lines: Iterable[Heard]) -> list[Slice]:
    """Every slice that was promised or is there, by temperature, the whole first."""
    found = set(report.promises)
    for one in lines:
        temperature = temperature_of(one.temperature)
        found.add(Slice(temperature, "all"))
        found |= {Slice(temperature, "context", context) for context in one.rounds}
        if one.task is not None:
            found.add(Slice(temperature, "task", one.task))
    order = ("all", "task", "context")
    return sorted(found, key=lambda part: (part.temperature, order.index(part.kind), len(part.name), part.name))


def _row(part: Slice, promise: Promise | None, lines: Iterable[Heard]) -> Row:
    whole = [one for one in lines if temperature_of(one.temperature) == part.temperature]
    contexts = (part.name,) if part.kind == "context" else None
    some = [one for one in whole if _is_in(one, part)]
    share = len(some) / len(whole) if whole else 0.0
    if promise is None:
        return Row(part, None, share, len(some), 0, None, None, "no promise")
    pairs = [_counts(one.rounds, promise.tree, contexts) for one in some]
    rounds = np.array([rounds for rounds, _ in pairs if rounds], dtype=np.int64)
    tokens = np.array([tokens for rounds, tokens in pairs if rounds], dtype=np.int64)
    if not len(rounds):
        return Row(part, promise, share, 0, 0, None, None, "too few")
    total, interval = int(rounds.sum()), ratio_interval(tokens, rounds, SEED)
    verdict = _verdict(promise, interval) if total >= LEAST_ROUNDS and len(rounds) >= LEAST_REQUESTS else "too few"
    return Row(part, promise, share, len(rounds), total, float(tokens.sum() / total), interval, verdict)


def _is_in(one: Heard, part: Slice) -> bool:
    """Of an answer at the slice's temperature."""
    if part.kind == "all":
        return True
    return one.task == part.name if part.kind == "task" else part.name in one.rounds


def _counts(
    rounds: Mapping[str, Mapping[str, tuple[int, int]]], tree: str, contexts: tuple[str, ...] | None
) -> tuple[int, int]:
    """Rounds and tokens with one tree."""
    some = [trees[tree] for name, trees in rounds.items() if tree in trees and (contexts is None or name in contexts)]
    return sum(count for count, _ in some), sum(tokens for _, tokens in some)


def _verdict(promise: Promise, live: Interval) -> Verdict:
    if live.high < min(promise.interval.low, promise.length * (1 - MARGIN)):
        return "worse"
    return "better" if live.low > max(promise.interval.high, promise.length * (1 + MARGIN)) else "as before"


def _advice(rows: Sequence[Row]) -> Advice:
    judged = [row for row in rows if row.verdict in ("worse", "as before", "better")]
    if any(row.verdict == "worse" and row.share >= SHARE for row in judged):
        return "retrain"
    return "keep" if judged else "unknown"


def _time(one: Heard) -> datetime.datetime:
    return datetime.datetime.fromisoformat(one.time)
