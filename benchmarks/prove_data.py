"""`make prove-data`: the rows of the "Measured" list of the data stages, one JSON object a row; exit 1 if one misses.

    python benchmarks/prove_data.py [--only PART] [--data DIR] [--tables FILE] [--show N FILE] [--pairs N] [--seed N]

    detection  the labelled set of benchmarks/pii_set.py through the privacy filter
    real       GSM8K, MT-bench and HumanEval through the same; --show writes N of each to FILE, to be read by eye
    speed      prompts a second of one core, the worst inputs, memory
    traffic    a choice from a mixed pool that shall look like a small production log
    respond    answers from a local server, against a client that does nothing else

Progress and tables go to stderr. About a quarter of an hour on two idle cores.
"""

import argparse
import sys
from pathlib import Path

from data_detection import detection, is_outside_repository, real
from data_options import Options
from data_respond import respond
from data_speed import speed
from data_traffic import traffic
from rows import print_rows

PARTS = {"detection": detection, "real": real, "speed": speed, "traffic": traffic, "respond": respond}
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def main() -> int:
    """Run the parts, print the rows."""
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
        parser.error(f"--show {options.show_file}: other people's prompts stay outside the repository")
    chosen = [part for name, part in PARTS.items() if parsed.only in (None, name)]
    return print_rows(row for part in chosen for row in part(options))


if __name__ == "__main__":
    sys.exit(main())
