"""What a run promised: acceptance by slice, from its report and its evaluation.

report/results.json     by task, greedy, with the tree of bench.*                       the word of the report
eval/acceptance.json    all, by task and by context, as the answers were drawn, with its own tree
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from eyas.base.config import build, load_toml
from eyas.base.errors import InputError
from eyas.base.provenance import require_finished
from eyas.bench.results import RESULTS_FILE, SCHEMA
from eyas.evaluation import evaluate
from eyas.monitoring.acceptance_log import temperature_slice
from eyas.recipe import RECIPE_FILE, Recipe
from eyas.tree.shape import TreeShape
from eyas.tree.stats import Interval

ACCEPTANCE_FILE = "acceptance.json"

Kind = Literal["all", "task", "context"]


@dataclass(frozen=True)
class TrafficSlice:
    """A part of the traffic. name: of the task or the context; temperature: `rounds.temperature_of`."""

    temperature: str
    kind: Kind
    name: str = ""


@dataclass(frozen=True)
class ReferenceAcceptance:
    """Acceptance length with its interval. tree: "DEPTH,TOP_K,NODES" with which it was measured."""

    tree: str
    length: float
    interval: Interval


@dataclass(frozen=True)
class ReportedAcceptance:
    """head: its digest."""

    head: str
    recipe: Recipe
    references: Mapping[TrafficSlice, ReferenceAcceptance]


def read_report(run: Path) -> ReportedAcceptance:
    """InputError for what is no finished run, and for files of another schema."""
    if not run.is_dir():
        raise InputError(f"no directory {run}", "a run directory", "check the path")
    directory = run / "report"
    results = _read_json(directory / RESULTS_FILE, SCHEMA, "run `eyas bench` with its recipe")
    recipe = build(Recipe, load_toml(run / RECIPE_FILE))
    head = require_finished(directory, "bench").parents["head"]
    promises: dict[TrafficSlice, ReferenceAcceptance] = {}
    path = run / "eval" / ACCEPTANCE_FILE
    if path.is_file():
        promises |= _read_evaluation(_read_json(path, evaluate.SCHEMA, "run `eyas eval` again"), recipe, path)
    tree = recipe.bench.shape.name
    for task, entry in _get_table(results, "tasks", directory / RESULTS_FILE).items():
        promises[TrafficSlice(temperature_slice(0.0), "task", task)] = _parse_reference(
            entry, tree, directory / RESULTS_FILE
        )
    if not promises:
        raise InputError(f"{directory} without a figure by task", "acceptance to compare with", "measure again")
    return ReportedAcceptance(head, recipe, promises)


def _read_evaluation(found: Mapping[str, Any], recipe: Recipe, path: Path) -> dict[TrafficSlice, ReferenceAcceptance]:
    """Answers were drawn anew at eval.temperature, or else at respond's."""
    drawn = found.get("temperature")
    temperature = temperature_slice(recipe.respond.temperature if drawn is None else float(drawn))
    shape = _get_table(found, "tree", path)
    tree = TreeShape(shape["depth"], shape["top_k"], shape["nodes"]).name
    promises = {
        TrafficSlice(temperature, "task", task): _parse_reference(entry, tree, path)
        for task, entry in _get_table(found, "tasks", path).items()
    }
    whole = found.get("all")
    if whole is not None:
        promises[TrafficSlice(temperature, "all")] = _parse_reference(whole, tree, path)
        for context, entry in _get_table(whole, "by_context", path).items():
            promises[TrafficSlice(temperature, "context", context)] = _parse_reference(entry, tree, path)
    return promises


def _read_json(path: Path, schema: int, do: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"no {path}", "the figures that live acceptance is compared with", do) from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "a readable file", "check its permissions") from None
    except ValueError:
        raise InputError(f"{path} that is not JSON", "what `eyas` wrote there", do) from None
    if not isinstance(found, dict) or found.get("schema") != schema:
        named = found.get("schema") if isinstance(found, dict) else None
        raise InputError(f"{path} of schema {named!r}", f"schema {schema}", do)
    return found


def _get_table(found: Mapping[str, Any], key: str, path: Path) -> dict[str, Any]:
    value = found.get(key)
    if not isinstance(value, dict):
        raise InputError(f"{path} without {key}", "the figures of a run's own head", "make it again with its stage")
    return value


def _parse_reference(entry: Any, tree: str, path: Path) -> ReferenceAcceptance:
    try:
        low, high = entry["ci95"]
        return ReferenceAcceptance(tree, float(entry["acceptance_length"]), Interval(float(low), float(high)))
    except (TypeError, KeyError, ValueError):
        expected = "acceptance_length and ci95 in each entry"
        raise InputError(f"{path} with an entry of another form", expected, "make it again with its stage") from None
