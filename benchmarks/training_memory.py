"""Measures the peak memory of a training step by its number of tokens.

    python benchmarks/training_memory.py [--steps K]

Each point runs in a separate process. It makes random documents of 512 to 1,024 tokens (60 % supervised), T tokens in
all, and trains one step on them. It reports the peak resident memory above the value before the step. The head is that
of training_fixtures.py with 7 unrolled steps.

The plain implementation of the same step is below (naive_step). Each of its unrolled steps computes all T rows, attends
through a dense mask, and keeps all logits of head and target. It runs if it fits into memory, and must have the loss of
eyas.

Attention is quadratic in the length of a document, so the last row measures one document of 8,192 tokens. Prints one
JSON object for each row and exits 1 if a row misses its target. Progress goes to stderr. Takes some minutes.

T tokens, S keys so far (T of each step), D hidden, N heads, G key-value heads, H head size, V draft vocabulary.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import torch
from result_rows import Row as Line
from result_rows import print_rows
from torch import Tensor
from training_fixtures import DECAY, OurTrainer, lengths_of_pack, make_rows, make_target

from eyas.features.layout import Row, count_supervised, supervised_positions, teacher_positions
from eyas.model.attention import AttentionParams
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab

DRAFT_VOCAB = 4096
STEPS = 7
SIZES = (2048, 8192, 32768)
LONG = 8192
MAX_GROWTH = 1.1  # growth of memory over growth of the tokens
MAX_LOSS_DIFFERENCE = 0.01  # share of the loss; bfloat16 products run in another order


class DenseUnrolled:
    """Dense attention of unrolled step k: causal over the keys of step 0, and each row's own key of later steps."""

    def __init__(self, lengths: Sequence[int]) -> None:
        documents_T = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        self._mask_TT = (documents_T[:, None] == documents_T).tril()
        self._own_TT = torch.eye(len(documents_T), dtype=torch.bool)
        self._kept: list[tuple[Tensor, Tensor]] = []

    def __call__(self, layer: int, q_BNTH: Tensor, k_BGTH: Tensor, v_BGTH: Tensor, params: AttentionParams) -> Tensor:
        groups = q_BNTH.shape[1] // k_BGTH.shape[1]
        self._kept.append((k_BGTH.repeat_interleave(groups, 1), v_BGTH.repeat_interleave(groups, 1)))
        k_BNSH, v_BNSH = (torch.cat(parts, 2) for parts in zip(*self._kept, strict=True))
        mask_TS = torch.cat([self._mask_TT, *[self._own_TT] * (len(self._kept) - 1)], 1)
        scores_BNTS = (q_BNTH @ k_BNSH.transpose(2, 3) * params.scale).masked_fill(~mask_TS, -torch.inf)
        return scores_BNTS.softmax(-1) @ v_BNSH


def naive_step(head: Head, rows: Sequence[Row], target: Target, vocab: DraftVocab, steps: int) -> Tensor:
    """Computes the loss of all unrolled steps for each supervised token, without any saving of memory."""
    lengths = [row.ids_T.shape[0] for row in rows]
    total = sum(lengths)
    positions_1T = torch.cat([torch.arange(length) for length in lengths])[None]
    ids_T = torch.cat([row.ids_T for row in rows])
    hidden_TD = torch.zeros(total, rows[0].hidden_UD.shape[1], dtype=rows[0].hidden_UD.dtype)
    hidden_TD[torch.cat([teacher_positions(row.loss_mask_T) for row in rows])] = torch.cat(
        [row.hidden_UD for row in rows]
    )
    probs_TW = target.logits(hidden_TD).float().softmax(-1)
    probs_TV = probs_TW[:, vocab.target_ids_V]
    known_T = vocab.t2d_W[probs_TW.argmax(-1)]
    goal_TV = probs_TV / probs_TV.sum(-1, keepdim=True)
    attend = DenseUnrolled(lengths)
    state_1TD = head.fuse_aux(torch.cat([row.aux_TL for row in rows])[None])
    loss = torch.zeros(())
    for step in range(steps):
        shift = 1 + step
        out_1TD = head.step(target.embed(ids_T.roll(-shift))[None], state_1TD, positions_1T + step, attend)
        logits_TV = head.logits(out_1TD)[0].float()
        mask_T = torch.cat([supervised_positions(row.loss_mask_T, step) for row in rows]) & known_T.roll(-shift)
        each_T = -(goal_TV.roll(-shift, 0) * logits_TV.log_softmax(-1)).sum(-1)
        loss = loss + DECAY**step * each_T[mask_T].sum()
        state_1TD = head.next_hidden(out_1TD)
    return loss / sum(count_supervised(row.loss_mask_T) for row in rows)


def status_bytes(key: str) -> int:
    """Returns a memory figure of this process: VmRSS is the current one, VmHWM the peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {key}. Run this benchmark on Linux.")


def measure_point(target_dir: Path, way: str, lengths: Sequence[int], steps: int) -> dict[str, float]:
    """Trains one step in this process and returns its peak bytes above the start, and its loss."""
    target = Target.load(target_dir)
    trainer = OurTrainer.make(target, steps, DRAFT_VOCAB)
    before = status_bytes("VmRSS")
    rows = make_rows(lengths, target.info.hidden_size, target.info.vocab_size, 0)
    if way == "eyas":
        loss = trainer.step(rows)
    else:
        counts_W = torch.ones(target.info.vocab_size, dtype=torch.int64)
        vocab = DraftVocab.from_counts(counts_W, DRAFT_VOCAB, target.info.eos_ids)
        found = naive_step(trainer.head, rows, target, vocab, steps)
        found.backward()
        trainer.optimizer.accumulate_gradients()
        trainer.optimizer.step(1e-3)
        loss = float(found.detach())
    return {"bytes": status_bytes("VmHWM") - before, "loss": loss}


def measure_in_process(target_dir: Path, way: str, lengths: Sequence[int], steps: int) -> dict[str, float] | None:
    """Runs `measure_point` in a new process. Returns None if it was killed, usually for lack of memory."""
    told = json.dumps([str(target_dir), way, list(lengths), steps])
    print(f"{way}, {sum(lengths)} tokens in {len(lengths)} documents", file=sys.stderr, flush=True)
    done = subprocess.run([sys.executable, __file__, "--point", told], stdout=subprocess.PIPE, text=True)
    if done.returncode < 0:
        return None
    if done.returncode:
        raise SystemExit(f"A measurement failed with exit code {done.returncode}.")
    return json.loads(done.stdout)


def naive_bytes(tokens: int, steps: int) -> int:
    """Returns a lower bound of the plain implementation: scores and probabilities of every step, 8 heads, bfloat16."""
    return sum(2 * 2 * 8 * tokens * tokens * (step + 1) for step in range(steps))


def available_bytes() -> int:
    """Returns the available memory of this machine."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def training_memory(steps: int) -> Iterator[Line]:
    """Yields the rows of every point and of the growth between them."""
    ours: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        target_dir = make_target(Path(directory))
        for tokens in SIZES:
            lengths = lengths_of_pack(tokens, 0)
            found = measure_in_process(target_dir, "eyas", lengths, steps)
            if found is None:
                yield Line(f"training memory, {tokens} tokens, eyas: killed", None, "a figure", False)
                continue
            ours[tokens] = found["bytes"]
            name = f"training memory, {tokens} tokens, {steps} steps, MiB"
            yield Line(name, round(found["bytes"] / 2**20), "told", True)
            if naive_bytes(tokens, steps) > available_bytes():
                least = naive_bytes(tokens, steps) / 2**30
                print(f"naive, {tokens} tokens: skipped, needs {least:.0f} GiB or more", file=sys.stderr)
            elif (naive := measure_in_process(target_dir, "naive", lengths, steps)) is not None:
                ratio = naive["bytes"] / found["bytes"]
                name = f"training memory, {tokens} tokens, {steps} steps, the plain way over eyas"
                yield Line(name, round(ratio, 2), "above 1", ratio > 1)
                off = abs(naive["loss"] / found["loss"] - 1)
                name, target = f"{tokens} tokens: loss of the plain way, off by", f"at most {MAX_LOSS_DIFFERENCE}"
                yield Line(name, round(off, 5), target, off <= MAX_LOSS_DIFFERENCE)
        for smaller, larger in pairwise(SIZES):
            if smaller in ours and larger in ours:
                grown = ours[larger] / ours[smaller] / (larger / smaller)
                name = f"training memory, {larger} over {smaller} tokens, by token"
                yield Line(name, round(grown, 3), f"at most {MAX_GROWTH}", grown <= MAX_GROWTH)
        alone = measure_in_process(target_dir, "eyas", [LONG], steps)
        name = f"training memory, one document of {LONG} tokens, MiB"
        yield Line(name, None if alone is None else round(alone["bytes"] / 2**20), "told", True)


def main() -> int:
    """Prints the rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--point", help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.point:
        target_dir, way, lengths, steps = json.loads(parsed.point)
        print(json.dumps(measure_point(Path(target_dir), way, lengths, steps)))
        return 0
    return print_rows(training_memory(parsed.steps))


if __name__ == "__main__":
    sys.exit(main())
