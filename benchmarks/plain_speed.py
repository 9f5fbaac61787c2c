"""Speed of two checkouts of eyas, side by side in rotated pairs. prove_plain.py calls it.

Serving: both checkouts serve the embedded pair with compiled forwards, and this process sends the same requests to one
of them at a time. Training and `eyas prompts`: both run the same stage on the same input, one after the other, and the
seconds are those that the stage writes to its provenance.json.
"""

import concurrent.futures
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pii_set
from result_rows import Row

from eyas.evalsets import FAMILIES, example
from eyas.tree.intervals import median_interval

MIN_RATIO = 0.97
SERVING_ROWS = (  # name, streams, requests of one run, the request's `speculation`
    ("one stream with the head", 1, 24, "auto"),
    ("eight streams with the head", 8, 64, "auto"),
    ("one stream without the head", 1, 10, "off"),
)
MAX_TOKENS = 96
TRAIN_KEYS = ("prompts.limit=160", "respond.max_tokens=96", "train.epochs=2", "prompts.workers=1")
NUM_PROMPTS, PROMPT_CHARS = 2_000, 500
CALM_S, CALM_SHARE, MAX_CALM_WAIT_S = 6.0, 0.05, 600.0  # a server is calm when it used under 5 % of a core for 6 s


@dataclass(frozen=True)
class Checkout:
    """A checkout with its own .venv. name: for file names and progress."""

    name: str
    root: Path

    def command(self, *arguments: object) -> list[str]:
        """Returns an `eyas` command line of this checkout."""
        code = "import sys; from eyas.cli import main; sys.exit(main())"
        return [str(self.root / ".venv" / "bin" / "python"), "-c", code, *map(str, arguments)]

    def run(self, *arguments: object) -> None:
        """Runs `eyas` to its end on one thread. Ends this process with what it printed if it fails."""
        done = subprocess.run(self.command(*arguments), env=environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{self.name}: eyas {arguments[0]} failed:\n{done.stderr[-2000:]}")


def environment() -> dict[str, str]:
    """Returns the environment of one thread, so that two cores hold a server and its client."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def measure_speed(before: Path, after: Path, pairs: int) -> Iterator[Row]:
    """Yields the five rows: speed of `after` over that of `before`, median of the pairs."""
    checkouts = (Checkout("before", before), Checkout("after", after))
    with tempfile.TemporaryDirectory() as directory:
        yield from _measure_serving(checkouts, Path(directory), pairs)
        yield _prepare_training(checkouts, Path(directory)).compare("training", checkouts, pairs)
        yield _prepare_prompts(Path(directory)).compare("eyas prompts", checkouts, pairs)


def compare(name: str, run: Callable[[int], float], pairs: int) -> Row:
    """Returns the row of one comparison. run: speed of checkout 0 or 1, measured now; higher is faster."""
    ratios = []
    for pair in range(pairs):
        speeds = {index: run(index) for index in ((0, 1) if pair % 2 == 0 else (1, 0))}
        ratios.append(speeds[1] / speeds[0])
        print(f"{name}: pair {pair + 1}: {speeds[0]:.4g} before, {speeds[1]:.4g} after", file=sys.stderr, flush=True)
    median, interval = median_interval(ratios, seed=0)
    print(f"{name}: {median:.3f} ({interval.low:.3f} to {interval.high:.3f})", file=sys.stderr, flush=True)
    title = f"speed over the commit before, {name}"
    return Row(title, round(median, 3), f"at least {MIN_RATIO}", median >= MIN_RATIO)


# --- serving ---------------------------------------------------------------------------------------------------------


def _measure_serving(checkouts: tuple[Checkout, ...], directory: Path, pairs: int) -> Iterator[Row]:
    families = list(FAMILIES)
    prompts = [example(families[index % len(families)], "eval", index // len(families)) for index in range(64)]
    messages = [prompt.messages[:1] for prompt in prompts]
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(_serve(checkout, directory)) for checkout in checkouts]
        for name, streams, count, speculation in SERVING_ROWS:

            def run(index: int, streams: int = streams, count: int = count, speculation: str = speculation) -> float:
                return _tokens_per_s(urls[index], messages[:count], streams, speculation)

            for index in (0, 1):
                run(index)
            yield compare(name, run, pairs)


@contextlib.contextmanager
def _serve(checkout: Checkout, directory: Path) -> Iterator[str]:
    """Starts a server, waits until its forwards are compiled, and yields its URL."""
    log = directory / f"{checkout.name}.log"
    with log.open("wb") as file:
        command = checkout.command("serve", "--port", 0, "--threads", 1)
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=file, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if " at http" not in line:
                raise SystemExit(f"{checkout.name}: the server did not start:\n{log.read_text()[-2000:]}")
            print(f"{checkout.name}: {line.strip()}", file=sys.stderr, flush=True)
            wait_calm(process.pid)
            yield line.split(" at ")[1].split()[0]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)


def wait_calm(pid: int) -> None:
    """Waits until a process and its children compute no more, so until its compiler is done."""
    end_s, before_s = time.monotonic() + MAX_CALM_WAIT_S, _cpu_s(pid)
    while time.monotonic() < end_s:
        time.sleep(CALM_S)
        now_s = _cpu_s(pid)
        if now_s - before_s < CALM_SHARE * CALM_S and not _children(pid):
            return
        before_s = now_s
    raise SystemExit(f"process {pid} still computes after {MAX_CALM_WAIT_S:.0f} s")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[str]:
    return [child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


def _tokens_per_s(url: str, messages: list[list[dict[str, str]]], streams: int, speculation: str) -> float:
    """Returns output tokens per second of a closed loop with so many streams."""
    body = {"model": "embedded", "max_tokens": MAX_TOKENS, "temperature": 0, "speculation": speculation}

    def ask(one: list[dict[str, str]]) -> int:
        reply = client.post(f"{url}/chat/completions", json={**body, "messages": one})
        reply.raise_for_status()
        return reply.json()["usage"]["completion_tokens"]

    with httpx.Client(timeout=120) as client, concurrent.futures.ThreadPoolExecutor(streams) as pool:
        started_s = time.monotonic()
        tokens = sum(pool.map(ask, messages))
        return tokens / (time.monotonic() - started_s)


# --- stages ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """A stage that both checkouts run, each in its own run directory below `directory`."""

    verb: str
    output: str  # its directory below the run directory
    recipe: Path
    directory: Path
    keys: tuple[str, ...] = ()

    def run(self, checkout: Checkout) -> float:
        """Runs the stage anew and returns the seconds that it wrote to its provenance.json."""
        out = self.directory / f"{self.verb}-{checkout.name}"
        shutil.rmtree(out / self.output, ignore_errors=True)
        checkout.run(self.verb, self.recipe, *self.keys, "--out", out)
        return json.loads((out / self.output / "provenance.json").read_text())["seconds"]

    def compare(self, name: str, checkouts: tuple[Checkout, ...], pairs: int) -> Row:
        """Returns the row of this stage, after one run of each checkout that fills its caches."""
        for checkout in checkouts:
            self.run(checkout)
        return compare(name, lambda index: 1 / self.run(checkouts[index]), pairs)


def _prepare_training(checkouts: tuple[Checkout, ...], directory: Path) -> Stage:
    """Captures features with the earlier checkout and copies them, so that both train on the same bytes."""
    stage = Stage("train", "head", checkouts[0].root / "recipes" / "tiny.toml", directory, TRAIN_KEYS)
    for verb in ("prompts", "respond", "capture"):
        checkouts[0].run(verb, stage.recipe, *TRAIN_KEYS, "--out", directory / "train-before")
    shutil.copytree(directory / "train-before", directory / "train-after")
    return stage


def _prepare_prompts(directory: Path) -> Stage:
    """Writes prompts of equal length with planted private values."""
    source, recipe = directory / "source.jsonl", directory / "prompts.toml"
    rng, labeled = random.Random(0), pii_set.build_set(0)
    with source.open("w", encoding="utf-8") as file:
        for _ in range(NUM_PROMPTS):
            text = ""
            while len(text) < PROMPT_CHARS:
                text += rng.choice(labeled).text + "\n\n"
            file.write(json.dumps({"prompt": text[:PROMPT_CHARS]}) + "\n")
    recipe.write_text(f'[prompts]\nsource = "{source}"\nlicense = "CC0-1.0"\nworkers = 1\n')
    return Stage("prompts", "prompts", recipe, directory)
