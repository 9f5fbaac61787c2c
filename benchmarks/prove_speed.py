"""Runs the benchmarks of speed on a CPU. `make prove-speed` calls it.

    python benchmarks/prove_speed.py [--only PART] [--target DIR --head DIR] [--prompts FILE] [--env-dir DIR]
                                     [--work DIR]

    forward    plain decoding beside the speed at which the CPU reads memory
    budget     the budget's choices beside plain decoding and beside every fixed arm
    regret     the time per token that these choices lose to the best fixed arm and to an oracle, in a simulation
    peers      eyas beside other engines, in process
    served     `eyas serve` beside itself without a head and beside other servers, over HTTP

`benchmarks/smollm2_target.py` writes a published target; `eyas run` trains a head for it. Without --target, all parts
run on the embedded pair. Each part is a script in benchmarks/, which explains its method and prints one JSON object for
each row. A part runs as several jobs, one for each number of streams or for each peer.

Exits 1 if a row misses its target. Progress goes to stderr. Takes two hours on two idle cores. If it is stopped, the
same command with the same --work continues with the job that was not finished; it measures all jobs again if the source
or another option has changed.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from compare_peers import PEERS as ENGINES
from served_speed import PEERS as SERVERS

from eyas.base.provenance import digest_bytes
from eyas.base.storage import write_json_atomic
from eyas.bench.workload import BUILTIN
from eyas.model.target_dir import EMBEDDED

HERE = Path(__file__).resolve().parent
SOURCES = (HERE, HERE.parent / "src" / "eyas")
SUFFIXES = (".py", ".c", ".h", ".cpp")
STREAMS = ("1", "8", "16")


@dataclass(frozen=True)
class Part:
    """A script, and how it is divided into jobs.

    Attributes:
        script: The file in benchmarks/.
        taken: The options of prove_speed that it takes.
        divided_by: The option that differs between its jobs; None for one job.
        values: The value of this option in each job.
        fixed: Further words of each job's command.
    """

    script: str
    taken: tuple[str, ...]
    divided_by: str | None = None
    values: tuple[str, ...] = ("",)
    fixed: tuple[str, ...] = ()


PAIR = ("target", "head", "prompts")
PARTS = {
    "forward": Part("forward_speed.py", ("target", "prompts")),
    "budget": Part("budget_speed.py", PAIR, "--streams", STREAMS, ("--seconds", "150")),
    "regret": Part("budget_regret.py", PAIR),
    "peers": Part(
        "compare_peers.py",
        (*PAIR, "env_dir"),
        "--peers",
        tuple(ENGINES),
        ("--streams", ",".join(STREAMS), "--pairs", "5"),
    ),
    "served": Part("served_speed.py", (*PAIR, "env_dir"), "--peers", tuple(SERVERS), ("--repeats", "3")),
}


def jobs(only: str | None, options: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Yields the name and the command of each job."""
    for name, part in PARTS.items():
        if only not in (None, name):
            continue
        words = [word for option in part.taken for word in (f"--{option.replace('_', '-')}", options[option])]
        for value in part.values:
            divided = [] if part.divided_by is None else [part.divided_by, value]
            yield f"{name} {value}".strip(), [part.script, *words, *part.fixed, *divided]


def run_job(command: list[str], kept: Path | None, version: str) -> int:
    """Runs a job and prints its rows, or prints the rows that an earlier run has kept. Returns the exit code.

    Args:
        command: the script and its options.
        kept: the file that keeps the rows; None to keep none.
        version: what the rows depend on besides the command. A file of another version or command is not used.
    """
    key = {"command": command, "version": version}
    if kept is not None and kept.is_file():
        before = json.loads(kept.read_text())
        if before["key"] == key:
            print(before["rows"], end="", flush=True)
            return before["code"]
    lines: list[str] = []
    with subprocess.Popen([sys.executable, HERE / command[0], *command[1:]], stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None, "it is a pipe"
        for line in job.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if kept is not None and job.returncode in (0, 1):  # it has printed all rows
        write_json_atomic(kept, {"key": key, "rows": "".join(lines), "code": job.returncode})
    return job.returncode


def main() -> int:
    """Runs the chosen parts, which print their rows. Returns 1 if a job fails, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--target", default=EMBEDDED)
    parser.add_argument("--head", default=EMBEDDED)
    parser.add_argument("--prompts", default=BUILTIN)
    parser.add_argument("--env-dir", default=str(Path.home() / ".cache" / "eyas" / "peers"))
    parser.add_argument("--work", type=Path, help="keeps the rows of finished jobs")
    options = vars(parser.parse_args())
    only, work, codes = options.pop("only"), options.pop("work"), []
    files = sorted(path for source in SOURCES for path in source.rglob("*") if path.suffix in SUFFIXES)
    version = digest_bytes(b"".join(path.read_bytes() for path in files))
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
    for name, command in jobs(only, options):
        print(f"prove-speed: {name}", file=sys.stderr, flush=True)
        kept = None if work is None else work / f"{name.replace(' ', '-')}.json"
        codes.append(run_job(command, kept, version))
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
