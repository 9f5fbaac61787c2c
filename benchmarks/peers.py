"""`make peers`: eyas beside other engines on this CPU; one JSON object a row on stdout, exit 1 if one misses.

    python benchmarks/peers.py [--peers transformers,vllm,openvino,llamacpp] [--streams 1,8] [--pairs N]
                               [--target DIR] [--head DIR] [--env-dir DIR]

One target and one head in every engine, bfloat16, as many threads as torch uses here, closed loop, greedy, mixed tasks,
nothing kept of a prompt between answers. The lengths of the answers are those that eyas gives; peers are held to them.
A row is eyas with its budget over the peer's better arm: the median of the ratios of rounds in which the arms run back
to back in rotated order. To stderr go the interval and, of each arm, tokens per second, acceptance length where it is
told, and how far its answers are those of eyas (near ties in bfloat16 part them): wrong weights would show there.

Each peer runs in an environment of its own under --env-dir (`make peers` and `make peers-llamacpp` make them), and is
stopped by a signal while another one is measured. A peer that is not there is named on stderr and has no row.

    transformers   `generate`, in eyas's own environment; has no EAGLE-3, its better arm at one stream is prompt lookup
    vllm           loads the head directory as it is; chains only
    openvino       wants target and head exported by optimum-cli (weights float16, arithmetic bfloat16); a chain here
    llamacpp       wants GGUF files; its converter refuses tokenizers it has not seen, hence peer_drivers/to_gguf.py
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
from peer_drivers.lines import Done, Options, Work
from prove_engine import DTYPE, LEAST_REQUESTS, MAX_TOKENS, REQUESTS_PER_STREAM, SHAPE, Pair, measure_rotated
from rows import Row, print_rows

from eyas.bench.engine_load import build_auto_engine
from eyas.bench.engine_request_loops import EngineBlock, run_closed_loop
from eyas.bench.workload import Prompt, interleave_tasks, load_eval_prompts
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.engine import Engine
from eyas.formats.head_dir import read_head
from eyas.kernels.aot_compile import compile_pair
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED, resolve_target
from eyas.recipe import resolve_head
from eyas.tree.stats import acceptance_length, median_interval

DRIVERS = Path(__file__).parent / "peer_drivers"
LOAD_S, MEASURE_S = 900, 600
EYAS = "eyas auto"


class NotInstalledError(Exception):
    """The peer is not on this machine; says what is missing."""


class PeerFailedError(Exception):
    """The peer is there and does not do what it is asked; says the end of its log."""


@dataclass(frozen=True)
class Setup:
    """What every peer is given. scratch: for files in the peer's own format."""

    env_dir: Path
    target: Path
    head: Path
    scratch: Path
    options: Options

    def python(self, peer: str) -> Path:
        """The interpreter of a peer's environment."""
        found = self.env_dir / peer / "bin" / "python"
        if not (self.env_dir / peer / ".installed").is_file():
            raise NotInstalledError(f"no {self.env_dir / peer}; `make peers` makes it")
        return found


@dataclass(frozen=True)
class Arm:
    """One way to run a peer. at: the numbers of streams that it is measured at; None: all."""

    command: Sequence[str | Path]
    options: Any  # a dataclass that the driver knows, Options mostly
    environment: Mapping[str, str] = field(default_factory=dict)
    at: tuple[int, ...] | None = None


def transformers_arms(setup: Setup) -> dict[str, Arm]:
    """Static batches; prompt lookup takes one prompt at a time."""
    command = [sys.executable, DRIVERS / "run_transformers.py"]
    lookup = replace(setup.options, prompt_lookup=True)
    return {"static cache": Arm(command, setup.options), "prompt lookup": Arm(command, lookup, at=(1,))}


def vllm_arms(setup: Setup) -> dict[str, Arm]:
    """Plain and chain of three."""
    python = setup.python("vllm")
    environment = {
        "LD_PRELOAD": str(python.parent.parent / "lib" / "libiomp5.so"),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return baseline_and_eagle3([python, DRIVERS / "run_vllm.py"], setup.options, setup.head, environment)


def openvino_arms(setup: Setup) -> dict[str, Arm]:
    """Plain and chain of three, both exported here."""
    python = setup.python("openvino")
    exported = {"target": setup.scratch / "openvino-target", "head": setup.scratch / "openvino-head"}
    for name, source in {"target": setup.target, "head": setup.head}.items():
        precision = {"bfloat16": "fp16", "float32": "fp32"}[setup.options.dtype]
        words = [python.parent / "optimum-cli", "export", "openvino", "-m", source, "--weight-format", precision]
        words += ["--task", "text-generation-with-past", "--disable-convert-tokenizer"]
        # Optimum asks for the flag wherever the architecture is not one of transformers; eyas's heads hold no code.
        run_converter([*words, *(["--trust-remote-code"] if name == "head" else []), exported[name]])
    options = replace(setup.options, target=str(exported["target"]))
    return baseline_and_eagle3([python, DRIVERS / "run_openvino.py"], options, exported["head"], {})


def llamacpp_arms(setup: Setup) -> dict[str, Arm]:
    """Plain and chain of three, both converted here."""
    own = setup.env_dir / "llamacpp"
    server = shutil.which("llama-server", path=f"{own / 'bin'}{os.pathsep}{os.environ['PATH']}")
    script = shutil.which("convert_hf_to_gguf.py", os.F_OK, f"{own / 'source'}{os.pathsep}{os.environ['PATH']}")
    if server is None or script is None:
        raise NotInstalledError("no llama-server or no convert_hf_to_gguf.py; `make peers-llamacpp` makes both")
    if "draft-eagle3" not in subprocess.run([server, "--help"], capture_output=True, text=True).stdout:
        raise NotInstalledError(
            f"{server} does not know --spec-type draft-eagle3; `make peers-llamacpp` makes one that does"
        )
    target, head = setup.scratch / "target.gguf", setup.scratch / "head.gguf"
    convert = [sys.executable, DRIVERS / "to_gguf.py", Path(script).parent, "--outtype", "bf16", "--outfile"]
    run_converter([*convert, target, setup.target])
    run_converter([*convert, head, setup.head, "--target-model-dir", setup.target])
    options = replace(setup.options, target=str(target))
    return baseline_and_eagle3([sys.executable, DRIVERS / "run_llamacpp.py"], options, head, {"LLAMA_SERVER": server})


def baseline_and_eagle3(
    command: Sequence[str | Path], options: Options, head: Path, environment: Mapping[str, str]
) -> dict[str, Arm]:
    """The two arms of a peer that runs EAGLE-3."""
    return {
        "baseline": Arm(command, options, environment),
        f"eagle3 chain {options.chain}": Arm(command, replace(options, head=str(head)), environment),
    }


def run_converter(words: Sequence[str | Path]) -> None:
    """Run a converter to its end; PeerFailedError with the last of what it printed."""
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=peer_environment({}))
    if done.returncode != 0:
        raise PeerFailedError(f"{Path(words[0]).name} ended with {done.returncode}: ...{done.stdout[-2000:]}")


def peer_environment(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a peer: threads as here, nothing of eyas's, nothing from the hub."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return kept | {"OMP_NUM_THREADS": str(torch.get_num_threads()), "HF_HUB_OFFLINE": "1"} | dict(more)


class Driver:
    """A peer's process, stopped but for the time of its own measurements.

    It leads a process group of its own, so that a signal reaches what it has started as well. Where this process is
    killed, the system continues the stopped group and hangs it up.
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
        """Wait until the model is loaded; who it is."""
        name = self._read_answer(LOAD_S)["ready"]
        self._signal(signal.SIGSTOP)
        return name

    def measure(self, work: Work) -> Done:
        """One closed loop."""
        return Done(**self.request(asdict(work)))

    def request(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """What it answers to one line; it runs meanwhile."""
        assert self.process.stdin is not None, "it is a pipe"
        self._signal(signal.SIGCONT)
        with suppress(BrokenPipeError):  # the same
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
            raise PeerFailedError(f"no answer within {limit_s:g} s: ...{self.log.read_text(errors='replace')[-2000:]}")
        return json.loads(line)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has ended; hearing nothing from it raises
            os.killpg(self.process.pid, number)


PEERS: dict[str, Callable[[Setup], dict[str, Arm]]] = {
    "transformers": transformers_arms,
    "vllm": vllm_arms,
    "openvino": openvino_arms,
    "llamacpp": llamacpp_arms,
}
AHEAD_AT = {"transformers": (1, 8), "vllm": (1, 8), "openvino": (1,), "llamacpp": (1,)}
"""Numbers of streams at which eyas is to be ahead; others are printed without a target."""


def load_pair(target: str, head: str) -> Pair:
    """The pair, in eyas."""
    stored = read_head(resolve_head(head), DTYPE)
    loaded = Target.load(target, DTYPE, stored.config.aux_layer_ids)
    draft = Eagle3Spec(stored.head.pack_projections(), stored.vocab, SHAPE)
    print("compiling the forwards, about a minute the first time", file=sys.stderr, flush=True)
    compile_pair(loaded, draft.head)
    return Pair(loaded, draft, interleave_tasks(load_eval_prompts(loaded.tokenizer, 10)))


def eyas_engine(pair: Pair, streams: int) -> Engine:
    """What a server of eyas runs."""
    return build_auto_engine(pair.target, pair.draft, streams, pair.context)


@dataclass(frozen=True)
class EyasRun:
    """eyas at one number of streams, warm, and the work that it sets the peers."""

    engine: Engine
    prompts: Sequence[Prompt]
    work: Work
    answers: list[list[int]]

    @staticmethod
    def at(pair: Pair, streams: int) -> "EyasRun":
        number = max(LEAST_REQUESTS, streams * REQUESTS_PER_STREAM)
        some = [pair.prompts[index % len(pair.prompts)] for index in range(number)]
        engine = eyas_engine(pair, streams)
        answers = answers_by_prompt(run_closed_loop(engine, some, MAX_TOKENS))
        work = Work(streams, [list(prompt.ids) for prompt in some], [len(answer) for answer in answers])
        return EyasRun(engine, some, work, answers)


def compare_with_peer(peer: str, drivers: Mapping[str, Driver], ours: EyasRun, pairs: int) -> Row:
    """One row: eyas over the better of these arms."""
    streams = ours.work.streams
    last: dict[str, EngineBlock | Done] = {}

    def run_ours() -> float:
        block = run_closed_loop(ours.engine, ours.prompts, MAX_TOKENS)
        last[EYAS] = block
        return block.result.output_tps

    def run(name: str) -> float:
        done = drivers[name].measure(ours.work)
        lengths = [len(answer) for answer in done.answers]
        assert lengths == ours.work.lengths, "every answer has the length that was asked for"
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
            "acceptance_length": acceptance(last[name]),
            "same_tokens": round(same_tokens(answers_by_prompt(last[name]), ours.answers), 3),
        }
        for name, rates in found.items()
    }
    interval = [round(span.low, 3), round(span.high, 3)]
    print(json.dumps({"peer": peer, "streams": streams, "ratio_ci95": interval, "arms": told}), file=sys.stderr)
    is_asked = streams in AHEAD_AT[peer]
    name = f"{EYAS} over {peer} ({best}), output tokens per second, {streams} streams"
    return Row(name, round(middle, 3), "above 1" if is_asked else "none", middle > 1 or not is_asked)


def acceptance(measured: EngineBlock | Done) -> float | None:
    """Tokens of a round, the target's own among them, where the arm speculates and says it."""
    if isinstance(measured, EngineBlock):
        rounds = [answer.rounds for answer in measured.answers]
        return round(acceptance_length(rounds), 2)
    if measured.accepted is None or not measured.rounds:
        return None
    return round(1 + measured.accepted / measured.rounds, 2)


def answers_by_prompt(measured: EngineBlock | Done) -> list[list[int]]:
    """By prompt."""
    if isinstance(measured, Done):
        return measured.answers
    return [answer.token_ids for answer in sorted(measured.answers, key=lambda answer: int(answer.request.id))]


def same_tokens(theirs: Sequence[Sequence[int]], ours: Sequence[Sequence[int]]) -> float:
    """The share of tokens before the first one of an answer that differs."""
    same = 0
    for a, b in zip(theirs, ours, strict=True):
        same += next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return same / sum(len(answer) for answer in ours)


def rows_of(peer: str, setup: Setup, ours: Sequence[EyasRun], pairs: int) -> Iterator[Row]:
    """The rows of one peer, whose processes live as long."""
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
    """The rows; a peer that is not installed has none, one that fails has a row of this name that misses."""
    try:
        yield from rows
    except NotInstalledError as error:
        print(f"{peer}: not installed: {error}", file=sys.stderr, flush=True)
    except PeerFailedError as error:
        print(f"{peer}: failed: {error}", file=sys.stderr, flush=True)
        yield Row(missing, None, "a figure", False)


def main() -> int:
    """Peer by peer, so that at most one peer's models are in memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--target", default=EMBEDDED)
    parser.add_argument("--head", default=EMBEDDED)
    parser.add_argument("--env-dir", type=Path, default=Path.home() / ".cache" / "eyas" / "peers")
    parsed = parser.parse_args()
    peers, streams = parsed.peers.split(","), [int(number) for number in parsed.streams.split(",")]
    if unknown := set(peers) - set(PEERS):
        parser.error(f"unknown --peers {', '.join(sorted(unknown))}: choose from {', '.join(PEERS)}")
    pair = load_pair(parsed.target, parsed.head)
    target, head = resolve_target(parsed.target).absolute(), resolve_head(parsed.head).absolute()
    ours = [EyasRun.at(pair, number) for number in streams]
    options = Options(str(target), None, torch.get_num_threads(), max(streams), pair.context)
    with tempfile.TemporaryDirectory() as scratch:
        setup = Setup(parsed.env_dir.absolute(), target, head, Path(scratch), options)
        found = ((peer, rows_of(peer, setup, ours, parsed.pairs)) for peer in peers)
        return print_rows(row for peer, rows in found for row in report_failures(peer, rows, f"{EYAS} over {peer}"))


if __name__ == "__main__":
    sys.exit(main())
