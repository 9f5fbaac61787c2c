"""`eyas bench --url`: what runs elsewhere is measured; results.json and report.html."""

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

from eyas.base.errors import StageError
from eyas.base.progress import Progress
from eyas.base.provenance import package_versions
from eyas.base.storage import write_json_atomic
from eyas.bench.bench_prompts import load_prompts
from eyas.bench.client.config import ClientConfig
from eyas.bench.client.server_arms import discover_arms
from eyas.bench.client.server_benchmark import ServerBenchmark
from eyas.bench.machine import describe_machine, redact_location
from eyas.bench.report import SCHEMA, write_report

RESULTS_FILE = "results.json"


def run(url: str, baseline: str | None, config: ClientConfig, out_dir: Path, progress: bool = True) -> dict[str, Any]:
    """Measure, write both files, return results.json. EyasError as the parts; nothing is written before the end.

    StageError, with nothing written, where no request at all was answered; after both files are written where a server
    was gone before the end.
    """
    prompts = load_prompts(config.prompts, config.limit, config.synthetic_words, config.seed)
    bar = Progress("bench", None, "answers", enabled=progress)
    measuring = ServerBenchmark(config, discover_arms(url, baseline, config, bar.advance), prompts)
    bar.total = measuring.num_requests
    with bar:
        tasks = measuring.measure_tasks() if config.one_stream else {}
        found: dict[str, Any] = {
            "schema": SCHEMA,
            "machine": describe_machine(),
            "target": {"name": measuring.model},
            "tasks": tasks,
            "concurrency": measuring.measure_concurrency(config.concurrency),
            "rates": measuring.measure_rates(config.rates),
            "ramp": [] if config.ramp is None else measuring.measure_ramp(*config.ramp),
            "lossless": measuring.lossless_counts(),
            "client": dataclasses.asdict(_told(config)),
            "command": reproduce_command(url, baseline, config),
            "versions": package_versions(),
        }
    if not measuring.num_answered:
        raise StageError(
            f"no answer to any of {measuring.num_failed} requests; the first failed with {measuring.first_error}",
            "a server that answers, and counts its tokens (usage)",
            "look at the server's log",
        )
    if measuring.down is not None:
        found["gone"] = measuring.down
    write_results(found, out_dir)
    if measuring.down is not None:
        raise StageError(
            f"a server that went away ({measuring.down})",
            "one that stays until the last answer",
            f"look at its log; what was measured before that is in {out_dir / 'report.html'}",
        )
    return found


def reproduce_command(url: str, baseline: str | None, config: ClientConfig) -> str:
    """For a shell, to repeat the run: every key that is not as it is by default; of a query only the names."""
    words = ["eyas", "bench", "--url", redact_location(url)] + (
        [] if baseline is None else ["--baseline", redact_location(baseline)]
    )
    words += [f"client.{key}={json.dumps(value)}" for key, value in _changed(_told(config), ClientConfig())]
    return shlex.join(words)


def _told(config: ClientConfig) -> ClientConfig:
    """As a page may have it."""
    return dataclasses.replace(config, prompts=redact_location(config.prompts))


def _changed(instance: Any, default: Any) -> list[tuple[str, Any]]:
    """(key, value), a key of a table within as table.key."""
    found: list[tuple[str, Any]] = []
    for one in dataclasses.fields(instance):
        value, usual = getattr(instance, one.name), getattr(default, one.name)
        if dataclasses.is_dataclass(value):
            found += [(f"{one.name}.{key}", inner) for key, inner in _changed(value, usual)]
        elif value != usual:
            found.append((one.name, value))
    return found


def write_results(found: dict[str, Any], out_dir: Path) -> None:
    """results.json and report.html. StageError where they cannot be written."""
    out_dir.mkdir(parents=True, exist_ok=True)
    write_json_atomic(out_dir / RESULTS_FILE, found)
    write_report(found, None, out_dir / "report.html")
