"""Runs all static checks of the repository in parallel. `make check` calls it.

    python tools/run_checks.py [--bin DIR]

Prints one line for each check that passes, and the whole output of each check that fails. Exits 1 if a check fails.
pyright takes most of the time. On two cores the other checks run beside it.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STYLE_PATHS = ("src", "tools", "benchmarks")


@dataclass(frozen=True)
class Result:
    """The outcome of one check."""

    name: str
    command: str
    exit_code: int
    output: str
    seconds: float


def commands(bin_dir: Path) -> dict[str, list[str]]:
    """Returns the command of each check. The slowest comes first."""
    return {
        "types": [str(bin_dir / "pyright")],
        "style": [str(bin_dir / "python"), "tools/check_style.py", *STYLE_PATHS],
        "imports": [str(bin_dir / "lint-imports")],
        "lint": [str(bin_dir / "ruff"), "check", "."],
        "format": [str(bin_dir / "ruff"), "format", "--check", "."],
    }


def run_check(name: str, command: Sequence[str]) -> Result:
    """Runs one check and collects its output. A program that is not installed fails with exit code 127."""
    began_s = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        exit_code, output = done.returncode, done.stdout
    except FileNotFoundError:
        exit_code, output = 127, f"{command[0]} is not installed. Run `make check`, which installs it.\n"
    return Result(name, " ".join(command), exit_code, output, time.monotonic() - began_s)


def run_checks(checks: Mapping[str, Sequence[str]]) -> int:
    """Runs the checks in parallel and prints each result. Returns 1 if a check fails, otherwise 0."""
    failed: list[Result] = []
    with ThreadPoolExecutor(len(checks)) as pool:
        for future in as_completed([pool.submit(run_check, name, command) for name, command in checks.items()]):
            result = future.result()
            print(f"{'FAILED' if result.exit_code else 'passed'}  {result.name:8} {result.seconds:5.1f} s", flush=True)
            if result.exit_code:
                failed.append(result)
    for result in failed:
        print(f"\n--- {result.name}: {result.command} (exit code {result.exit_code})\n{result.output.rstrip()}")
    if failed:
        names = ", ".join(sorted(result.name for result in failed))
        print(f"\n{len(failed)} of {len(checks)} checks failed: {names}")
    return 1 if failed else 0


def main() -> int:
    """Runs the checks with the programs of --bin."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=Path(sys.executable).parent, help="directory of the programs")
    return run_checks(commands(parser.parse_args().bin.absolute()))


if __name__ == "__main__":
    sys.exit(main())
