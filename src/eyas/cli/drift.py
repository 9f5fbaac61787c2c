"""`eyas drift`: live acceptance beside a run's report, and a recipe to go on from its head."""

import argparse
import datetime
import json
import math
import sys
from pathlib import Path

from eyas.base.errors import InputError, UsageError
from eyas.cli.setup import silence_transformers
from eyas.monitoring.acceptance_log import parse_records
from eyas.monitoring.drift_report import compare_acceptance, format_report
from eyas.monitoring.prompt_sampler import LOG_FILE, read_log
from eyas.monitoring.refresh import write_recipe
from eyas.monitoring.reported_acceptance import read_report

RETRAIN_EXIT_CODE = 3


def run(parsed: argparse.Namespace) -> int:
    """The verb; see the parser in `eyas.cli`. 0: no reason to train, or none that can be told yet; 3: train again."""
    if parsed.days is not None and not 0 < parsed.days < math.inf:
        raise UsageError(f"--days {parsed.days}", "a number above 0", "choose another one")
    silence_transformers()
    run_directory, sampled = Path(parsed.run_directory), Path(parsed.log)
    report = read_report(run_directory)
    try:
        lines, num_bad = parse_records(read_log(sampled))
    except OSError as error:
        do = "name the directory of `eyas serve --sample-low-acceptance`"
        raise InputError(f"{sampled / LOG_FILE}: {error.strerror}", "the log of a server", do) from None
    if num_bad:
        print(f"eyas: {num_bad} lines of {sampled / LOG_FILE} are damaged and left out", file=sys.stderr)
    drift = compare_acceptance(report, lines, None if parsed.days is None else _days_ago(parsed.days))
    if drift.num_other_heads:
        print(f"eyas: {drift.num_other_heads} answers of other heads are left out", file=sys.stderr)
    print(json.dumps(drift.to_json(), indent=2) if parsed.json else format_report(drift))
    if parsed.recipe is not None:
        count = write_recipe(report.recipe, run_directory, sampled, Path(parsed.recipe))
        print(
            f"eyas: {count} prompts beside {parsed.recipe}; read their licence, then: "
            f"eyas run {parsed.recipe} --acknowledge 'YOUR NAME'",
            file=sys.stderr,
        )
    return RETRAIN_EXIT_CODE if drift.recommendation == "retrain" else 0


def _days_ago(days: float) -> datetime.datetime | None:
    """None: before there were dates, so before all answers."""
    try:
        return datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days)
    except OverflowError:
        return None
