"""Measures the size of 8-bit features and the acceptance length that they lose.

    python benchmarks/features_quantized.py [--run DIR] [--conversations N]

The embedded target answers prompts of the evaluation split, which its head was not trained on. These conversations are
captured as bfloat16, int8 and fp8, and the shipped head drafts them from each (eyas.evaluation). No head is trained.
The tokens are equal, so the lost share of the acceptance length is 1 - (rounds with bfloat16) / (rounds with 8 bits).
Its interval is a paired bootstrap over conversations.

The embedded target has no channels with large values, so their effect is measured on random values. Prints one JSON
object for each row and exits 1 if a row misses its target. --run names a directory for the answers, which a later call
reuses. Progress goes to stderr. Takes a quarter of an hour on one core.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from result_rows import Row, print_rows
from training_fixtures import PACK_TOKENS, lengths_of_pack, make_rows

from eyas.data.answers.respond_config import RespondConfig
from eyas.data.prompts_config import PromptsConfig
from eyas.evaluation.evaluate import EvalConfig, replay_rows
from eyas.evaluation.head_drafter import HeadDrafter
from eyas.features import capture
from eyas.features.layout import NUM_AUX_LAYERS, count_supervised
from eyas.features.quantize import StoredDtype, dequantize, quantize
from eyas.features.reader import Features
from eyas.features.shard import RowInfo, StoredRow, encode_shard
from eyas.features.store import bytes_per_token
from eyas.formats.fit import require_fit
from eyas.formats.head_dir import read_head
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED
from eyas.recipe import Recipe, Run, resolve_head
from eyas.tree.intervals import ratio_interval

HIDDEN, SHARE = 4096, 0.6  # for the computed size: a target of 8 billion parameters, 60 % of the tokens generated
MAX_KIB, MAX_LOSS = 14.5, 0.01
PLAIN: StoredDtype = "bfloat16"
EIGHT_BITS: tuple[StoredDtype, ...] = ("int8", "fp8")
CONFIG = EvalConfig()
OUTLIERS = (5, 10, 50, 100, 1000)
GROUP = 16  # texts replayed in one batch
CONVERSATIONS = 560


def answer_eval_prompts(directory: Path, count: int) -> Run:
    """Answers `count` prompts of the evaluation split and returns the run directory."""
    prompts = PromptsConfig(source="builtin:eval", limit=count)
    run = Run(Recipe(prompts=prompts, respond=RespondConfig(max_tokens=160, batch_size=24)), directory)
    for stage in ("prompts", "respond"):
        run.run_stage(stage)
    return run


@torch.inference_mode()
def rounds_by_row(features: Features, target: Target) -> dict[str, int]:
    """Replays each conversation with the shipped head and returns its number of rounds."""
    stored = read_head(resolve_head(EMBEDDED), torch.float32)
    require_fit(stored, target.info, target.digest)
    assert isinstance(stored.head, Head)
    indices = sorted(features.indices("held_out"), key=lambda index: features.manifest.rows[index].length)
    found: dict[str, int] = {}
    for start in range(0, len(indices), GROUP):
        rows = [next(features.rows([index])) for index in indices[start : start + GROUP]]
        drafter = HeadDrafter(stored.head, stored.vocab, lambda ids: target.embed(ids).float(), CONFIG.shape, rows)
        for row, rounds in zip(rows, replay_rows(rows, drafter), strict=True):
            found[row.id] = len(rounds.rounds.accepted)
        print(f"replayed {len(found)} of {len(indices)} texts", file=sys.stderr)
    return found


def measure_dtypes(run: Run, work: Path) -> Iterator[Row]:
    """Yields the rows of every dtype on the same conversations."""
    target = run.target
    rounds: dict[str, dict[str, int]] = {}
    for dtype in (PLAIN, *EIGHT_BITS):
        out = work / dtype
        config = capture.CaptureConfig(dtype=dtype, held_out=1.0, max_error=1.0)
        began_s = time.monotonic()
        capture.run(config, run.directory("respond"), target, out)
        took_s = time.monotonic() - began_s
        features = Features(out)
        manifest = features.manifest
        tokens = sum(row.length for row in manifest.rows)
        share = sum(row.num_taught for row in manifest.rows) / tokens
        on_disk = sum((out / shard.name).stat().st_size for shard in manifest.shards) / tokens
        planned = bytes_per_token(dtype, manifest.hidden_size, share)
        yield Row(f"{dtype}: capture, tokens/s", round(tokens / took_s), "told", True)
        name = f"{dtype}: bytes a token on disk over the arithmetic, hidden {manifest.hidden_size}, {share:.0%} taught"
        yield Row(f"{name}: {on_disk:.1f}", round(on_disk / planned, 4), "at most 1.01", on_disk <= 1.01 * planned)
        error = manifest.quantisation_error
        yield Row(f"{dtype}: total variation of the teacher", error.teacher, "told", True)
        yield Row(f"{dtype}: relative error of a layer's channels, the worst layer", max(error.aux), "told", True)
        rounds[dtype] = rounds_by_row(features, target)
    ids = sorted(rounds[PLAIN])
    plain = np.array([rounds[PLAIN][row] for row in ids])
    walked = plain > 0
    for dtype in EIGHT_BITS:
        mine = np.array([rounds[dtype][row] for row in ids])
        span = ratio_interval((mine - plain)[walked], mine[walked], CONFIG.seed)
        lost = float((mine - plain).sum() / mine.sum())
        name = f"{dtype}: share of the acceptance length lost, {int(walked.sum())} conversations"
        told = f"{name}, 95% interval {span.low:.3%} to {span.high:.3%}"
        yield Row(told, round(lost, 5), f"at most {MAX_LOSS}", lost <= MAX_LOSS)


def measure_shard_bytes() -> Iterator[Row]:
    """Yields the size of a shard of random rows, of which SHARE is generated."""
    rows = make_rows(lengths_of_pack(PACK_TOKENS, 0), HIDDEN, 1000, 0)
    lengths = [row.ids_T.shape[0] for row in rows]
    infos = [
        RowInfo(row.id, row.task, "train", False, length, 0, row.hidden_UD.shape[0], count_supervised(row.loss_mask_T))
        for row, length in zip(rows, lengths, strict=True)
    ]
    for dtype in EIGHT_BITS:
        stored = []
        for row in rows:
            aux, hidden = quantize(row.aux_TL, NUM_AUX_LAYERS, dtype), quantize(row.hidden_UD, 1, dtype)
            stored.append(StoredRow(row.ids_T, row.loss_mask_T, aux, hidden))
        kib = len(encode_shard(0, infos, stored)[0]) / sum(lengths) / 1024
        name = f"{dtype}: KiB a token of a shard, hidden {HIDDEN}, {SHARE:.0%} generated"
        yield Row(name, round(kib, 3), f"at most {MAX_KIB}", kib <= MAX_KIB)


def measure_outliers() -> Iterator[Row]:
    """Yields the error of normal channels beside one channel whose values are 5 to 1,000 times as large."""
    x_TL = torch.randn(512, HIDDEN, generator=torch.Generator().manual_seed(0))
    for times in OUTLIERS:
        x_TL[:, 0] = times
        for dtype in EIGHT_BITS:
            change_TL = dequantize(*quantize(x_TL, 1, dtype), torch.float32) - x_TL
            error = float((change_TL.norm(dim=0) / x_TL.norm(dim=0)).mean())
            name = f"{dtype}: relative error of normal channels beside one {times} times as large"
            yield Row(name, round(error, 4), "told", True)


def features_quantized(run_dir: Path | None, conversations: int) -> Iterator[Row]:
    """Yields all rows. The answers are stored in run_dir, or read from it."""
    for dtype in EIGHT_BITS:
        kib = bytes_per_token(dtype, HIDDEN, SHARE) / 1024
        name = f"{dtype}: KiB a token by arithmetic, hidden {HIDDEN}, {SHARE:.0%} taught"
        yield Row(name, round(kib, 3), f"at most {MAX_KIB}", kib <= MAX_KIB)
    with tempfile.TemporaryDirectory() as directory:
        yield from measure_shard_bytes()
        yield from measure_outliers()
        yield from measure_dtypes(answer_eval_prompts(run_dir or Path(directory), conversations), Path(directory))


def main() -> int:
    """Prints the rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="run directory for the answers; reused if they exist")
    parser.add_argument("--conversations", type=int, default=CONVERSATIONS)
    parsed = parser.parse_args()
    return print_rows(features_quantized(parsed.run, parsed.conversations))


if __name__ == "__main__":
    sys.exit(main())
