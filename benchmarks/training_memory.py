"""Peak memory of a training step over the tokens it holds; one JSON object a row on stdout, exit 1 if one misses.

    python benchmarks/training_memory.py [--steps K]

Each point is a process of its own that makes T tokens of random documents (512 to 1,024 tokens, 60 % supervised),
trains one step on all of them at once, and tells the high water of its resident memory above where it stood before. The
head is that of training_fixtures.py, 7 unrolled steps. Beside it the plain way to write the same step, below: every
step runs all T rows, attends through a dense mask, and holds all logits of head and target. It runs where it fits into
this machine, and its loss must be eyas's.

Attention is quadratic in a document, whoever computes it: the last row tells what a single document of 8,192 tokens
takes. Progress goes to stderr; some minutes.

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
from rows import Row as Line
from rows import print_rows
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
MOST_GROWN = 1.1  # times as fast as the tokens
SAME_LOSS = 0.01  # of the loss: bfloat16 products in another order


class DenseUnrolled:
    """Attention of step k: all rows see the keys of step 0 through one mask, and their own of each later step."""

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
    """The loss of all steps a supervised token, as a textbook would write it."""
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
    """A line of this process's memory: VmRSS now, VmHWM at its highest."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"no {key} in /proc/self/status: this needs Linux")


def point(target_dir: Path, way: str, lengths: Sequence[int], steps: int) -> dict[str, float]:
    """One step in this process: bytes above the start, and the loss."""
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


def in_process(target_dir: Path, way: str, lengths: Sequence[int], steps: int) -> dict[str, float] | None:
    """`point` in a fresh process; None where it was killed for want of memory."""
    told = json.dumps([str(target_dir), way, list(lengths), steps])
    print(f"{way}, {sum(lengths)} tokens in {len(lengths)} documents", file=sys.stderr, flush=True)
    done = subprocess.run([sys.executable, __file__, "--point", told], stdout=subprocess.PIPE, text=True)
    if done.returncode < 0:
        return None
    if done.returncode:
        raise SystemExit(f"a point ended with {done.returncode}")
    return json.loads(done.stdout)


def naive_bytes(tokens: int, steps: int) -> int:
    """What the plain way holds at the least: scores and probabilities of every step, 8 heads, bfloat16."""
    return sum(2 * 2 * 8 * tokens * tokens * (step + 1) for step in range(steps))


def available_bytes() -> int:
    """Memory that this machine can still give."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def training_memory(steps: int) -> Iterator[Line]:
    """Every point, and how they grow."""
    ours: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        target_dir = make_target(Path(directory))
        for tokens in SIZES:
            lengths = lengths_of_pack(tokens, 0)
            found = in_process(target_dir, "eyas", lengths, steps)
            if found is None:
                yield Line(f"training memory, {tokens} tokens, eyas: killed", None, "a figure", False)
                continue
            ours[tokens] = found["bytes"]
            name = f"training memory, {tokens} tokens, {steps} steps, MiB"
            yield Line(name, round(found["bytes"] / 2**20), "told", True)
            if naive_bytes(tokens, steps) > available_bytes():
                least = naive_bytes(tokens, steps) / 2**30
                print(f"naive, {tokens} tokens: left out, takes {least:.0f} GiB or more", file=sys.stderr)
            elif (naive := in_process(target_dir, "naive", lengths, steps)) is not None:
                ratio = naive["bytes"] / found["bytes"]
                name = f"training memory, {tokens} tokens, {steps} steps, the plain way over eyas"
                yield Line(name, round(ratio, 2), "above 1", ratio > 1)
                off = abs(naive["loss"] / found["loss"] - 1)
                yield Line(f"{tokens} tokens: loss of the plain way, off by", round(off, 5), f"at most {SAME_LOSS}",
                           off <= SAME_LOSS)  # fmt: skip
        for smaller, larger in pairwise(SIZES):
            if smaller in ours and larger in ours:
                grown = ours[larger] / ours[smaller] / (larger / smaller)
                name = f"training memory, {larger} over {smaller} tokens, by token"
                yield Line(name, round(grown, 3), f"at most {MOST_GROWN}", grown <= MOST_GROWN)
        alone = in_process(target_dir, "eyas", [LONG], steps)
        name = f"training memory, one document of {LONG} tokens, MiB"
        yield Line(name, None if alone is None else round(alone["bytes"] / 2**20), "told", True)


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--point", help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.point:
        target_dir, way, lengths, steps = json.loads(parsed.point)
        print(json.dumps(point(Path(target_dir), way, lengths, steps)))
        return 0
    return print_rows(training_memory(parsed.steps))


if __name__ == "__main__":
    sys.exit(main())
