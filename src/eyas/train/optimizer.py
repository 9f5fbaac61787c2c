"""AdamW on float32 masters while the head computes in another precision."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

from eyas.model.head import Head
from eyas.train.checkpoint import LocalState
from eyas.train.distributed import SINGLE_PROCESS, ProcessGroup

BETAS = (0.9, 0.95)
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class CosineSchedule:
    """Linear warm-up over the first `warmup` updates, then a cosine down to `floor` of the peak at the last one."""

    peak: float
    warmup_updates: int
    num_updates: int
    floor: float = 0.0

    def learning_rate(self, update: int) -> float:
        """The learning rate of an update, counted from 0."""
        if update < self.warmup_updates:
            return self.peak * (update + 1) / self.warmup_updates
        progress = (update - self.warmup_updates) / max(1, self.num_updates - self.warmup_updates)
        return self.peak * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * progress)))


class MasterWeightOptimizer:
    """The weights as trained, in float32, and their moments; `head` holds a copy in the precision of the products.

    Gradients of bfloat16 weights are added up here, in float32, so cutting a batch into micro-batches costs nothing.
    They are summed over the processes once an update: a head has a dozen matrices, so each goes by itself.

    divided: weights and moments are DTensors, each process holding some rows. Then the sum of the gradients arrives
    there alone (reduce-scatter), and the copy that computes is put together again in its own precision (all-gather):

        bytes of a weight       gradient, copy     sums    weight, moments
        each process alike      2 + 2              4       12
        divided by N            2 + 2              4       12 / N
    """

    def __init__(
        self, head: Head, weight_decay: float, clip: float, ranks: ProcessGroup = SINGLE_PROCESS, shard: bool = False
    ) -> None:
        """`head` is where the computation is to be, and alike in all processes."""
        self.head = head
        self.clip = clip
        self.ranks = ranks
        self.is_sharded = shard and self.ranks.world_size > 1
        whole = {name: weight.detach().float().clone() for name, weight in head.named_parameters()}
        self.grad_sums = {name: torch.zeros_like(weight) for name, weight in whole.items()}
        self.weights = whole
        if self.is_sharded:
            self._mesh = self.ranks.device_mesh(next(head.parameters()).device)
            # Each keeps its rows of what all have: nothing is sent.
            self.weights = {
                name: distribute_tensor(weight, self._mesh, [Shard(0)], src_data_rank=None)
                for name, weight in whole.items()
            }
        matrices = [weight for weight in self.weights.values() if weight.ndim == 2]
        norms = [weight for weight in self.weights.values() if weight.ndim != 2]
        groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": norms, "weight_decay": 0.0}]
        self._adam = torch.optim.AdamW(groups, lr=0.0, betas=BETAS, eps=1e-8)
        for weight in self.weights.values():  # what AdamW would make at its first step, so that `state` is never empty
            zeros = {key: torch.zeros_like(weight) for key in MOMENTS}
            self._adam.state[weight] = {"step": torch.zeros(()), **zeros}

    def accumulate_gradients(self) -> None:
        """Take over the gradients of one micro-batch."""
        for name, weight in self.head.named_parameters():
            if weight.grad is not None:
                self.grad_sums[name] += weight.grad
                weight.grad = None

    def step(self, learning_rate: float) -> float:
        """One optimizer step of all processes; the norm of the gradient before clipping.

        Where that is no finite number, nothing is changed.
        """
        for name, weight in self.weights.items():
            weight.grad = self._reduce_gradient(self.grad_sums[name])
        with self.ranks.report_lost_ranks():
            norm = torch.nn.utils.clip_grad_norm_(list(self.weights.values()), self.clip)
            norm = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        if math.isfinite(norm):
            for group in self._adam.param_groups:
                group["lr"] = learning_rate
            self._adam.step()
            self.copy_to_head()
        for name, weight in self.weights.items():
            weight.grad = None
            self.grad_sums[name].zero_()
        return norm

    def _reduce_gradient(self, grad: Tensor) -> Tensor:
        """Over all processes; of a divided weight the rows that are here."""
        if not self.is_sharded:
            return self.ranks.all_reduce_sum(grad)
        with self.ranks.report_lost_ranks():
            mine = DTensor.from_local(grad, self._mesh, [Partial("sum")], run_check=False)
            return mine.redistribute(placements=[Shard(0)])

    @torch.no_grad()
    def copy_to_head(self) -> None:
        """Copy the masters into the head."""
        for name, weight in self.head.named_parameters():
            weight.copy_(self._gather(self.weights[name].to(weight.dtype)))

    def gather_weights(self, weights: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """All rows of the float32 weights, or of others that are divided as these are; all processes together."""
        return {name: self._gather(weight) for name, weight in (self.weights if weights is None else weights).items()}

    def local_rows(self, weight: Tensor) -> Tensor:
        """The rows of a weight that are here."""
        return weight.to_local() if isinstance(weight, DTensor) else weight

    def _gather(self, weight: Tensor) -> Tensor:
        if not isinstance(weight, DTensor):
            return weight
        with self.ranks.report_lost_ranks():
            return weight.full_tensor()

    def state(self) -> LocalState:
        """All that an interrupted run needs, by name, as far as this process holds it."""
        here: dict[str, Tensor] = {}
        num_rows: dict[str, int] = {}
        for name, weight in self.weights.items():
            kept = self._adam.state[weight]
            here[f"step.{name}"] = kept["step"]
            for key, tensor in {"weight": weight, **{key: kept[key] for key in MOMENTS}}.items():
                here[f"{key}.{name}"] = self.local_rows(tensor)
                num_rows[f"{key}.{name}"] = weight.shape[0]
        return LocalState(here, num_rows, self.is_sharded)

    @torch.no_grad()
    def load_state(self, state: LocalState) -> None:
        """The inverse of `state`. Values are copied: a tensor mapped from a file may be aligned otherwise."""
        for name, tensor in self.state().tensors.items():
            tensor.copy_(state.tensors[name])
        self.copy_to_head()
