"""Compares the drafters: answers, sampling, acceptance length, speed, calibration. `make prove-drafters` calls it.

    python benchmarks/prove_drafters.py [--run DIR ...] [--prompts FILE ...] [--target DIR] [--eagle3 DIR] [--block DIR]
        [--only PART ...] [--no-embedded] [--work DIR] [--train-seconds S] [--seconds S] [--eager] [--deepspec DIR]

Two kinds of pairs are measured:

    embedded     the embedded target, with features from prompts of the grammar (recipes/tiny.toml, 1,200 prompts)
    real text    another target: --run names a run directory of `eyas run` whose stage `capture` is finished, and
                 --prompts the files to measure with, such as gsm8k-test.jsonl and mt-bench.jsonl

An EAGLE-3 head and a block head are trained on the features of a pair, each for --train-seconds of processor time. With
--eagle3 and --block, ready heads take their place. These two and --target (for a target that has moved) belong to the
last run. WORK keeps run, heads and small model, so that a later call with the same options trains nothing.

    part          rows                                                                           models run in
    words         greedy answers of every drafter against plain decoding                         float32
    sampling      law of the samples against the exact one, and two wrong rules; a tiny target   float32
    lengths       acceptance length of both heads on held-out answers                            float32
    speed         tokens per second of all arms of both heads at one stream                      bfloat16 *
    calibration   probabilities of nodes, and the budget's expected tokens of a round            bfloat16 *
    scale         probabilities of nodes of head and copies on their common scale                bfloat16 *
    host          share of the time outside forwards at 8 streams                                bfloat16 *
    copies        copies of earlier text beside the EAGLE-3 head; with --data also on edits      bfloat16 *
    context       acceptance beyond the length of training; with --short-head                    bfloat16 *
    deepspec      the exported block head in DeepSpec's own code; with --deepspec                float32

    * float32 on a processor without instructions for bfloat16

Prints one JSON object for each row and exits 1 if a row misses its target or has no figure. Progress goes to stderr.
Takes about two hours on one core.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from compare_drafters import make_small_model
from drafter_calibration import measure_calibration, measure_scale
from drafter_copies import measure_context, measure_copies
from drafter_deepspec import measure_deepspec
from drafter_heads import KINDS, NAMES, Kind, RunData, measure_lengths, train_heads
from drafter_sampling import measure_sampling
from drafter_speed import MAX_TOKENS as SPEED_TOKENS
from drafter_speed import SpeedBench, measure_host_time, measure_speed
from drafter_words import LARGEST, load_specs, measure_words
from result_rows import Row, print_rows

from eyas.bench.config import BenchConfig
from eyas.bench.workload import Prompt, interleave_tasks, load_eval_prompts, load_workload
from eyas.drafters.heads import draft_with
from eyas.formats.head_dir import read_head, resolve_head
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED
from eyas.recipe import Run, load_recipe

RECIPE = Path(__file__).resolve().parents[1] / "recipes" / "tiny.toml"
PROMPT_LIMIT, PER_FAMILY, PER_FILE = 1200, 40, 100
PAIR_PARTS = ("words", "lengths", "speed", "calibration", "scale", "host", "copies", "context", "deepspec")
PARTS = (*PAIR_PARTS, "sampling")
WORD_PROMPTS, WORD_TOKENS = 200, 48
DEEPSPEC_PROMPTS = 40
DRAWS, CONTROL_DRAWS = 100_000, 20_000
HELD_OUT, CALIBRATION_PROMPTS, OWN_PROMPTS = 96, 60, 24


@dataclass(frozen=True)
class Pair:
    """A target, both heads, and what they are measured with.

    Attributes:
        where: The beginning of the names of rows.
        run: The run directory with the features.
        heads: The directories of the heads.
        prompts: Set -> prompts.
        work: The directory for heads and small model.
        seconds: The limit of measuring the speed on each set.
        compiled: True to compile the forwards of the speed rows.
    """

    where: str
    run: RunData
    heads: Mapping[Kind, Path]
    prompts: Mapping[str, list[Prompt]]
    work: Path
    seconds: float
    compiled: bool

    @cached_property
    def speed_bench(self) -> SpeedBench:
        """The models in the dtype of the speed rows."""
        return SpeedBench.load(self.run.model, self.heads, self.compiled)

    @property
    def mixed(self) -> list[Prompt]:
        """The prompts of all sets."""
        return interleave_tasks(self.prompts)


def words(pair: Pair, parsed: argparse.Namespace) -> Iterator[Row]:
    """Yields the numbers of equal answers of every drafter."""
    some = [prompt for prompt in pair.mixed if len(prompt.ids) <= parsed.word_context][:WORD_PROMPTS]
    layers = read_head(pair.heads["eagle3"], torch.float32).config.aux_layer_ids
    answers = pair.run.directory / "conversations"
    small = make_small_model(pair.work / "small", answers, parsed.small_minutes, pair.run.model)
    target = Target.load(pair.run.model, torch.float32, layers)
    specs = load_specs(target, {NAMES[kind]: directory for kind, directory in pair.heads.items()}, small)
    for row in measure_words(target, specs, some, WORD_TOKENS):
        told = f"{pair.where}, prompts of at most {max(len(prompt.ids) for prompt in some):,} tokens"
        yield Row(f"{told}: {row.name}", row.figure, row.target, row.ok, row.interval, row.note)


def speed(pair: Pair) -> Iterator[Row]:
    """Yields the rows of the speed, by set of prompts."""
    for name, prompts in pair.prompts.items():
        where = pair.where if len(pair.prompts) == 1 else f"{pair.where}, {name}"
        yield from measure_speed(pair.speed_bench, prompts, pair.seconds, where)


def context(pair: Pair, parsed: argparse.Namespace) -> Iterator[Row]:
    """Yields the rows of long contexts, or one without a figure if no head of short texts is named."""
    if parsed.short_head is None:
        note = "not measured: name a head of texts of at most 448 tokens with --short-head"
        yield Row(f"{pair.where}: attention window", None, "at least 0.8 of the acceptance", None, note=note)
        return
    target = pair.speed_bench.target
    draft = draft_with(target.model.device, read_head(resolve_head(parsed.short_head), target.model.dtype), LARGEST)
    window = draft.head.window or 0
    short = [prompt for prompt in pair.mixed if len(prompt.ids) + SPEED_TOKENS <= window]
    long = [prompt for prompt in pair.mixed if len(prompt.ids) >= 2 * window]
    yield from measure_context(target, draft, {"short": short[:OWN_PROMPTS], "long": long[:OWN_PROMPTS]}, pair.where)


def deepspec(pair: Pair, parsed: argparse.Namespace) -> Iterator[Row]:
    """Yields the rows of the exported block head in DeepSpec's code."""
    prompts = [prompt for prompt in pair.mixed if len(prompt.ids) <= parsed.word_context][:DEEPSPEC_PROMPTS]
    return measure_deepspec(parsed.deepspec, pair.run.model, pair.heads["block"], prompts, WORD_TOKENS, pair.where)


def list_parts(pair: Pair, parsed: argparse.Namespace) -> dict[str, Callable[[], Iterator[Row]]]:
    """Returns the parts that are measured with a pair, by name."""
    return {
        "words": lambda: words(pair, parsed),
        "lengths": lambda: measure_lengths(pair.run, pair.heads, HELD_OUT, pair.where),
        "speed": lambda: speed(pair),
        "calibration": lambda: measure_calibration(
            pair.speed_bench.target, pair.speed_bench.specs, pair.mixed[:CALIBRATION_PROMPTS], pair.where
        ),
        "scale": lambda: measure_scale(
            pair.speed_bench.target, pair.speed_bench.specs, pair.mixed[: 2 * CALIBRATION_PROMPTS], pair.where
        ),
        "host": lambda: measure_host_time(pair.speed_bench, pair.mixed, pair.where),
        "copies": lambda: measure_copies(
            pair.speed_bench.target,
            pair.speed_bench.specs["eagle3"],
            parsed.data,
            pair.mixed[:OWN_PROMPTS],
            pair.where,
            answers_edits=pair.run.model != EMBEDDED,
        ),
        "context": lambda: context(pair, parsed),
        "deepspec": lambda: deepspec(pair, parsed),
    }


def sampling() -> Iterator[Row]:
    """Yields the rows of the law of samples."""
    with tempfile.TemporaryDirectory() as directory:
        yield from measure_sampling(Path(directory), DRAWS, CONTROL_DRAWS)


def make_embedded_run(directory: Path) -> RunData:
    """Answers prompts of the grammar with the embedded target and captures features, unless it was done before."""
    run = Run(load_recipe(RECIPE, {"prompts": {"limit": PROMPT_LIMIT}}), directory)
    for stage in ("prompts", "respond", "capture"):
        run.run_stage(stage)
    return RunData(directory, EMBEDDED)


def list_runs(parsed: argparse.Namespace) -> dict[str, RunData]:
    """Returns name -> run of all pairs, the embedded one first. Makes its run if none is given."""
    given = [RunData.open(directory) for directory in parsed.run]
    if given and parsed.target is not None:
        given[-1] = RunData.open(parsed.run[-1], parsed.target)
    embedded = [run for run in given if run.model == EMBEDDED]
    if not embedded and not parsed.no_embedded:
        embedded = [make_embedded_run(parsed.work / "embedded" / "run")]
    others = [run for run in given if run.model != EMBEDDED]
    names = [f"real-text target {number}" for number in range(1, len(others) + 1)]
    names = ["real-text target"] if len(others) == 1 else names
    return dict(zip(["embedded target"] * len(embedded[:1]) + names, [*embedded[:1], *others], strict=True))


def load_pair(where: str, run: RunData, parsed: argparse.Namespace, is_last: bool) -> Pair:
    """Returns the pair of a run. Trains the heads that are not given."""
    work = parsed.work / where.split()[0] / run.directory.name
    given = {kind: getattr(parsed, kind) for kind in KINDS} if is_last else {}
    heads: dict[Kind, Path] = {kind: resolve_head(given[kind]) for kind in KINDS if given.get(kind) is not None}
    heads |= train_heads(run, work, parsed.train_seconds, [kind for kind in KINDS if kind not in heads])
    return Pair(where, run, heads, read_prompts(run, parsed.prompts), work, parsed.seconds, not parsed.eager)


def read_prompts(run: RunData, files: Sequence[str]) -> dict[str, list[Prompt]]:
    """Returns set -> prompts: of the files, or of the grammar for the embedded target. Raises SystemExit if none."""
    target = run.load_target()
    if run.model == EMBEDDED:
        return {"grammar": interleave_tasks(load_eval_prompts(target.tokenizer, PER_FAMILY))}
    if not files:
        raise SystemExit("A target of real text needs prompts. Name files with --prompts.")
    sets = {}
    for file in files:
        config = BenchConfig(prompts=file, prompts_per_task=PER_FILE, max_tokens=SPEED_TOKENS)
        workload, _ = load_workload(config, None, target)
        sets[Path(file).stem] = interleave_tasks(workload)
    return sets


def prove(parsed: argparse.Namespace) -> Iterator[Row]:
    """Yields all rows of the chosen parts."""
    if "sampling" in parsed.only:
        yield from sampling()
    runs = list_runs(parsed) if set(parsed.only) & set(PAIR_PARTS) else {}
    for number, (where, run) in enumerate(runs.items(), 1):
        pair = load_pair(where, run, parsed, number == len(runs))
        parts = list_parts(pair, parsed)
        for name in PAIR_PARTS:
            if name in parsed.only:
                print(f"{where}: {name}", file=sys.stderr, flush=True)
                yield from parts[name]()
    if all(run.model == EMBEDDED for run in runs.values()):
        note = "not measured: name its run with --run and its prompts with --prompts"
        yield Row("real-text target of at least 30 million parameters", None, "all rows of a pair", None, note=note)


def main() -> int:
    """Prints the rows. Returns 1 if a row misses its target or has no figure, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, nargs="+", default=[], help="run directories with features")
    parser.add_argument("--prompts", nargs="+", default=[], help="files of prompts for targets of real text")
    parser.add_argument("--target", help="the target of the last run, if it is not where its recipe says")
    parser.add_argument("--eagle3", help="an EAGLE-3 head of the last run's target, instead of training one")
    parser.add_argument("--block", help="a block head of the last run's target, instead of training one")
    parser.add_argument("--data", type=Path, metavar="DIR", help="editeval.jsonl, humanevalfix.jsonl, gsm8k-test.jsonl")
    parser.add_argument("--short-head", metavar="DIR", help="an EAGLE-3 head that was trained on shorter texts")
    parser.add_argument("--deepspec", type=Path, metavar="DIR", help="a checkout of github.com/deepseek-ai/DeepSpec")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--no-embedded", action="store_true", help="do not measure the embedded target")
    parser.add_argument("--work", type=Path, default=Path("runs/drafters"))
    parser.add_argument("--train-seconds", type=float, default=540.0, help="processor time for each head")
    parser.add_argument("--small-minutes", type=float, default=3.0, help="processor time for the small model")
    parser.add_argument("--word-context", type=int, default=4096, help="tokens of the prompts of part words, at most")
    parser.add_argument("--seconds", type=float, default=300.0, help="for the speed on each set of prompts")
    parser.add_argument("--eager", action="store_true", help="do not compile the forwards")
    return print_rows(prove(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
