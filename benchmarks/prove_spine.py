"""Measures the whole pipeline: baseline, shipped head, quickstart and a GSM8K run. `make prove-spine` calls it.

    python benchmarks/prove_spine.py [--only peer|shipped|quickstart|gsm8k]

Both arms run in one process with the same target, dtype and threads, prompt by prompt in alternating order, after a
warm-up. The figure is the median of the ratios. Prints one JSON object for each row and exits 1 if a row misses its
target. Progress goes to stderr. Takes about half an hour on two cores.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import transformers
from peer_transformers import compare_with_generate
from result_rows import Row, print_rows
from safetensors.torch import load_file

from eyas.bench.config import BenchConfig
from eyas.bench.single_stream import measure_draft_baselines, measure_tasks
from eyas.bench.workload import interleave_tasks, load_eval_prompts
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.evalsets import FAMILIES
from eyas.evaluation.reference_drafters import NgramTable
from eyas.formats.fit import require_fit
from eyas.formats.head_dir import read_head
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED, resolve_target
from eyas.recipe import resolve_head

ROOT = Path(__file__).parents[1]
DTYPE = torch.bfloat16  # the dtype of the shipped target
CONFIG = BenchConfig(prompts_per_task=10, max_tokens=128, repeats=3)
PEER_PROMPTS_PER_FAMILY, PEER_TOKENS, PEER_REPEATS = 2, 64, 3
FREE = ("prompt_lookup", "ngram4")
GSM8K_OVERRIDES = ("prompts.license=MIT", "prompts.limit=300")


def at_least(name: str, figure: float | None, bound: float) -> Row:
    """Returns a row with a lower bound as its target."""
    return Row(name, _rounded(figure), f"at least {bound:g}", figure is not None and figure >= bound)


def at_most(name: str, figure: float | None, bound: float) -> Row:
    """Returns a row with an upper bound as its target."""
    return Row(name, _rounded(figure), f"at most {bound:g}", figure is not None and figure <= bound)


def peer() -> Iterator[Row]:
    """Yields the row of the baseline of eyas against `generate` of transformers."""
    target = Target.load(EMBEDDED, DTYPE)
    prompts = interleave_tasks(load_eval_prompts(target.tokenizer, PEER_PROMPTS_PER_FAMILY))
    found = compare_with_generate(target, prompts, PEER_TOKENS, PEER_REPEATS)
    name = "eyas's baseline against transformers generate with a static cache, TPOT ratio, median over prompts"
    yield at_least(name, found.ratio, 1.0)


def shipped() -> Iterator[Row]:
    """Yields the rows of the shipped head on the evaluation prompts of eyas."""
    stored = read_head(resolve_head(EMBEDDED), DTYPE)
    target = Target.load(EMBEDDED, DTYPE, stored.config.aux_layer_ids)
    require_fit(stored, target.info, target.digest)
    prompts = load_eval_prompts(target.tokenizer, CONFIG.prompts_per_task)
    draft = Eagle3Spec(stored.head.pack_projections(), stored.vocab, CONFIG.shape)
    stream = measure_tasks(target, draft, prompts, CONFIG)
    free = measure_draft_baselines(stream.pairs, training_table(), CONFIG.depth, CONFIG.seed)
    speedups = {family: stream.tasks[family]["speedup"] for family in FAMILIES if family in stream.tasks}
    print(json.dumps({"speedup": speedups, "free": free}), file=sys.stderr)
    complete = len(speedups) == len(FAMILIES)
    yield at_least("shipped head, 1 stream: speed-up, median over the families",
                   median(speedups.values()) if complete else None, 1.8)  # fmt: skip
    slowest = min(speedups.values()) if complete else None
    yield Row("shipped head, 1 stream: speed-up of the slowest family", _rounded(slowest), "above 1.3",
              slowest is not None and slowest > 1.3)  # fmt: skip
    for family in FAMILIES:
        name = f"shipped head, acceptance length over the better of prompt lookup and 4-gram table: {family}"
        ratio = None
        if family in stream.tasks:
            best = max(free[family][drafter]["acceptance_length"] for drafter in FREE)
            ratio = stream.tasks[family]["acceptance_length"] / best
        yield at_least(name, ratio, 1.3)


def training_table() -> NgramTable:
    """Builds a 4-gram table from the target's answers that the shipped head was trained on."""
    packed = load_file(resolve_target(EMBEDDED).parent / "training_answers.safetensors")
    lengths = packed["lengths"].tolist()
    mask_bits = np.unpackbits(packed["loss_mask_bits"].numpy(), count=sum(lengths))
    masks = torch.from_numpy(mask_bits).bool().split(lengths)
    ids = np.frombuffer(zlib.decompress(packed["ids_zlib"].numpy().tobytes()), dtype="<u2").astype(np.int64)
    return NgramTable(zip(torch.from_numpy(ids).split(lengths), masks, strict=True))


def quickstart() -> Iterator[Row]:
    """Runs `eyas quickstart` in an empty directory and yields its rows."""
    with tempfile.TemporaryDirectory() as directory:
        started_s = time.monotonic()
        found = _eyas("quickstart", "--out", directory, "--json")
        minutes = (time.monotonic() - started_s) / 60
    tasks = {} if found is None else found["tasks"]
    yield at_most("quickstart, minutes", None if found is None else minutes, 8.0)
    start = None if found is None else found.get("story", {}).get("head_start")
    yield Row("quickstart, its head starts from random weights", float(start == "random"), "1", start == "random")
    speedups = [tasks[family]["speedup"] for family in FAMILIES if family in tasks]
    complete = len(speedups) == len(FAMILIES)
    yield at_least("quickstart, TPOT against the baseline, median over the families",
                   median(speedups) if complete else None, 1.5)  # fmt: skip
    same = None if found is None else found["lossless"]
    name = "quickstart, share of answers with the very words of transformers generate"
    share = same["identical"] / same["prompts"] if same and same["prompts"] else None
    yield at_least(name, share, 1.0)
    yield at_least("quickstart, answers compared word by word", None if same is None else same["prompts"], 100)
    shown = sum(
        "uncertain_share" in task and all(drafter in task.get("references", {}) for drafter in FREE)
        for task in tasks.values()
    )
    name = "quickstart's report, families with head, prompt lookup, 4-gram table and uncertain share"
    yield at_least(name, shown, len(FAMILIES))


def gsm8k() -> Iterator[Row]:
    """Runs recipes/tiny.toml on GSM8K prompts and yields its row."""
    source = Path(os.environ.get("EYAS_GSM8K", ROOT.parent / "shared" / "data" / "gsm8k-train.jsonl"))
    name, goal = "gsm8k run, measured answers in its report", "at least 1, and looping answers counted apart"
    if not source.is_file():
        print("gsm8k-train.jsonl is missing. Set EYAS_GSM8K to its path.", file=sys.stderr)
        yield Row(f"{name} (no gsm8k-train.jsonl: set EYAS_GSM8K to its path)", None, goal, False)
        return
    with tempfile.TemporaryDirectory() as directory:
        recipe = str(ROOT / "recipes" / "tiny.toml")
        found = _eyas("run", recipe, f"prompts.source={source}", *GSM8K_OVERRIDES, "--out", directory, "--json")
        has_report = (Path(directory) / "report" / "report.html").is_file()
    if found is None or not has_report:
        yield Row(name, None, goal, False)
        return
    measured = sum(task["prompts"] for task in found["tasks"].values())
    apart = "looping" in found and all("looping" in task for task in found["tasks"].values())
    yield Row(name, measured, goal, measured >= 1 and apart)


def _eyas(*arguments: str) -> dict[str, Any] | None:
    """Runs an eyas command and returns the object that it prints with --json, or None if it failed."""
    program = Path(sys.executable).with_name("eyas")
    done = subprocess.run([program, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def _rounded(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 3)


def main() -> int:
    parts = {"peer": peer, "shipped": shipped, "quickstart": quickstart, "gsm8k": gsm8k}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=parts, help="only these rows")
    only = parser.parse_args().only
    transformers.utils.logging.disable_progress_bar()
    chosen = [part for name, part in parts.items() if only in (None, name)]
    return print_rows(row for part in chosen for row in part())


if __name__ == "__main__":
    sys.exit(main())
