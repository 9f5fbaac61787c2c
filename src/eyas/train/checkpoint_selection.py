"""Selects the weights that become the head: those with the best acceptance length on held-out answers.

An evaluation runs after each epoch, or every `train.evaluate_every` updates. It replays the same N held-out answers
with the current weights and, if `train.ema` is set, with the exponential moving average (EMA) of the weights.

    after update                          180       360       540
    acceptance length with the weights    2.91      3.43      3.40
    acceptance length with their EMA      3.02      3.51      3.52   <- becomes the head

Each evaluated set of weights is a candidate. A new candidate replaces the chosen candidate, unless it needs more
rounds and the difference exceeds one standard error over the answers. So noise does not discard later training. In one
evaluation, the weights are compared first and the EMA second.

The figures of the chosen candidate are slightly too high, because they selected it. `eyas eval` measures the head on
all held-out answers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from eyas.evaluation.replay import HeldOutRows
from eyas.model.head import HeadConfig
from eyas.model.vocab import DraftVocab
from eyas.train.config import TrainConfig
from eyas.train.distributed import copy_local_rows, local_rows
from eyas.train.optimizer import MasterWeightOptimizer

NOISE_STD_ERRORS = 1.0


@dataclass(frozen=True)
class Candidate:
    """A set of weights that was evaluated.

    Attributes:
        update: The update after which the weights were evaluated, counted from 1.
        is_mean: True for the EMA of the weights, False for the weights.
        rounds_N: The rounds that each held-out answer needs.
    """

    update: int
    is_mean: bool
    rounds_N: tuple[int, ...]

    def is_worse(self, other: "Candidate") -> bool:
        """Returns True if this candidate needs more rounds than `other`, by over one standard error."""
        more_N = torch.tensor(self.rounds_N).double() - torch.tensor(other.rounds_N)
        error = math.sqrt(len(more_N)) * float(more_N.std()) if len(more_N) > 1 else 0.0
        return float(more_N.sum()) > NOISE_STD_ERRORS * error


class CheckpointSelection:
    """The chosen weights so far and the EMA of the weights. The optimizer owns the weights that are trained."""

    def __init__(
        self,
        config: TrainConfig,
        sizes: HeadConfig,
        vocab: DraftVocab,
        optimizer: MasterWeightOptimizer,
        held_out: HeldOutRows | None,
    ) -> None:
        """Copies the initial weights.

        Args:
            config: The settings.
            sizes: The sizes of the head.
            vocab: The draft vocabulary of the head.
            optimizer: The owner of the weights that are trained.
            held_out: The answers to evaluate on. None: nothing is evaluated, and the last weights become the head, or
                their EMA if `train.ema` is set.
        """
        self.config, self.sizes, self.vocab, self.optimizer = config, sizes, vocab, optimizer
        self.held_out = held_out
        self.candidates: list[Candidate] = []
        self.chosen: Candidate | None = None
        self._ema = _clone_weights(optimizer.weights) if config.ema else {}
        self._best = _clone_weights(optimizer.weights) if held_out is not None else {}

    @torch.no_grad()
    def update_ema(self, update: int) -> None:
        """Updates the EMA after this update, counted from 1. Early updates keep less of it, so random weights fade."""
        keep = min(self.config.ema, (1 + update) / (10 + update))
        for name, mean in self._ema.items():
            local_rows(mean).lerp_(local_rows(self.optimizer.weights[name]), 1 - keep)

    def evaluate(self, update: int) -> dict[str, float]:
        """Evaluates the weights and their EMA, and updates the chosen candidate. A collective call.

        Returns:
            The keys `acceptance_length` and `acceptance_length_of_mean` (of the EMA) for a line of metrics.jsonl.
        """
        assert self.held_out is not None, "no held-out answers"
        figures = {}
        weights_by_name: dict[str, Mapping[str, Tensor]] = {"acceptance_length": self.optimizer.weights}
        if self._ema:
            weights_by_name["acceptance_length_of_mean"] = self._ema
        for name, weights in weights_by_name.items():
            rounds_N, num_tokens = self._count_rounds(self.held_out, weights)
            candidate = Candidate(update, weights is self._ema, tuple(rounds_N.tolist()))
            self.candidates.append(candidate)
            if self.chosen is None or not candidate.is_worse(self.chosen):
                self.chosen = candidate
                copy_local_rows(weights, self._best)
            figures[name] = round(num_tokens / int(rounds_N.sum()), 6)
        return figures

    @property
    def should_stop(self) -> bool:
        """True if no evaluation among the last `train.patience` needs fewer rounds than the best one before them."""
        if self.config.patience is None:
            return False
        fewest: dict[int, int] = {}
        for candidate in self.candidates:
            rounds = sum(candidate.rounds_N)
            fewest[candidate.update] = min(rounds, fewest.get(candidate.update, rounds))
        by_evaluation = list(fewest.values())
        before, last = by_evaluation[: -self.config.patience], by_evaluation[-self.config.patience :]
        return bool(before) and min(last) >= min(before)

    def apply_chosen(self) -> None:
        """Copies the chosen weights into the optimizer. The caller must call it after the last update."""
        weights = self._best if self.held_out is not None else self._ema
        if weights:
            copy_local_rows(weights, self.optimizer.weights)
            self.optimizer.copy_to_head()

    def _count_rounds(self, held_out: HeldOutRows, weights: Mapping[str, Tensor]) -> tuple[Tensor, int]:
        """Returns the rounds of each answer and the tokens of all answers. Each process replays some of the answers."""
        group = self.optimizer.group
        head = self.sizes.head_class(self.sizes).to_empty(device="cpu").requires_grad_(False)
        head.load_state_dict(self.optimizer.gather_weights(weights))
        own = range(group.rank, len(held_out.indices), group.world_size)
        counts_2N = torch.zeros(2, len(held_out.indices), dtype=torch.int64)
        if own:
            replayed = held_out.select(own).replay(head, self.vocab)
            counts_2N[:, own] = torch.tensor([[len(rounds.accepted), sum(rounds.accepted)] for rounds in replayed]).T
        rounds_N, tokens_N = group.all_reduce_sum(counts_2N)
        return rounds_N, int(tokens_N.sum())

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Returns the EMA and the chosen weights by name for a checkpoint, sharded as the master weights are."""
        kinds = {"mean": self._ema, "best": self._best}
        return {f"{kind}.{name}": weight for kind, weights in kinds.items() for name, weight in weights.items()}

    def to_json(self) -> dict[str, Any]:
        """Returns the candidates and the index of the chosen candidate, for `selection` in checkpoint.json."""
        chosen = None if self.chosen is None else self.candidates.index(self.chosen)
        return {"found": [asdict(candidate) for candidate in self.candidates], "chosen": chosen}

    def load_state(self, loaded: Mapping[str, Tensor], selection: dict[str, Any]) -> None:
        """Restores the selection from a checkpoint: `loaded` from `state`, `selection` from `to_json`."""
        copy_local_rows(loaded, self.state())
        self.candidates = [Candidate(**entry | {"rounds_N": tuple(entry["rounds_N"])}) for entry in selection["found"]]
        self.chosen = None if selection["chosen"] is None else self.candidates[selection["chosen"]]


def evaluation_updates(updates_per_epoch: Sequence[int], evaluate_every: int | None) -> set[int]:
    """Returns the updates after which to evaluate, counted from 1. The last update is always one of them."""
    total = sum(updates_per_epoch)
    if evaluate_every is not None:
        return {*range(evaluate_every, total + 1, evaluate_every), total}
    return {sum(updates_per_epoch[: number + 1]) for number in range(len(updates_per_epoch))}


def _clone_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in weights.items()}
