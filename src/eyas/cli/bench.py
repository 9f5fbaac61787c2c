"""`eyas bench` of what runs elsewhere, or was measured by others."""

import argparse
import json
from pathlib import Path
from typing import Any

from eyas.base.config import build, parse_overrides
from eyas.base.errors import UsageError
from eyas.bench.client import served
from eyas.bench.client.config import ClientConfig
from eyas.bench.foreign import read_all
from eyas.bench.measure import BASELINE, SPECULATIVE
from eyas.bench.numbers import MISSING, number
from eyas.cli.quiet import quiet

OUT = "runs/served"


def run(parsed: argparse.Namespace) -> int:
    """Measure a server, or take in what others measured; writes results.json and report.html below --out."""
    quiet()
    words = ([parsed.recipe] if parsed.recipe is not None else []) + list(parsed.overrides)
    if parsed.recipe is not None and "=" not in parsed.recipe:
        raise UsageError(
            f"a recipe, {parsed.recipe}, beside --url, --baseline or --import",
            "a recipe, or a server, or figures of others; keys client.* go with --url",
            "leave one out",
        )
    out = Path(parsed.out or OUT)
    if parsed.imported is not None:
        if parsed.url is not None or parsed.baseline is not None or words:
            raise UsageError("--import beside other arguments", "--import ARM=FILE, --out and --json", "leave them out")
        found = read_all(parsed.imported)
        served.write(found, out)
    else:
        if parsed.url is None:
            raise UsageError("--baseline without --url", "the server with the head, too", "add --url URL")
        found = served.run(parsed.url, parsed.baseline, _config(words), out)
    print(json.dumps(found, indent=2) if parsed.json else f"{table(found)}\nreport: {out / 'report.html'}")
    return 0


def _config(words: list[str]) -> ClientConfig:
    tables = parse_overrides(words)
    strangers = sorted(set(tables) - {"client"})
    if strangers:
        raise UsageError(f"{strangers[0]}.* beside --url", "keys client.*", "remove them; the server decides the rest")
    return build(ClientConfig, tables.get("client", {}), "client")


def table(found: dict[str, Any]) -> str:
    """A line for each arm of each point."""
    widths = {"TPOT ms": 9, "p99": 9, "TTFT ms": 9, "tokens/s": 10, "accepted": 10, "faster": 9}
    lines = [f"{'load':<22}{'arm':<14}" + "".join(f"{name:>{width}}" for name, width in widths.items())]
    points = [(f"{point['n']} streams", point) for point in found["concurrency"]]
    points += [(f"{point['rate']:g} requests/s", point) for key in ("rates", "ramp") for point in found.get(key, [])]
    for load, point in points:
        arms = {name: point[name] for name in (BASELINE, SPECULATIVE) if name in point} | point["arms"]
        for name, figures in arms.items():
            cells = [
                number(figures, "tpot_ms", "p50"),
                number(figures, "tpot_ms", "p99"),
                number(figures, "ttft_ms", "p50"),
                number(figures, "output_tps"),
                number(figures, "acceptance_length"),
                number(point, "speedup_tpot") if name == SPECULATIVE else None,
            ]
            texts = [MISSING if value is None else f"{value:.2f}" for value in cells]
            failed = f"   {figures['failed']} of {figures['requests']} failed" if figures.get("failed") else ""
            line = "".join(f"{text:>{width}}" for text, width in zip(texts, widths.values(), strict=True))
            lines.append(f"{load:<22}{name:<14}{line}{failed}")
    return "\n".join(lines)
