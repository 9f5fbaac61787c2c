"""`eyas drift`: compares live acceptance with the report of a run, and writes a recipe that trains the head further."""

import argparse
import datetime
import json
import sys
from pathlib import Path

from eyas.base.config import require_range
from eyas.base.storage import convert_read_errors
from eyas.monitoring.acceptance_log import LOG_FILE, parse_records, read_log
from eyas.monitoring.drift_report import compare_acceptance, read_report
from eyas.monitoring.refresh import write_recipe

RETRAIN_EXIT_CODE = 3


def run_verb(parsed: argparse.Namespace) -> int:
    """Runs `eyas drift`. Returns RETRAIN_EXIT_CODE if the report recommends training, else 0."""
    require_range("--days", parsed.days, 0, exclude_low=True)
    run_directory, sampled = Path(parsed.run_directory), Path(parsed.log)
    reported = read_report(run_directory)
    with convert_read_errors(sampled / LOG_FILE, "Pass the directory of `eyas serve --sample-low-acceptance`"):
        records, num_damaged = parse_records(read_log(sampled))
    if num_damaged:
        print(f"eyas: {num_damaged} lines of {sampled / LOG_FILE} are damaged and were skipped", file=sys.stderr)
    report = compare_acceptance(reported, records, None if parsed.days is None else _days_ago(parsed.days))
    if report.num_other_heads:
        print(f"eyas: {report.num_other_heads} outputs of other heads were skipped", file=sys.stderr)
    print(json.dumps(report.to_json(), indent=2) if parsed.json else report.to_text())
    if parsed.recipe is not None:
        count = write_recipe(reported.recipe, run_directory, sampled, Path(parsed.recipe))
        advice = f"Check their license, then run: eyas run {parsed.recipe} --acknowledge 'YOUR NAME'"
        print(f"eyas: {count} prompts are written beside {parsed.recipe}. {advice}", file=sys.stderr)
    return RETRAIN_EXIT_CODE if report.recommendation == "retrain" else 0


def _days_ago(days: float) -> datetime.datetime | None:
    """Returns the time `days` days ago; None for a time before the year 1."""
    try:
        return datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days)
    except OverflowError:
        return None
