"""The figures of training: sums over the updates since the last line, and the line itself.

K steps, Q chains, J teacher rows.
"""

import json
from typing import Any

import torch

from eyas.train.loss import Graded
from eyas.train.ttt import Packed

NUM_SUMS = 4  # rows of Window.sums: taught, hits, overlap, run


class Window:
    """Sums since the last line, in one float64 tensor: processes add theirs up, a checkpoint keeps every bit.

    For each step: taught tokens, hits, overlap, and chains whose drafts were all hits up to here; then the loss.
    """

    def __init__(self, steps: int) -> None:
        self.sums_SK = torch.zeros(NUM_SUMS + 1, steps, dtype=torch.float64)

    def add(self, packed: Packed, graded: Graded, count: int) -> None:
        """count: the divisor of this update's loss."""
        hits_N = torch.zeros_like(packed.supervised_KQ, dtype=torch.bool).flatten()
        hits_N[packed.pupils_JK[packed.taught_JK]] = graded.hits_JK[packed.taught_JK]
        run_K = hits_N.view_as(packed.supervised_KQ).long().cumprod(0).sum(1)
        tensors = (packed.taught_JK.sum(0), graded.hits_JK.sum(0), graded.overlap_JK.sum(0), run_K)
        self.sums_SK[:NUM_SUMS] += torch.stack([sums_K.double() for sums_K in tensors]).cpu()
        self.sums_SK[NUM_SUMS, 0] += float(graded.loss.detach()) / count

    def line(self, update: int, num_updates: int, learning_rate: float) -> dict[str, Any]:
        """Update is counted from 1; num_updates is how many the sums are over.

        loss: mean over the updates. accuracy: the head's first choice is the target's, among all taught tokens.
        acceptance: chance that one sampled draft is accepted. chain_length: tokens a chain of this depth would add to
        the text, the target's own included, over all places a round can start.
        """
        taught_K, hits_K, overlap_K, run_K, loss_K = self.sums_SK
        taught_K = taught_K.clamp(min=1)
        return {
            "update": update,
            "learning_rate": learning_rate,
            "loss": float(loss_K[0]) / num_updates,
            "accuracy": [round(x, 6) for x in (hits_K / taught_K).tolist()],
            "acceptance": [round(x, 6) for x in (overlap_K / taught_K).tolist()],
            "chain_length": round(1 + float(run_K.sum() / taught_K[0]), 6),
        }


def to_jsonl(lines: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def summary(line: dict[str, Any]) -> str:
    """A line in the words of the progress bar."""
    first = line["accuracy"][0]
    return f"loss {line['loss']:.3f}  accuracy {first:.1%}  chain length {line['chain_length']:.2f}"
