"""Compares live acceptance with the report of a run, slice by slice, and recommends training or not (`eyas drift`).

    report/results.json     acceptance by task, greedy, with the tree of bench.*; it wins over eval/ for the same slice
    eval/acceptance.json    acceptance of all answers, by task and by context, at their temperature, with its own tree

    verdict        of a slice with MIN_ROUNDS rounds of MIN_REQUESTS outputs or more
    worse          the live 95% interval ends below the report's interval and below (1 - MARGIN) of its figure
    better         likewise above
    as before      anything else
    too few        fewer rounds, or none with the tree of the report
    no promise     the report has no such slice

Training is recommended where a slice is worse that holds MIN_SHARE of the outputs at its temperature, as "all" does.
All outputs count there: the slices of a report have trees of their own, and a server may run some of them seldom.
Intervals that do not touch are a stricter test than 5%, so that ten slices at once give few false alarms. MARGIN covers
what changes without any drift: a tree that is a part of a larger one, bfloat16, a batch that shares its nodes.
"""

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from eyas.base.config import build, load_toml
from eyas.base.errors import InputError
from eyas.base.provenance import require_finished
from eyas.bench.results import RESULTS_FILE
from eyas.bench.results import SCHEMA as RESULTS_SCHEMA
from eyas.evaluation.evaluate import SCHEMA as ACCEPTANCE_SCHEMA
from eyas.monitoring.acceptance_log import AcceptanceRecord, temperature_slice
from eyas.recipe import RECIPE_FILE, Recipe
from eyas.tree.intervals import Interval, ratio_interval
from eyas.tree.shape import TreeShape

SCHEMA = 1
ACCEPTANCE_FILE = "acceptance.json"
MIN_ROUNDS = 200
MIN_REQUESTS = 10  # tree.acceptance_length: a bootstrap over fewer is too narrow
MARGIN = 0.05
MIN_SHARE = 0.1
SEED = 0
SLICE_KINDS = ("all", "task", "context")

Verdict = Literal["worse", "as before", "better", "too few", "no promise"]
Recommendation = Literal["retrain", "keep", "unknown"]
RECOMMENDATION_TEXTS = {
    "retrain": "Train again: the head accepts fewer tokens than its report says.",
    "keep": "No training is needed: the head accepts as many tokens as its report says.",
    "unknown": "There is too little comparable traffic for a recommendation.",
}


@dataclass(frozen=True)
class TrafficSlice:
    """A part of the traffic. kind: one of SLICE_KINDS. name: of the task or the context. See `temperature_slice`."""

    temperature: str
    kind: str
    name: str = ""


class ReferenceAcceptance(BaseModel):
    """The acceptance length of a report. tree: "DEPTH,TOP_K,NODES" with which it was measured."""

    acceptance_length: float
    ci95: tuple[float, float]
    tree: str = ""


@dataclass(frozen=True)
class ReportedAcceptance:
    """The figures of a run. head: the digest of its head."""

    head: str
    recipe: Recipe
    references: Mapping[TrafficSlice, ReferenceAcceptance]


@dataclass(frozen=True)
class SliceComparison:
    """One slice, live and in the report. The fields are the keys of `eyas drift --json`.

    slice, name, temperature   the slice; slice is its kind
    tree                       the tree of the report
    share                      the slice's share of the outputs at its temperature, whatever trees they ran
    requests, rounds           outputs with rounds of that tree, and these rounds
    acceptance_length, ci95    of the live rounds
    reference, reference_ci95  of the report
    difference                 the live acceptance length over the report's, less 1
    """

    slice: str
    name: str | None
    temperature: str
    tree: str | None
    share: float
    requests: int
    rounds: int = 0
    acceptance_length: float | None = None
    ci95: tuple[float, float] | None = None
    reference: float | None = None
    reference_ci95: tuple[float, float] | None = None
    difference: float | None = None
    verdict: Verdict = "too few"


@dataclass(frozen=True)
class DriftReport:
    """The comparison of all slices. num_other_heads: outputs of other heads, which are left out."""

    recommendation: Recommendation
    head: str
    num_requests: int
    num_other_heads: int
    slices: tuple[SliceComparison, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the object of `eyas drift --json`."""
        fields = {"head": self.head, "requests": self.num_requests, "requests_of_other_heads": self.num_other_heads}
        rules = {"least_rounds": MIN_ROUNDS, "least_requests": MIN_REQUESTS, "margin": MARGIN, "share": MIN_SHARE}
        slices = [asdict(row) for row in self.slices]
        return {"schema": SCHEMA, "verdict": self.recommendation, **fields, "rules": rules, "slices": slices}

    def to_text(self) -> str:
        """Returns a table for a terminal."""
        names = f"{'slice':<28}{'outputs':>8}{'rounds':>8}{'live (95 %)':>22}{'report (95 %)':>22}{'change':>9}"
        lines = [f"{names}  verdict"]
        for row in self.slices:
            name = f"{row.slice} {row.name or ''}".strip() + f", temperature {row.temperature}"
            live, reference = _format(row.acceptance_length, row.ci95), _format(row.reference, row.reference_ci95)
            change = "" if row.difference is None else f"{row.difference:+.1%}"
            cells = f"{row.requests:>8}{row.rounds:>8}{live:>22}{reference:>22}{change:>9}"
            lines.append(f"{name:<28}{cells}  {row.verdict}")
        return "\n".join([*lines, RECOMMENDATION_TEXTS[self.recommendation]])


# --- the report of a run ---------------------------------------------------------------------------------------------


class _Results(BaseModel):
    tasks: dict[str, ReferenceAcceptance]


class _Whole(ReferenceAcceptance):
    by_context: dict[str, ReferenceAcceptance]


class _Evaluation(_Results):
    tree: TreeShape
    temperature: float | None = None
    all: _Whole | None = None


File = TypeVar("File", bound=BaseModel)


def read_report(run: Path) -> ReportedAcceptance:
    """Reads the acceptance of a run's head. Raises InputError for a run without a report and for damaged files."""
    if not run.is_dir():
        raise InputError(f"There is no directory {run}", "Pass the run directory of the head")
    directory, path = run / "report", run / "eval" / ACCEPTANCE_FILE
    results = _read_json(directory / RESULTS_FILE, RESULTS_SCHEMA, _Results, "eyas bench")
    recipe = build(Recipe, load_toml(run / RECIPE_FILE))
    head = require_finished(directory, "bench").parents["head"]
    references: dict[TrafficSlice, ReferenceAcceptance] = {}
    if path.is_file():
        references = _evaluation_references(_read_json(path, ACCEPTANCE_SCHEMA, _Evaluation, "eyas eval"), recipe)
    for task, entry in results.tasks.items():
        part, tree = TrafficSlice(temperature_slice(0.0), "task", task), recipe.bench.shape.name
        references[part] = entry.model_copy(update={"tree": tree})
    if not references:
        raise InputError(f"The report in {directory} has no tasks", "Run `eyas bench` with the recipe of the run")
    return ReportedAcceptance(head, recipe, references)


def _evaluation_references(evaluation: _Evaluation, recipe: Recipe) -> dict[TrafficSlice, ReferenceAcceptance]:
    """Returns the slices of an evaluation, which sampled at eval.temperature, or else at respond.temperature."""
    temperature = recipe.respond.temperature if evaluation.temperature is None else evaluation.temperature
    name = temperature_slice(temperature)
    references = {TrafficSlice(name, "task", task): entry for task, entry in evaluation.tasks.items()}
    if evaluation.all is not None:
        references[TrafficSlice(name, "all")] = evaluation.all
        for context, entry in evaluation.all.by_context.items():
            references[TrafficSlice(name, "context", context)] = entry
    return {part: entry.model_copy(update={"tree": evaluation.tree.name}) for part, entry in references.items()}


def _read_json(path: Path, schema: int, kind: type[File], command: str) -> File:
    """Reads a JSON file of the run. Raises InputError. command: the command that writes the file."""
    fix = f"Run `{command}` with the recipe of the run"
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})", fix) from None
    except ValueError:
        raise InputError(f"{path} is not valid JSON", fix) from None
    version = value.get("schema") if isinstance(value, dict) else None
    if version != schema:
        raise InputError(f"{path} has schema {version!r}, but this eyas reads schema {schema}", fix)
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        raise InputError(f"{path} has no valid value for {key}", fix) from None


# --- the comparison --------------------------------------------------------------------------------------------------


def compare_acceptance(
    report: ReportedAcceptance, records: Sequence[AcceptanceRecord], since: datetime.datetime | None = None
) -> DriftReport:
    """Compares the records of the report's head with the report.

    Args:
        report: the figures of the run.
        records: the log of the server.
        since: leaves out older records.

    Raises:
        InputError: no record is left, or all are of other heads.
    """
    recent = [record for record in records if since is None or record.time >= since]
    own = [record for record in recent if record.head == report.head]
    if not own:
        if not recent:
            period = "yet" if since is None else f"since {since:%Y-%m-%d %H:%M} UTC"
            raise InputError(f"The log has no answers {period}", "Wait for traffic, or pass a larger --days")
        heads = ", ".join(sorted({record.head for record in recent}))
        raise InputError(f"The log is of the head {heads}, the report of {report.head}", "Pass the run of that head")
    slices = tuple(_compare_slice(part, report.references.get(part), own) for part in _list_slices(report, own))
    return DriftReport(_recommend(slices), report.head, len(own), len(recent) - len(own), slices)


def _format(value: float | None, ci95: tuple[float, float] | None) -> str:
    return "" if value is None or ci95 is None else f"{value:.2f} ({ci95[0]:.2f}-{ci95[1]:.2f})"


def _list_slices(report: ReportedAcceptance, records: Iterable[AcceptanceRecord]) -> list[TrafficSlice]:
    """Returns every slice of the report and of the log, by temperature, "all" first."""
    slices = set(report.references)
    for record in records:
        temperature = temperature_slice(record.temperature)
        slices.add(TrafficSlice(temperature, "all"))
        slices |= {TrafficSlice(temperature, "context", context) for context in record.rounds}
        if record.task is not None:
            slices.add(TrafficSlice(temperature, "task", record.task))
    return sorted(slices, key=lambda part: (part.temperature, SLICE_KINDS.index(part.kind), len(part.name), part.name))


def _compare_slice(
    part: TrafficSlice, reference: ReferenceAcceptance | None, records: Iterable[AcceptanceRecord]
) -> SliceComparison:
    whole = [record for record in records if temperature_slice(record.temperature) == part.temperature]
    members = [record for record in whole if _belongs(record, part)]
    share = len(members) / len(whole) if whole else 0.0
    names = (part.kind, part.name or None, part.temperature)
    if reference is None:
        return SliceComparison(*names, None, share, len(members), verdict="no promise")
    pairs = [_count_rounds(record, reference.tree, part) for record in members]
    rounds = np.array([rounds for rounds, _ in pairs if rounds], dtype=np.int64)
    tokens = np.array([tokens for rounds, tokens in pairs if rounds], dtype=np.int64)
    row = SliceComparison(*names, reference.tree, share, len(rounds), int(rounds.sum()))
    row = replace(row, reference=reference.acceptance_length, reference_ci95=reference.ci95)
    if not len(rounds):
        return row
    interval, length = ratio_interval(tokens, rounds, SEED), float(tokens.sum() / row.rounds)
    is_enough = row.rounds >= MIN_ROUNDS and row.requests >= MIN_REQUESTS
    return replace(
        row,
        acceptance_length=length,
        ci95=astuple(interval),
        difference=length / reference.acceptance_length - 1,
        verdict=_verdict(reference, interval) if is_enough else "too few",
    )


def _belongs(record: AcceptanceRecord, part: TrafficSlice) -> bool:
    """Returns True if a record at the slice's temperature is part of the slice."""
    return {"all": True, "task": record.task == part.name, "context": part.name in record.rounds}[part.kind]


def _count_rounds(record: AcceptanceRecord, tree: str, part: TrafficSlice) -> tuple[int, int]:
    """Returns the rounds and the tokens of a record with one tree, in the context of the slice."""
    contexts = [part.name] if part.kind == "context" else list(record.rounds)
    counts = [record.rounds[context].get(tree, (0, 0)) for context in contexts]
    return sum(rounds for rounds, _ in counts), sum(tokens for _, tokens in counts)


def _verdict(reference: ReferenceAcceptance, live: Interval) -> Verdict:
    length, (low, high) = reference.acceptance_length, reference.ci95
    if live.high < min(low, length * (1 - MARGIN)):
        return "worse"
    return "better" if live.low > max(high, length * (1 + MARGIN)) else "as before"


def _recommend(slices: Sequence[SliceComparison]) -> Recommendation:
    judged = [row for row in slices if row.verdict in ("worse", "as before", "better")]
    if any(row.verdict == "worse" and row.share >= MIN_SHARE for row in judged):
        return "retrain"
    return "keep" if judged else "unknown"
