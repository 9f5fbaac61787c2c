"""`eyas bench` of what runs elsewhere, or was measured by others."""

import argparse
import json
from pathlib import Path
from typing import Any

from eyas.base.config import build, parse_overrides
from eyas.base.errors import UsageError
from eyas.bench.client import bench_server as served
from eyas.bench.config import ClientConfig
from eyas.bench.importers import import_results
from eyas.bench.report import write_results
from eyas.bench.report_tables import MISSING, describe_load
from eyas.bench.request_metrics import BASELINE, SPECULATIVE
from eyas.bench.results import read_number
from eyas.cli.setup import silence_transformers

DEFAULT_OUT = "runs/served"


def run(parsed: argparse.Namespace) -> int:
    """Measure a server, or take in what others measured; writes results.json and report.html below --out."""
    silence_transformers()
    words = ([parsed.recipe] if parsed.recipe is not None else []) + list(parsed.overrides)
    if parsed.recipe is not None and "=" not in parsed.recipe:
        raise UsageError(
            f"a recipe, {parsed.recipe}, beside --url, --baseline or --import",
            "a recipe, or a server, or figures of others; keys client.* go with --url",
            "leave one out",
        )
    out = Path(parsed.out or DEFAULT_OUT)
    if parsed.imported is not None:
        if parsed.url is not None or parsed.baseline is not None or words:
            raise UsageError("--import beside other arguments", "--import ARM=FILE, --out and --json", "leave them out")
        found = import_results(parsed.imported)
        write_results(found, None, out)
    else:
        if parsed.url is None:
            raise UsageError("--baseline without --url", "the server with the head, too", "add --url URL")
        found = served.run(parsed.url, parsed.baseline, _config(words), out)
    print(
        json.dumps(found, indent=2) if parsed.json else f"{format_measurements(found)}\nreport: {out / 'report.html'}"
    )
    return 0


def _config(words: list[str]) -> ClientConfig:
    tables = parse_overrides(words)
    strangers = sorted(set(tables) - {"client"})
    if strangers:
        raise UsageError(f"{strangers[0]}.* beside --url", "keys client.*", "remove them; the server decides the rest")
    return build(ClientConfig, tables.get("client", {}), "client")


def format_measurements(found: dict[str, Any]) -> str:
    """A line for each arm of each point."""
    columns: dict[str, tuple[str, ...]] = {
        "TPOT ms": ("tpot_ms", "p50"),
        "p99": ("tpot_ms", "p99"),
        "TTFT ms": ("ttft_ms", "p50"),
        "e2e ms": ("e2e_ms", "p50"),
        "tokens/s": ("output_tps",),
        "goodput": ("goodput",),
        "accepted": ("acceptance_length",),
    }
    points = [point for key in ("concurrency", "rates", "ramp") for point in found.get(key, [])]
    arms = [
        (describe_load(point), name, figures, read_number(point, "speedup_tpot") if name == SPECULATIVE else None)
        for point in points
        for name, figures in ({name: point.get(name) for name in (BASELINE, SPECULATIVE)} | point["arms"]).items()
        if figures
    ]
    if all(read_number(figures, "goodput") is None for _, _, figures, _ in arms):  # no limit was set
        del columns["goodput"]
    lines = [f"{'load':<18}{'arm':<14}" + "".join(f"{name:>10}" for name in [*columns, "faster"])]
    for load, name, figures, faster in arms:
        cells = [*(read_number(figures, *keys) for keys in columns.values()), faster]
        line = "".join(f"{MISSING if value is None else f'{value:.2f}':>10}" for value in cells)
        failed = f"   {figures['failed']} of {figures['requests']} failed" if figures.get("failed") else ""
        lines.append(f"{load:<18}{name:<14}{line}{failed}")
    return "\n".join(lines)
