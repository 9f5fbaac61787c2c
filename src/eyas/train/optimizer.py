"""Optimizes the head with AdamW on float32 master weights. Forward and backward may run in another dtype."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

from eyas.model.head import DraftHead
from eyas.train.distributed import SINGLE_PROCESS, ProcessGroup, copy_local_rows

BETAS = (0.9, 0.95)
MOMENTS = ("exp_avg", "exp_avg_sq")


def cosine_learning_rate(peak: float, warmup_updates: int, num_updates: int, update: int) -> float:
    """Returns the learning rate of an update, counted from 0: linear warm-up to `peak`, then a cosine decay to 0."""
    if update < warmup_updates:
        return peak * (update + 1) / warmup_updates
    progress = (update - warmup_updates) / max(1, num_updates - warmup_updates)
    return peak * 0.5 * (1 + math.cos(math.pi * progress))


class MasterWeightOptimizer:
    """AdamW over float32 master weights and their moments. `head` holds a copy in the dtype of the forward.

    The gradients of micro-batches are accumulated in float32, so a division into micro-batches loses no precision. They
    are summed over the processes once an update, one weight tensor at a time.

    With `shard`, master weights and moments are DTensors, and each process holds some of their rows. Each process then
    receives the gradient sums of its own rows only (reduce-scatter). The head's copy is gathered from all processes in
    the dtype of the forward (all-gather). Bytes for each weight of a bfloat16 head, in each process:

                              head: weight + gradient    gradient sum    master weight + 2 moments
        without `shard`       2 + 2                      4               12
        sharded over N ranks  2 + 2                      4               12 / N
    """

    def __init__(
        self,
        head: DraftHead,
        weight_decay: float,
        clip: float,
        group: ProcessGroup = SINGLE_PROCESS,
        shard: bool = False,
    ) -> None:
        """Copies the weights of `head`. Requirement: `head` is on its final device and equal in all processes.

        Args:
            head: The head. Requirement: it is not yet cast to the dtype of the forward.
            weight_decay: The weight decay of matrices; weights of norms do not decay.
            clip: The largest norm of the gradient; a larger gradient is scaled down to this norm.
            group: The processes that train together.
            shard: Divides master weights and moments among these processes.
        """
        self.head = head
        self.clip = clip
        self.group = group
        self.is_sharded = shard and group.world_size > 1
        self.weights = {name: weight.detach().float().clone() for name, weight in head.named_parameters()}
        self.grad_sums = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        if self.is_sharded:
            self._mesh = init_device_mesh(next(head.parameters()).device.type, (group.world_size,))
            # All processes have all rows, and each keeps its own: src_data_rank=None sends nothing.
            self.weights = {
                name: distribute_tensor(weight, self._mesh, [Shard(0)], src_data_rank=None)
                for name, weight in self.weights.items()
            }
        matrices = [weight for weight in self.weights.values() if weight.ndim == 2]
        norms = [weight for weight in self.weights.values() if weight.ndim != 2]
        groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": norms, "weight_decay": 0.0}]
        self._adam = torch.optim.AdamW(groups, lr=0.0, betas=BETAS, eps=1e-8)
        for weight in self.weights.values():  # AdamW would create it in its first step; `state` needs it before
            zeros = {key: torch.zeros_like(weight) for key in MOMENTS}
            self._adam.state[weight] = {"step": torch.zeros(()), **zeros}

    def accumulate_gradients(self) -> None:
        """Adds the gradients in the head to the gradient sums, and clears them in the head."""
        for name, weight in self.head.named_parameters():
            if weight.grad is not None:
                self.grad_sums[name] += weight.grad
                weight.grad = None

    def step(self, learning_rate: float) -> float:
        """Makes one optimizer step in all processes and returns the norm of the gradient before clipping.

        If the norm is not finite, the weights stay as they are. The gradient sums are cleared in any case.
        """
        for name, weight in self.weights.items():
            weight.grad = self._reduce_gradient(self.grad_sums[name])
        with self.group.report_lost_ranks():
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
        """Returns the sum of a gradient over all processes. With `shard`, returns only the rows of this process."""
        if not self.is_sharded:
            return self.group.all_reduce_sum(grad)
        with self.group.report_lost_ranks():
            partial = DTensor.from_local(grad, self._mesh, [Partial("sum")], run_check=False)
            return partial.redistribute(placements=[Shard(0)])

    @torch.no_grad()
    def copy_to_head(self) -> None:
        """Copies the master weights into the head, in the head's dtype."""
        for name, weight in self.head.named_parameters():
            weight.copy_(self._gather(self.weights[name].to(weight.dtype)))

    def gather_weights(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns all rows of weights that are sharded as the master weights are. A collective call."""
        return {name: self._gather(weight) for name, weight in weights.items()}

    def _gather(self, weight: Tensor) -> Tensor:
        if not isinstance(weight, DTensor):
            return weight
        with self.group.report_lost_ranks():
            return weight.full_tensor()

    def state(self) -> dict[str, Tensor]:
        """Returns master weights, moments and step counts by name for a checkpoint. Sharded tensors stay sharded."""
        state: dict[str, Tensor] = {}
        for name, weight in self.weights.items():
            adam = self._adam.state[weight]
            state |= {f"weight.{name}": weight, **{f"{key}.{name}": adam[key] for key in ("step", *MOMENTS)}}
        return state

    def load_state(self, loaded: Mapping[str, Tensor]) -> None:
        """Restores the result of `state`. loaded: for each name the rows that this process holds."""
        copy_local_rows(loaded, self.state())
        self.copy_to_head()
