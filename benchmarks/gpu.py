"""Proves eyas on a GPU with one command. `make prove-gpu` calls it.

    python -m benchmarks.gpu [--minutes 8] [--out DIR] [--only PART ...] [--tiny] [--soak]

Needs torch, triton, transformers, numpy and pydantic. Each part runs in its own process, so a crash, a hang or a lack
of memory loses nothing of the others. Parts run in the order of their value; a part that cannot finish
in the rest of the minutes is not started. DIR gets four files:

    rows.jsonl    one JSON object for each row, appended as soon as it is measured; before them, the machine
    index.html    the rows as a page, with what was missed
    log.txt       what the parts print on stderr
    machine.json  device, driver, versions and commit

A second call with the same DIR skips the parts that are complete for this source, device and these versions. Exits 1
if a row misses its target or was not measured, for example because there is no GPU, and 2 if a package is missing.
--tiny uses small shapes, also on a CPU, to test the script. --soak adds twenty minutes of random requests.
"""

import argparse
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parents[1]
PATHS = [str(ROOT / "src"), str(ROOT / "benchmarks"), str(ROOT)]
sys.path[:0] = [path for path in PATHS if path not in sys.path]

from gpu_page import COMPLETE, latest_rows, write_page  # noqa: E402

PARTS_SCRIPT = ROOT / "benchmarks" / "gpu_parts.py"
MAX_PART_S = 540.0  # of any process
RESERVE_S = 3.0  # of the minutes, to stop the last part and to write the page
TINY_S = 1.0  # with --tiny, a part may start this late
SOAKS, SOAK_S, TINY_SOAK_S = 3, 400, 3


@dataclass(frozen=True)
class Part:
    """A part: it starts if `least_s` seconds are left, and is stopped after `most_s`."""

    name: str
    least_s: float
    most_s: float


PARTS = (
    Part("bandwidth", 15, 60),
    Part("tests", 45, 150),
    Part("equality", 60, 200),
    Part("engine", 60, 240),
    Part("attention", 25, 120),
    Part("training", 40, 180),
    Part("memory", 30, 120),
)


@dataclass(frozen=True)
class Run:
    """One call of this script: where the rows go, and for what source and machine they are.

    Attributes:
        out: The directory.
        tiny: True for small shapes.
        machine: Device, driver, versions and commit.
        key: The digest of source, device and versions. Rows with another key are kept, but not shown.
    """

    out: Path
    tiny: bool
    machine: dict[str, Any]
    key: str

    @property
    def has_gpu(self) -> bool:
        """True if there is a CUDA device."""
        return self.machine["device"] != "cpu"

    def read_rows(self) -> list[dict[str, Any]]:
        """Returns the rows with this key, without a line that a killed process has not finished."""
        rows = []
        with contextlib.suppress(FileNotFoundError):
            for line in (self.out / "rows.jsonl").read_text().splitlines():
                with contextlib.suppress(ValueError):
                    row = json.loads(line)
                    rows += [row] if row.get("key") == self.key and "part" in row else []
        return rows

    def is_complete(self, part: str) -> bool:
        """Returns True if an earlier call finished the part."""
        return any(row["part"] == part and row["name"] == COMPLETE and row["ok"] for row in self.read_rows())

    def append(self, row: dict[str, Any]) -> None:
        """Prints a row and appends it to rows.jsonl."""
        line = json.dumps(row | {"key": self.key})
        with (self.out / "rows.jsonl").open("a") as file:
            file.write(line + "\n")
        print(json.dumps(row), flush=True)


def part_row(
    part: str, name: str, figure: float | None, ok: bool | None, seconds: float, note: str = ""
) -> dict[str, Any]:
    """Returns a row about a part as a whole."""
    row = {"part": part, "name": name, "figure": figure, "target": "told", "ok": ok, "seconds": round(seconds, 1)}
    return row | ({"note": note} if note else {})


def child_command(part: str, *options: str) -> list[str]:
    """Returns the command that runs a part."""
    return [sys.executable, str(PARTS_SCRIPT), part, *options]


def child_environment(**others: str) -> dict[str, str]:
    """Returns the environment of a part: this checkout comes first on the path."""
    path = os.pathsep.join([*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])])
    fixed = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return os.environ | fixed | {"EYAS_PRIVACY_KEY": "a key for benchmarks, of 32 chars"} | others


def run_part(run: Run, part: str, limit_s: float, log: TextIO, options: Sequence[str]) -> None:
    """Runs a part for at most `limit_s` seconds and appends its rows. Removes the temporary files that it leaves."""
    command = child_command(part, *options, *(["--tiny"] if run.tiny else []), "--seconds", f"{limit_s:.0f}")
    print(f"{part}: at most {limit_s:.0f} s", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        environment = child_environment(TMPDIR=scratch)
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, env=environment, start_new_session=True
        )
        read_part(run, part, limit_s, log, child)


def read_part(run: Run, part: str, limit_s: float, log: TextIO, child: subprocess.Popen[str]) -> None:
    """Appends the rows that a part prints. Stops the part after `limit_s` seconds."""
    began_s = last_s = time.monotonic()
    stopped = threading.Event()

    def stop() -> None:
        stopped.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    timer = threading.Timer(limit_s, stop)
    timer.start()
    assert child.stdout is not None, "the output is piped"
    try:
        for line in child.stdout:
            try:
                row = json.loads(line)
            except ValueError:
                log.write(line)  # a library has printed something
                continue
            now_s = time.monotonic()
            run.append({"part": part} | row | {"seconds": round(now_s - last_s, 1)})
            last_s = now_s
        code = child.wait()
    finally:
        timer.cancel()
        if child.poll() is None:
            stop()
    seconds = time.monotonic() - began_s
    if stopped.is_set():
        run.append(part_row(part, COMPLETE, None, None, seconds, f"stopped after {seconds:.0f} s"))
    elif code:
        log.flush()
        note = f"exit code {code}: {last_line(run.out / 'log.txt')}"
        run.append(part_row(part, COMPLETE, None, False, seconds, note))
    else:
        run.append(part_row(part, COMPLETE, round(seconds, 1), True, seconds))


def last_line(path: Path) -> str:
    """Returns the last line of a text file that is not empty, at most 300 characters of it."""
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "no message"


def run_parts(run: Run, parts: Sequence[Part], ends_s: float) -> None:
    """Runs the parts that are not complete, in order, until the time ends."""
    for part in parts:
        left_s = ends_s - time.monotonic() - RESERVE_S
        if run.is_complete(part.name):
            print(f"{part.name}: complete", file=sys.stderr, flush=True)
        elif not (run.has_gpu or run.tiny):
            run.append(part_row(part.name, COMPLETE, None, None, 0, "not measured: no CUDA device"))
        elif left_s < (TINY_S if run.tiny else part.least_s):
            note = f"not started: {max(left_s, 0):.0f} s were left, and it needs {part.least_s:.0f} s"
            run.append(part_row(part.name, COMPLETE, None, None, 0, note))
        else:
            soak = ["--soak", str(TINY_SOAK_S if run.tiny else SOAK_S)] if part.name.startswith("soak") else []
            with (run.out / "log.txt").open("a") as log:
                log.write(f"--- {part.name}\n")
                log.flush()
                run_part(run, part.name, min(part.most_s, left_s, MAX_PART_S), log, soak)
        write_page(run.out / "index.html", run.machine, latest_rows(run.read_rows()))


def digest_source() -> str:
    """Returns the digest of the files that decide what is measured."""
    digest = hashlib.sha256()
    for folder in ("src", "benchmarks", "tests/gpu", "tests/kernels", "tests/engine"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def read_commit() -> str | None:
    """Returns the commit, with -dirty behind it if a file has changed; None outside of a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    with contextlib.suppress(OSError):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip() or None
    return None


def read_machine() -> dict[str, Any] | None:
    """Returns device, driver, versions and commit; None if torch or another package cannot be imported."""
    done = subprocess.run(
        child_command("machine"), stdout=subprocess.PIPE, text=True, cwd=ROOT, env=child_environment(), check=False
    )
    if done.returncode:
        return None
    return json.loads(done.stdout.splitlines()[-1]) | {"commit": read_commit(), "source": digest_source()}


def start_run(out: Path, tiny: bool, machine: dict[str, Any]) -> Run:
    """Makes the directory and writes the machine into it, once for each key."""
    stable = {name: value for name, value in machine.items() if name not in ("commit", "clocks")} | {"tiny": tiny}
    key = hashlib.sha256(json.dumps(stable, sort_keys=True).encode()).hexdigest()[:12]
    run = Run(out, tiny, machine, key)
    out.mkdir(parents=True, exist_ok=True)
    (out / "machine.json").write_text(json.dumps(machine | {"tiny": tiny}, indent=1) + "\n")
    if not run.read_rows():
        with (out / "rows.jsonl").open("a") as file:
            file.write(json.dumps({"machine": machine | {"tiny": tiny}, "key": key}) + "\n")
    return run


def choose_parts(only: Sequence[str] | None, soak: bool) -> Iterator[Part]:
    """Yields the parts of this call."""
    yield from (part for part in PARTS if only is None or part.name in only)
    if soak:  # in parts, so that no process runs for more than nine minutes
        yield from (Part(f"soak{number}", SOAK_S + 60, SOAK_S + 120) for number in range(1, SOAKS + 1))


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8, help="of all parts together, without --soak (default: 8)")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="directory of the results")
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], metavar="PART",
                        help=f"run only these parts: {', '.join(part.name for part in PARTS)}")  # fmt: skip
    parser.add_argument("--tiny", action="store_true", help="small shapes, also on a CPU")
    parser.add_argument("--soak", action="store_true", help="also send random requests for twenty minutes")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the parts. Returns 1 if a row misses its target or was not measured, 2 without torch, otherwise 0."""
    began_s = time.monotonic()
    parsed = parse_arguments(arguments)
    machine = read_machine()
    if machine is None:
        packages = "torch transformers numpy pydantic"
        print(f"A package of {packages} cannot be imported. Run: pip install {packages}", file=sys.stderr)
        return 2
    run = start_run(parsed.out, parsed.tiny, machine)
    parts = list(choose_parts(parsed.only, parsed.soak))
    seconds = 60 * parsed.minutes + (SOAKS * (SOAK_S + 60) if parsed.soak else 0)
    run_parts(run, parts, began_s + seconds)
    names = {part.name for part in parts}
    rows = [row for row in latest_rows(run.read_rows()) if row["part"] in names]
    missed = [row for row in rows if not row["ok"]]
    print(f"{len(rows) - len(missed)} of {len(rows)} rows pass. Page: {run.out / 'index.html'}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the running part is stopped, too
    sys.exit(main())
