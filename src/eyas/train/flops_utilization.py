"""How much of what the machine can do goes into training: the products of the weights, against one plain product.

    share of peak = operations of the products below / seconds / operations a second of a square product, measured once

    product                                   rows                     forward, and backward for input and weight
    fc                                        P rows                   2 of 3: nobody asks for the features' gradient
    block: q, k, v, o, gate, up, down         P + (K - 1) Q            3
    output rows of the head                   taught places            3
    output matrix of the target               J teachers               1

A product of [m, n] and [n, k] is 2 m n k operations. Attention, norms, softmax, the optimizer and reading of features
count for nothing, so the share says how much of the time is left for what must be done, and is never too high.

P rows of a micro-batch, Q chains, K steps, J teacher rows, D hidden, V draft vocabulary, W target vocabulary.
"""

import time

import torch

from eyas.model.head import Head
from eyas.train.ttt import Packed

MEASURED_S = 0.2
SIDE = {"cpu": 1024, "cuda": 8192}
"""Of the square product: large enough to be limited by arithmetic, small enough to take well below a second."""


def operations(head: Head, target_vocab: int, packed: Packed) -> int:
    """Of one micro-batch, forward and backward, by the table above."""
    num_rows, (num_steps, num_chains) = packed.ids_P.shape[0], packed.tokens_KQ.shape
    block = sum(weight.numel() for weight in head.midlayer.parameters() if weight.ndim == 2)
    taught, teachers = int(packed.taught_JK.sum()), packed.teachers_J.shape[0]
    return 2 * (
        2 * num_rows * head.fc.weight.numel()
        + 3 * (num_rows + (num_steps - 1) * num_chains) * block
        + 3 * taught * head.lm_head.weight.numel()
        + teachers * head.config.target_hidden_size * target_vocab
    )


def peak(dtype: torch.dtype, device: torch.device) -> float:
    """Operations a second of a square product on this machine and its threads: the best of a fifth of a second."""
    side = SIDE.get(device.type, SIDE["cuda"])
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    best_s, spent_s = float("inf"), 0.0
    while spent_s < MEASURED_S:
        _finish(device)
        began_s = time.perf_counter()
        torch.mm(a, b)
        _finish(device)
        took_s = time.perf_counter() - began_s
        best_s, spent_s = min(best_s, took_s), spent_s + took_s
    return 2 * side**3 / best_s


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Pace:
    """The share of peak since the last look."""

    def __init__(self, head: Head, target_vocab: int, peak_per_s: float) -> None:
        self.head, self.target_vocab, self.peak_per_s = head, target_vocab, peak_per_s
        self._done, self._since_s = 0, time.perf_counter()

    def add(self, packed: Packed) -> None:
        self._done += operations(self.head, self.target_vocab, packed)

    def note(self) -> str:
        """For the progress line."""
        now_s = time.perf_counter()
        share = self._done / (now_s - self._since_s) / self.peak_per_s
        self._done, self._since_s = 0, now_s
        return f"{share:.0%} of peak"
