"""Measures the data stages: the privacy filter, prompt selection and `eyas respond`. `make prove-data` calls it.

    python benchmarks/prove_data.py [--only PART] [--data DIR] [--tables FILE] [--show N FILE] [--pairs N] [--seed N]

    detection  recall of the privacy filter on the labeled set of benchmarks/pii_set.py
    real       its effect on GSM8K, MT-bench and HumanEval; --show writes N records of each to FILE for a human reader
    speed      prompts per second on one core, the slowest inputs, memory
    traffic    a selection from a mixed pool that should match a small production log
    respond    throughput of `eyas respond` against a plain HTTP client, with a local server

Prints one JSON object for each row and exits 1 if a row misses its target. Progress and tables go to stderr. Takes
about a quarter of an hour on two idle cores.
"""

import argparse
import sys
from pathlib import Path

from data_detection import detection, is_outside_repository, real
from data_options import Options
from data_respond import respond
from data_speed import speed
from data_traffic import traffic
from result_rows import print_rows

PARTS = {"detection": detection, "real": real, "speed": speed, "traffic": traffic, "respond": respond}
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def main() -> int:
    """Runs the chosen parts and prints their rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument(
        "--data", type=Path, default=DATA if DATA.is_dir() else None, help="directory of public prompts"
    )
    parser.add_argument("--tables", type=Path, help="a markdown file for the tables of the detection part")
    parser.add_argument("--show", nargs=2, metavar=("N", "FILE"), help="write N records of each public set to FILE")
    parser.add_argument("--pairs", type=int, default=Options.pairs)
    parser.add_argument("--seed", type=int, default=Options.seed)
    parsed = parser.parse_args()
    number, file = parsed.show or (0, None)
    options = Options(parsed.seed, parsed.data, parsed.tables, int(number), file and Path(file), parsed.pairs)
    if options.show_file and not is_outside_repository(options.show_file):
        parser.error(f"--show {options.show_file}: choose a file outside the repository for public prompts")
    chosen = [part for name, part in PARTS.items() if parsed.only in (None, name)]
    return print_rows(row for part in chosen for row in part(options))


if __name__ == "__main__":
    sys.exit(main())
