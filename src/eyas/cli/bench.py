"""`eyas bench`: measures a recipe's head, an existing pair or a running server, or imports results of other tools."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from eyas.base.config import build, parse_overrides
from eyas.base.errors import UsageError
from eyas.bench import bench
from eyas.bench.client import bench_server
from eyas.bench.config import BenchConfig, ClientConfig
from eyas.bench.importers import import_results
from eyas.bench.report import write_results
from eyas.bench.request_metrics import BASELINE, SPECULATIVE
from eyas.bench.results import read_number
from eyas.cli import recipes
from eyas.cli.generate import load_pair
from eyas.formats.head_dir import resolve_head
from eyas.model.target_dir import EMBEDDED

DEFAULT_OUT = "runs/served"
PAIR_OUT = "runs/pair"
Config = TypeVar("Config", BenchConfig, ClientConfig)


def run_verb(parsed: argparse.Namespace) -> int:
    """Runs `eyas bench`: measures or imports, prints a table and writes results.json and report.html below --out."""
    is_pair = any((parsed.target, parsed.head, parsed.prompts, parsed.dtype))
    if parsed.url is None and parsed.imported is None and parsed.baseline is None and not is_pair:
        if parsed.recipe is None:
            problem = "eyas bench has nothing to measure"
            raise UsageError(problem, "Pass RECIPE, --target T --head H, --url URL or --import ARM=FILE")
        return recipes.run_verb(parsed)
    words = ([parsed.recipe] if parsed.recipe is not None else []) + list(parsed.overrides)
    if parsed.recipe is not None and "=" not in parsed.recipe:
        options = "--target, --head, --prompts, --url, --baseline or --import"
        problem = f"The recipe {parsed.recipe} cannot be combined with {options}"
        raise UsageError(problem, "Remove one of them; with --url, pass only keys client.*")
    out = Path(parsed.out or (PAIR_OUT if is_pair else DEFAULT_OUT))
    if is_pair:
        if (parsed.url, parsed.baseline, parsed.imported) != (None, None, None):
            raise UsageError("--target, --head and --prompts measure in this process", "Remove --url and --import")
        results = _measure_pair(parsed, words, out)
    elif parsed.imported is not None:
        if parsed.url is not None or parsed.baseline is not None or words:
            raise UsageError("--import can only be combined with --out and --json", "Remove the other arguments")
        results = import_results(parsed.imported)
        write_results(results, None, out)
    else:
        if parsed.url is None:
            raise UsageError("--baseline needs --url", "Add --url URL of the server with the head")
        results = bench_server.run(parsed.url, parsed.baseline, _parse_keys(words, ClientConfig, "client"), out)
    table = recipes.format_results(results) if is_pair else format_measurements(results)
    print(json.dumps(results, indent=2) if parsed.json else f"{table}\nreport: {out / 'report.html'}")
    return 0


def _measure_pair(parsed: argparse.Namespace, words: list[str], out: Path) -> dict[str, Any]:
    """Measures --target and --head in this process. Returns the content of results.json."""
    if parsed.prompts is None:
        problem = "--target and --head need prompts to measure with"
        raise UsageError(problem, "Add --prompts FILE, or --prompts builtin:eval")
    config = _parse_keys([f"bench.prompts={json.dumps(parsed.prompts)}", *words], BenchConfig, "bench")
    parsed.target, parsed.dtype = parsed.target or EMBEDDED, parsed.dtype or "bfloat16"
    target, draft = load_pair(parsed)
    assert draft is not None, "there is no --no-head"
    head = resolve_head(parsed.head or EMBEDDED)
    return bench.measure_pair(config, head, target, replace(draft, shape=config.shape), out, progress=True)


def _parse_keys(words: list[str], config: type[Config], table: str) -> Config:
    """Builds the configuration of one table from key=value words. Raises UsageError for a key of another table."""
    tables = parse_overrides(words)
    if others := sorted(set(tables) - {table}):
        raise UsageError(f"{others[0]}.* has no effect here", f"Pass only keys {table}.*")
    return build(config, tables.get(table, {}), table)


def format_measurements(results: dict[str, Any]) -> str:
    """Returns results.json as a table for a terminal, with a line for each arm at each load."""
    points = [point for key in ("concurrency", "rates", "ramp") for point in results.get(key, [])]
    arms = [
        (point, name, figures)
        for point in points
        for name, figures in ({name: point.get(name) for name in (BASELINE, SPECULATIVE)} | point["arms"]).items()
        if figures
    ]
    has_goodput = any(read_number(figures, "goodput") is not None for _, _, figures in arms)
    return recipes.render_table("measurements.txt.jinja", arms=arms, has_goodput=has_goodput)
