"""AdamW on float32 masters while the head computes in another precision."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.model.head import Head

BETAS = (0.9, 0.95)


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up over the first `warmup` updates, then a cosine down to `floor` of the peak at the last one."""

    peak: float
    warmup: int
    total: int
    floor: float = 0.0

    def at(self, update: int) -> float:
        """The learning rate of an update, counted from 0."""
        if update < self.warmup:
            return self.peak * (update + 1) / self.warmup
        progress = (update - self.warmup) / max(1, self.total - self.warmup)
        return self.peak * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * progress)))


class Masters:
    """The weights as trained, in float32, and their moments; `head` holds a copy in the precision of the products.

    Gradients of bfloat16 weights are added up here, in float32, so cutting a batch into micro-batches costs nothing.
    """

    def __init__(self, head: Head, weight_decay: float, clip: float) -> None:
        self.head = head
        self.clip = clip
        self.weights = {name: weight.detach().float().clone() for name, weight in head.named_parameters()}
        for weight in self.weights.values():
            weight.grad = torch.zeros_like(weight)
        matrices = [weight for weight in self.weights.values() if weight.ndim == 2]
        norms = [weight for weight in self.weights.values() if weight.ndim != 2]
        groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": norms, "weight_decay": 0.0}]
        self._adam = torch.optim.AdamW(groups, lr=0.0, betas=BETAS, eps=1e-8)

    def collect(self) -> None:
        """Take over the gradients of one micro-batch."""
        for name, weight in self.head.named_parameters():
            if weight.grad is not None:
                grad = self.weights[name].grad
                assert grad is not None
                grad += weight.grad
                weight.grad = None

    def update(self, learning_rate: float) -> float:
        """One optimizer step; the norm of the gradient before clipping."""
        norm = torch.nn.utils.clip_grad_norm_(list(self.weights.values()), self.clip)
        for group in self._adam.param_groups:
            group["lr"] = learning_rate
        self._adam.step()
        self._adam.zero_grad(set_to_none=False)
        self.publish()
        return float(norm)

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the masters into the head."""
        for name, weight in self.head.named_parameters():
            weight.copy_(self.weights[name])

    def state(self) -> dict[str, Tensor]:
        """All that an interrupted run needs, by name."""
        state: dict[str, Tensor] = {}
        for name, weight in self.weights.items():
            state[f"weight.{name}"] = weight
            state.update({f"{key}.{name}": value for key, value in self._adam.state.get(weight, {}).items()})
        return state

    @torch.no_grad()
    def load_state(self, state: dict[str, Tensor]) -> None:
        """The inverse of `state`. Values are copied: a tensor mapped from a file may be aligned otherwise."""
        for name, weight in self.weights.items():
            weight.copy_(state[f"weight.{name}"])
            keys = ("step", "exp_avg", "exp_avg_sq")
            self._adam.state[weight] = {key: state[f"{key}.{name}"].clone() for key in keys}
        self.publish()
