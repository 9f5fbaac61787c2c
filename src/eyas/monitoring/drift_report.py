"""Compares the acceptance of live traffic with the reports of a run, and recommends training or not (`eyas drift`).

The traffic is compared slice by slice: all outputs, one task, or one range of context lengths, at one temperature. The
run has two reports. If both have a slice, results.json is used.

    file                    slices it has                                      measured with
    report/results.json     each task, greedy                                  the tree of bench.*
    eval/acceptance.json    all outputs, each task, each range of contexts     the tree and temperature of eval.*

    verdict        condition
    worse          the live 95% interval lies below the report's interval and below (1 - MARGIN) times its figure
    better         the live 95% interval lies above the report's interval and above (1 + MARGIN) times its figure
    as before      neither
    too few        fewer than MIN_ROUNDS live rounds with the report's tree, or fewer than MIN_REQUESTS outputs
    no promise     the reports do not have this slice

Training is recommended if a slice is worse and has at least MIN_SHARE of the outputs at its temperature. Intervals that
do not overlap are a stricter test than a 5% significance level, so ten slices together give few false alarms. MARGIN
covers differences that are no drift: a tree that is a part of a larger one, bfloat16, a batch that shares its nodes.
"""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from eyas.base.config import build, load_toml
from eyas.base.errors import InputError
from eyas.base.provenance import require_finished
from eyas.base.storage import read_json_file
from eyas.base.templates import template_environment
from eyas.bench.results import RESULTS_FILE
from eyas.bench.results import SCHEMA as RESULTS_SCHEMA
from eyas.evaluation.evaluate import SCHEMA as ACCEPTANCE_SCHEMA
from eyas.formats.head_dir import ACCEPTANCE_FILE
from eyas.monitoring.acceptance_log import AcceptanceRecord, temperature_slice
from eyas.recipe import RECIPE_FILE, Recipe
from eyas.tree.intervals import Interval, ratio_interval
from eyas.tree.shape import TreeShape

SCHEMA = 1
MIN_ROUNDS = 200
MIN_REQUESTS = 10  # tree.acceptance_length: a bootstrap over fewer is too narrow
MARGIN = 0.05
MIN_SHARE = 0.1
SEED = 0
SLICE_KINDS = ("all", "task", "context")

Verdict = Literal["worse", "as before", "better", "too few", "no promise"]
Recommendation = Literal["retrain", "keep", "unknown"]


@dataclass(frozen=True)
class TrafficSlice:
    """A part of the traffic.

    Attributes:
        temperature: The range of sampling temperatures, as `temperature_slice` names it, for example "<=0.5".
        kind: "all" for all outputs, "task" for the outputs of one task, "context" for one range of context lengths.
        name: The name of the task, or the range of context lengths such as "<=256"; empty for "all".
    """

    temperature: str
    kind: str
    name: str = ""


class ReferenceAcceptance(BaseModel):
    """The acceptance length that a report gives for one slice, with its 95% interval.

    tree: the tree of the measurement as "DEPTH,TOP_K,NODES".
    """

    acceptance_length: float
    ci95: tuple[float, float]
    tree: str = ""


@dataclass(frozen=True)
class ReportedAcceptance:
    """The acceptance that the reports of a run give.

    Attributes:
        head: The digest of the run's head.
        recipe: The recipe of the run.
        references: The acceptance length of each slice.
    """

    head: str
    recipe: Recipe
    references: Mapping[TrafficSlice, ReferenceAcceptance]


@dataclass(frozen=True)
class SliceComparison:
    """The comparison of one slice. The fields are the keys of `eyas drift --json`.

    Attributes:
        slice: The kind of the slice: "all", "task" or "context".
        name: The name of the task or context; None for "all".
        temperature: The range of temperatures.
        tree: The tree of the report as "DEPTH,TOP_K,NODES"; None if the report does not have the slice.
        share: The slice's share of the live outputs at its temperature, with any tree.
        requests: The number of live outputs that show the acceptance of that tree.
        rounds: The number of their rounds that do.
        acceptance_length: The acceptance length of these rounds.
        ci95: Its 95% interval.
        reference: The acceptance length of the report.
        reference_ci95: Its 95% interval.
        difference: acceptance_length / reference - 1.
        verdict: See the table at the top of this file.
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
    """The comparison of all slices.

    Attributes:
        recommendation: "retrain", "keep" or "unknown".
        head: The digest of the head.
        num_requests: The number of outputs in the comparison.
        num_other_heads: The number of outputs of other heads; they are left out.
        slices: The comparison of each slice.
    """

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
        template = template_environment("eyas.monitoring", ".").get_template("drift_report.txt.jinja")
        return template.render(report=self).rstrip()


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
    """Reads the reports of a run. Raises InputError if the run has no report, or if a file is damaged."""
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
    """Returns the slices of eval/acceptance.json.

    Its temperature is respond.temperature if the file does not have the key.
    """
    name = temperature_slice(recipe.respond.temperature if evaluation.temperature is None else evaluation.temperature)
    references = {TrafficSlice(name, "task", task): entry for task, entry in evaluation.tasks.items()}
    if evaluation.all is not None:
        references[TrafficSlice(name, "all")] = evaluation.all
        for context, entry in evaluation.all.by_context.items():
            references[TrafficSlice(name, "context", context)] = entry
    return {part: entry.model_copy(update={"tree": evaluation.tree.name}) for part, entry in references.items()}


def _read_json(path: Path, schema: int, kind: type[File], command: str) -> File:
    """Reads a JSON file of the run.

    Args:
        path: the file.
        schema: the number that its key "schema" must have.
        kind: the model that its content must fit.
        command: the command that writes the file, for the error message.

    Raises:
        InputError: the file is missing, is not valid JSON, or has another content.
    """
    fix = f"Run `{command}` with the recipe of the run"
    value = read_json_file(path, fix, fix)
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
    """Compares the acceptance in a server's log with the reports of the head that the server ran.

    Args:
        report: the reports of the run.
        records: the records of the server's log. Records of other heads are left out.
        since: records before this time are left out; None to use all.

    Raises:
        InputError: there are no records, or all are of other heads.
    """
    recent = [record for record in records if since is None or record.time >= since]
    own = [record for record in recent if record.head == report.head]
    if not own:
        if not recent:
            period = "yet" if since is None else f"since {since:%Y-%m-%d %H:%M} UTC"
            raise InputError(f"The log has no outputs {period}", "Wait for traffic, or pass a larger --days")
        heads = ", ".join(sorted({record.head for record in recent}))
        problem = f"The log was written with the head {heads}, but the report is of the head {report.head}"
        raise InputError(problem, "Pass the run directory of the logged head")
    slices = tuple(_compare_slice(part, report.references.get(part), own) for part in _list_slices(report, own))
    return DriftReport(_recommend(slices), report.head, len(own), len(recent) - len(own), slices)


def _list_slices(report: ReportedAcceptance, records: Iterable[AcceptanceRecord]) -> list[TrafficSlice]:
    """Returns every slice of the reports and of the log, sorted by temperature and then by kind: "all" first."""
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
    """Returns True if a record is part of the slice. Requirement: it has the slice's temperature."""
    return {"all": True, "task": record.task == part.name, "context": part.name in record.rounds}[part.kind]


def _count_rounds(record: AcceptanceRecord, tree: str, part: TrafficSlice) -> tuple[int, int]:
    """Returns the rounds of a record that show the acceptance of `tree`, and their tokens.

    For a slice of kind "context", only rounds in that range of context lengths are counted.
    """
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
