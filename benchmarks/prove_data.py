"""Measures the data stages: the privacy filter, prompt selection and `eyas respond`. `make prove-data` calls it.

    python benchmarks/prove_data.py [--only PART] [--half HALF] [--languages en,de] [--data DIR] [--show [N] FILE]
                                    [--judge FILE] [--read FILE] [--tables FILE] [--env-dir DIR] [--model DIR]
                                    [--pairs N] [--seed N]

    detection  recall of the privacy filter on the labeled set of benchmarks/pii_set.py
    real       its effect on GSM8K, MT-bench and HumanEval; --show writes N records of each to FILE for a human reader
    ordinary   the share of ordinary prompts that the filter leaves unchanged; --show writes each change to FILE
    pairs      the same names in private and in public texts; --show writes each mistake to FILE
    planted    texts with private values: how many keep none of them; --show writes what survives to FILE
    labeled    public texts with marked names and numbers: recall, precision, Presidio beside it
    replaced   300 replaced spans of real texts for a human judge: --judge writes FILE, then reads the judged FILE
    read       50 ordinary and 50 planted texts for a human reader: --read writes FILE, then reads the judged FILE
    speed      prompts per second on one core, the slowest inputs, memory
    files      files as pandas, Excel, DuckDB and others write them, read to the same prompts
    traffic    a selection from a mixed pool that should match a small production log
    respond    throughput of `eyas respond` against a plain HTTP client, with a local server

The parts from `ordinary` to `replaced` use one half of their texts: `--half develop` while the filter is changed,
`--half report` (the default) for figures. Only the first half is shown.

Prints one JSON object for each row and exits 1 if a row misses its target. Progress and tables go to stderr. Takes
about twenty minutes on two idle cores.
"""

import argparse
import sys
from pathlib import Path

from data_detection import detection, is_outside_repository, real
from data_files import files
from data_labeled import labeled
from data_options import Options
from data_ordinary import ordinary
from data_pairs import pairs
from data_planted import planted
from data_read import read
from data_replaced import replaced
from data_respond import respond
from data_speed import speed
from data_split import HALVES
from data_traffic import traffic
from result_rows import print_rows
from text_sets import LANGUAGES

PARTS = {
    "detection": detection,
    "real": real,
    "ordinary": ordinary,
    "pairs": pairs,
    "planted": planted,
    "labeled": labeled,
    "replaced": replaced,
    "read": read,
    "speed": speed,
    "files": files,
    "traffic": traffic,
    "respond": respond,
}
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def main() -> int:
    """Runs the chosen parts and prints their rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--half", choices=HALVES, default=Options.half, help="develop with one half, report the other")
    parser.add_argument("--languages", type=_languages, default=Options.languages, help="separated by commas")
    parser.add_argument(
        "--data", type=Path, default=DATA if DATA.is_dir() else None, help="directory of public prompts"
    )
    parser.add_argument("--tables", type=Path, help="a markdown file for the tables of the detection part")
    parser.add_argument("--show", nargs="+", metavar="[N] FILE", help="write N records, or each change, to FILE")
    parser.add_argument("--env-dir", type=Path, default=Options.env_dir, help="directory of other tools")
    parser.add_argument("--judge", type=Path, metavar="FILE", help="the file of the part `replaced`")
    parser.add_argument("--read", type=Path, metavar="FILE", help="the file of the part `read`")
    parser.add_argument("--model", type=Path, metavar="DIR", help="a spaCy model with which Presidio finds names")
    parser.add_argument("--pairs", type=int, default=Options.pairs)
    parser.add_argument("--seed", type=int, default=Options.seed)
    parsed = parser.parse_args()
    *number, file = parsed.show or (0, None)
    options = Options(
        parsed.seed,
        parsed.data,
        parsed.tables,
        int(number[0]) if number else 0,
        file and Path(file),
        parsed.pairs,
        parsed.half,
        parsed.languages,
        parsed.env_dir,
        parsed.judge,
        parsed.read,
        parsed.model,
    )
    for file in (options.show_file, options.judge_file, options.read_file):
        if file and not is_outside_repository(file):
            parser.error(f"{file}: choose a file outside the repository for public prompts")
    chosen = [part for name, part in PARTS.items() if parsed.only in (None, name)]
    print(f"half of the texts: {options.half}", file=sys.stderr, flush=True)
    return print_rows(row for part in chosen for row in part(options))


def _languages(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    if unknown := set(chosen) - set(LANGUAGES):
        raise argparse.ArgumentTypeError(f"unknown languages {sorted(unknown)}; known: {', '.join(LANGUAGES)}")
    return chosen


if __name__ == "__main__":
    sys.exit(main())
