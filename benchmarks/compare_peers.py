"""Compares the throughput of eyas with other engines (peers) on this CPU. `make peers` calls it.

    python benchmarks/compare_peers.py [--peers transformers,vllm,openvino,llamacpp] [--streams 1,8] [--pairs N]
                                       [--target DIR] [--head DIR] [--prompts FILE] [--env-dir DIR]

Every engine uses the same target and head, bfloat16, the number of threads of torch, a closed loop, greedy decoding and
no prefix cache. The prompts mix all tasks, or are those of FILE. Every answer of a peer has the length of that of eyas.

A row is the throughput of eyas (arm chosen automatically) over the peer's faster arm, median over pairs. The arms of a
pair run back to back in rotated order. For each arm, stderr shows the tokens per second, the acceptance length if the
peer reports it, and the share of tokens that equal those of eyas. Near ties in bfloat16 change some tokens; wrong
weights would change almost all. Prints one JSON object for each row and exits 1 if a row misses its target.

Each peer runs in its own environment below --env-dir, which `make peers` and `make peers-llamacpp` install. A signal
stops its process while another one is measured. A peer that is not installed is named on stderr and has no row.

    transformers   `generate`, in the environment of eyas. It has no EAGLE-3; its faster arm at one stream is prompt
                   lookup
    vllm           loads the head directory without conversion; chains only
    openvino       needs target and head exported by optimum-cli (float16 weights, bfloat16 arithmetic); runs a chain
    llamacpp       needs GGUF files. Its converter rejects unknown tokenizers; peer_drivers/to_gguf.py works around this
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from threading import Timer
from typing import Any

import torch
from peer_drivers.protocol import LoadResult, LoadTask, Options
from prove_engine import DTYPE, MAX_TOKENS, MIN_REQUESTS, REQUESTS_PER_STREAM, SHAPE, Pair, measure_rotated
from result_rows import Row, print_rows

from eyas.bench.config import BenchConfig
from eyas.bench.engine_load import build_auto_engine
from eyas.bench.engine_request_loops import EngineBlock, run_closed_loop
from eyas.bench.workload import BUILTIN, Prompt, interleave_tasks, load_workload
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.engine import Engine
from eyas.formats.head_dir import read_head
from eyas.kernels.aot_compile import compile_pair
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED, resolve_target
from eyas.recipe import resolve_head
from eyas.tree.acceptance_length import acceptance_length
from eyas.tree.intervals import median_interval

DRIVERS = Path(__file__).parent / "peer_drivers"
LOAD_S, MEASURE_S = 900, 600
EYAS = "eyas auto"


class NotInstalledError(Exception):
    """A peer is not installed; the text names what is missing."""


class PeerFailedError(Exception):
    """A peer failed; the text shows the end of its log."""


@dataclass(frozen=True)
class Setup:
    """The inputs of every peer. scratch: a directory for files in the peer's format."""

    env_dir: Path
    target: Path
    head: Path
    scratch: Path
    options: Options

    def python(self, peer: str) -> Path:
        """Returns the Python interpreter of a peer's environment. Raises NotInstalledError."""
        found = self.env_dir / peer / "bin" / "python"
        if not (self.env_dir / peer / ".installed").is_file():
            raise NotInstalledError(f"{self.env_dir / peer} does not exist. Run `make peers`")
        return found


@dataclass(frozen=True)
class Arm:
    """One configuration of a peer. at: the numbers of streams at which it is measured; None: all."""

    command: Sequence[str | Path]
    options: Any  # the dataclass of the driver's options, usually Options
    environment: Mapping[str, str] = field(default_factory=dict)
    at: tuple[int, ...] | None = None


def transformers_arms(setup: Setup) -> dict[str, Arm]:
    """Returns the arms of transformers: static batches, and prompt lookup with one prompt at a time."""
    command = [sys.executable, DRIVERS / "run_transformers.py"]
    lookup = replace(setup.options, prompt_lookup=True)
    return {"static cache": Arm(command, setup.options), "prompt lookup": Arm(command, lookup, at=(1,))}


def vllm_arms(setup: Setup) -> dict[str, Arm]:
    """Returns the arms of vLLM: the baseline and a chain."""
    python = setup.python("vllm")
    environment = {
        "LD_PRELOAD": str(python.parent.parent / "lib" / "libiomp5.so"),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return baseline_and_eagle3([python, DRIVERS / "run_vllm.py"], setup.options, setup.head, environment)


def openvino_arms(setup: Setup) -> dict[str, Arm]:
    """Exports target and head for OpenVINO and returns its arms: the baseline and a chain."""
    python = setup.python("openvino")
    exported = {"target": setup.scratch / "openvino-target", "head": setup.scratch / "openvino-head"}
    for name, source in {"target": setup.target, "head": setup.head}.items():
        precision = {"bfloat16": "fp16", "float32": "fp32"}[setup.options.dtype]
        words = [python.parent / "optimum-cli", "export", "openvino", "-m", source, "--weight-format", precision]
        words += ["--task", "text-generation-with-past", "--disable-convert-tokenizer"]
        # Optimum requires the flag for every architecture outside transformers. Heads of eyas contain no code.
        run_converter([*words, *(["--trust-remote-code"] if name == "head" else []), exported[name]])
    options = replace(setup.options, target=str(exported["target"]))
    return baseline_and_eagle3([python, DRIVERS / "run_openvino.py"], options, exported["head"], {})


def llamacpp_arms(setup: Setup) -> dict[str, Arm]:
    """Converts target and head to GGUF and returns the arms of llama.cpp: the baseline and a chain."""
    own = setup.env_dir / "llamacpp"
    server = shutil.which("llama-server", path=f"{own / 'bin'}{os.pathsep}{os.environ['PATH']}")
    script = shutil.which("convert_hf_to_gguf.py", os.F_OK, f"{own / 'source'}{os.pathsep}{os.environ['PATH']}")
    if server is None or script is None:
        raise NotInstalledError("llama-server or convert_hf_to_gguf.py is missing. Run `make peers-llamacpp`")
    if "draft-eagle3" not in subprocess.run([server, "--help"], capture_output=True, text=True).stdout:
        raise NotInstalledError(f"{server} does not support --spec-type draft-eagle3. Run `make peers-llamacpp`")
    target, head = setup.scratch / "target.gguf", setup.scratch / "head.gguf"
    convert = [sys.executable, DRIVERS / "to_gguf.py", Path(script).parent, "--outtype", "bf16", "--outfile"]
    run_converter([*convert, target, setup.target])
    run_converter([*convert, head, setup.head, "--target-model-dir", setup.target])
    options = replace(setup.options, target=str(target))
    return baseline_and_eagle3([sys.executable, DRIVERS / "run_llamacpp.py"], options, head, {"LLAMA_SERVER": server})


def baseline_and_eagle3(
    command: Sequence[str | Path], options: Options, head: Path, environment: Mapping[str, str]
) -> dict[str, Arm]:
    """Returns the two arms of a peer that supports EAGLE-3."""
    return {
        "baseline": Arm(command, options, environment),
        f"{options.method} chain {options.chain}": Arm(command, replace(options, head=str(head)), environment),
    }


def run_converter(words: Sequence[str | Path]) -> None:
    """Runs a converter. Raises PeerFailedError with the end of its output."""
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=peer_environment({}))
    if done.returncode != 0:
        raise PeerFailedError(
            f"{Path(words[0]).name} failed with exit code {done.returncode}: ...{done.stdout[-2000:]}"
        )


def peer_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a peer: the threads of torch, no PYTHONPATH, and an offline hub."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return kept | {"OMP_NUM_THREADS": str(torch.get_num_threads()), "HF_HUB_OFFLINE": "1"} | dict(more)


class Driver:
    """The process of a peer. It is stopped by a signal except during its own measurements.

    It leads a process group, so that a signal also reaches its children. If the benchmark is killed, the system sends
    SIGCONT and SIGHUP to the stopped group, which ends it.
    """

    def __init__(self, arm: Arm, log: Path) -> None:
        self.log = log
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*arm.command, json.dumps(asdict(arm.options))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=peer_environment(arm.environment),
                process_group=0,
            )

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *_: object) -> None:
        self._signal(signal.SIGKILL)
        self.process.communicate()

    def load(self) -> str:
        """Waits until the model is loaded. Returns the peer's name and version."""
        name = self._read_answer(LOAD_S)["ready"]
        self._signal(signal.SIGSTOP)
        return name

    def measure(self, work: LoadTask) -> LoadResult:
        """Runs one closed loop and returns its result."""
        return LoadResult(**self.request(asdict(work)))

    def request(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Continues the process, sends one line, and returns the answer after stopping the process again."""
        assert self.process.stdin is not None, "it is a pipe"
        self._signal(signal.SIGCONT)
        with suppress(BrokenPipeError):  # the process has ended; _read_answer raises
            self.process.stdin.write(json.dumps(task) + "\n")
            self.process.stdin.flush()
        answer = self._read_answer(MEASURE_S)
        self._signal(signal.SIGSTOP)
        return answer

    def _read_answer(self, limit_s: float) -> dict[str, Any]:
        assert self.process.stdout is not None, "it is a pipe"
        late = Timer(limit_s, self._signal, (signal.SIGKILL,))
        late.start()
        line = self.process.stdout.readline()
        late.cancel()
        if not line:
            raise PeerFailedError(
                f"The peer did not answer within {limit_s:g} s: ...{self.log.read_text(errors='replace')[-2000:]}"
            )
        return json.loads(line)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # the process has ended; _read_answer raises
            os.killpg(self.process.pid, number)


PEERS: dict[str, Callable[[Setup], dict[str, Arm]]] = {
    "transformers": transformers_arms,
    "vllm": vllm_arms,
    "openvino": openvino_arms,
    "llamacpp": llamacpp_arms,
}
LEAST = {1: 1.25, 8: 1.2, 16: 1.1}
"""The target of the ratio at these numbers of streams. Other numbers have none."""


def load_pair(target: str, head: str, prompts: str) -> Pair:
    """Loads target, head and prompts, and compiles the forwards."""
    stored = read_head(resolve_head(head), DTYPE)
    loaded = Target.load(target, DTYPE, stored.config.aux_layer_ids)
    draft = Eagle3Spec(stored.head.pack_projections(), stored.vocab, SHAPE)
    print("Compiling the forwards (about a minute the first time)", file=sys.stderr, flush=True)
    compile_pair(loaded, draft.head)
    config = BenchConfig(prompts=prompts, prompts_per_task=10 if prompts == BUILTIN else 200)
    workload, _ = load_workload(config, None, loaded)
    return Pair(loaded, draft, interleave_tasks(workload))


def eyas_engine(pair: Pair, streams: int) -> Engine:
    """Builds the engine that `eyas serve` runs."""
    return build_auto_engine(pair.target, pair.draft, streams, pair.context)


@dataclass(frozen=True)
class EyasRun:
    """The warm engine of eyas at one number of streams, and the task that its answers define for the peers."""

    engine: Engine
    prompts: Sequence[Prompt]
    work: LoadTask
    answers: list[list[int]]

    @staticmethod
    def at(pair: Pair, streams: int) -> "EyasRun":
        number = max(MIN_REQUESTS, streams * REQUESTS_PER_STREAM)
        some = [pair.prompts[index % len(pair.prompts)] for index in range(number)]
        engine = eyas_engine(pair, streams)
        answers = answers_by_prompt(run_closed_loop(engine, some, MAX_TOKENS))
        work = LoadTask(streams, [list(prompt.ids) for prompt in some], [len(answer) for answer in answers])
        return EyasRun(engine, some, work, answers)


def compare_with_peer(peer: str, drivers: Mapping[str, Driver], ours: EyasRun, pairs: int) -> Row:
    """Measures one row: eyas over the fastest of these arms."""
    streams = ours.work.streams
    last: dict[str, EngineBlock | LoadResult] = {}

    def run_ours() -> float:
        block = run_closed_loop(ours.engine, ours.prompts, MAX_TOKENS)
        last[EYAS] = block
        return block.result.output_tps

    def run(name: str) -> float:
        done = drivers[name].measure(ours.work)
        lengths = [len(answer) for answer in done.answers]
        assert lengths == ours.work.lengths, "every answer has the requested length"
        last[name] = done
        return sum(lengths) / done.seconds

    arms = {EYAS: run_ours} | {name: lambda name=name: run(name) for name in drivers}
    for arm in arms.values():
        arm()  # warm-up
    found = measure_rotated(arms, pairs, f"{peer}, {streams} streams")
    best = max(drivers, key=lambda name: median(found[name]))
    middle, span = median_interval([a / b for a, b in zip(found[EYAS], found[best], strict=True)], 0)
    told = {
        name: {
            "output_tps": round(median(rates), 1),
            "acceptance_length": acceptance_of(last[name]),
            "same_tokens": round(same_tokens(answers_by_prompt(last[name]), ours.answers), 3),
        }
        for name, rates in found.items()
    }
    print(json.dumps({"peer": peer, "streams": streams, "arms": told}), file=sys.stderr)
    least, at = LEAST.get(streams), f"{streams} streams" if streams > 1 else "1 stream"
    target, is_met = ("told", True) if least is None else (f"at least {least}", middle >= least)
    note = ", ".join(f"{name} {values['output_tps']:.0f} tokens/s" for name, values in told.items())
    name = f"{EYAS} over {peer} ({best}), output tokens per second, {at}"
    return Row(name, round(middle, 3), target, is_met, (round(span.low, 3), round(span.high, 3)), note)


def acceptance_of(measured: EngineBlock | LoadResult) -> float | None:
    """Returns the acceptance length, or None if the arm does not speculate or does not report it."""
    if isinstance(measured, EngineBlock):
        rounds = [answer.rounds for answer in measured.answers]
        return round(acceptance_length(rounds), 2)
    if measured.accepted is None or not measured.rounds:
        return None
    return round(1 + measured.accepted / measured.rounds, 2)


def answers_by_prompt(measured: EngineBlock | LoadResult) -> list[list[int]]:
    """Returns the answers in the order of the prompts."""
    if isinstance(measured, LoadResult):
        return measured.answers
    return [answer.token_ids for answer in sorted(measured.answers, key=lambda answer: int(answer.request.id))]


def same_tokens(theirs: Sequence[Sequence[int]], ours: Sequence[Sequence[int]]) -> float:
    """Returns the share of tokens that come before the first difference of their answer."""
    same = 0
    for a, b in zip(theirs, ours, strict=True):
        same += next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return same / sum(len(answer) for answer in ours)


def measure_peer(peer: str, setup: Setup, ours: Sequence[EyasRun], pairs: int) -> Iterator[Row]:
    """Starts the processes of one peer, yields its rows and ends the processes."""
    with ExitStack() as stack:
        arms = PEERS[peer](setup)
        drivers = {}
        for name, arm in arms.items():
            drivers[name] = stack.enter_context(Driver(arm, setup.scratch / f"{peer} {name}.log"))
            print(f"{peer}, {name}: {drivers[name].load()} is loaded", file=sys.stderr, flush=True)
        for one in ours:
            at = {name: drivers[name] for name, arm in arms.items() if arm.at is None or one.work.streams in arm.at}
            yield compare_with_peer(peer, at, one, pairs)


def report_failures(peer: str, rows: Iterator[Row], missing: str) -> Iterator[Row]:
    """Yields the rows. A peer that is not installed has none; one that fails has the row `missing` without a figure."""
    try:
        yield from rows
    except NotInstalledError as error:
        print(f"{peer} is not installed: {error}", file=sys.stderr, flush=True)
    except PeerFailedError as error:
        print(f"{peer} failed: {error}", file=sys.stderr, flush=True)
        yield Row(missing, None, "a figure", False)


def main() -> int:
    """Measures one peer after the other, so that only one peer's models are in memory, and prints the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--target", default=EMBEDDED)
    parser.add_argument("--head", default=EMBEDDED)
    parser.add_argument("--prompts", default=BUILTIN)
    parser.add_argument("--env-dir", type=Path, default=Path.home() / ".cache" / "eyas" / "peers")
    parsed = parser.parse_args()
    peers, streams = parsed.peers.split(","), [int(number) for number in parsed.streams.split(",")]
    if unknown := set(peers) - set(PEERS):
        parser.error(f"unknown --peers {', '.join(sorted(unknown))}: choose from {', '.join(PEERS)}")
    pair = load_pair(parsed.target, parsed.head, parsed.prompts)
    target, head = resolve_target(parsed.target).absolute(), resolve_head(parsed.head).absolute()
    ours = [EyasRun.at(pair, number) for number in streams]
    options = Options(str(target), None, torch.get_num_threads(), max(streams), pair.context)
    with tempfile.TemporaryDirectory() as scratch:
        setup = Setup(parsed.env_dir.absolute(), target, head, Path(scratch), options)
        found = ((peer, measure_peer(peer, setup, ours, parsed.pairs)) for peer in peers)
        return print_rows(row for peer, rows in found for row in report_failures(peer, rows, f"{EYAS} over {peer}"))


if __name__ == "__main__":
    sys.exit(main())
