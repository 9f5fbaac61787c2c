"""Which weights of a training become the head: those that accept the most on held-out answers.

    update      ... 180 ...     360 ...     540        looked at after each epoch, or every `train.evaluate_every`
    as they are     2.91        3.43        3.40       acceptance length on held-out answers
    their mean      3.02        3.51        3.52 <-    with `train.ema`: m = k m + (1 - k) w after each update

N held-out answers, always the same. Two candidates are compared answer by answer: the later one is taken unless it
needs more rounds by over one standard error of the difference, and at one update the mean comes after the weights. So
noise throws away no training, and only what got worse stays behind.

What is seen here chooses one of a few dozen candidates; `eyas eval` measures on all held-out answers, these among them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from eyas.evaluation.replay import HeldOutRows
from eyas.model.head import Head, HeadConfig
from eyas.model.vocab import DraftVocab
from eyas.train.checkpoint import LocalState
from eyas.train.config import TrainConfig
from eyas.train.optimizer import MasterWeightOptimizer

NOISE_STD_ERRORS = 1.0  # standard errors
MEAN, BEST = "mean", "best"


@dataclass(frozen=True)
class Candidate:
    """What one candidate needed: rounds_N of each answer. update: after which; is_mean: the mean of weights."""

    update: int
    is_mean: bool
    rounds_N: tuple[int, ...]

    def is_worse(self, other: "Candidate") -> bool:
        """By more than noise."""
        more_N = torch.tensor(self.rounds_N).double() - torch.tensor(other.rounds_N)
        error = math.sqrt(len(more_N)) * float(more_N.std()) if len(more_N) > 1 else 0.0
        return float(more_N.sum()) > NOISE_STD_ERRORS * error


class CheckpointSelection:
    """The best weights so far and the running mean, beside those that are trained. One in each process."""

    def __init__(
        self,
        config: TrainConfig,
        sizes: HeadConfig,
        vocab: DraftVocab,
        masters: MasterWeightOptimizer,
        held_out: HeldOutRows | None,
    ) -> None:
        """held_out: None where nothing is looked at; then the last weights are the head, or with `ema` their mean."""
        self.config, self.sizes, self.vocab, self.optimizer = config, sizes, vocab, masters
        self.held_out = held_out
        self.candidates: list[Candidate] = []
        self.chosen: Candidate | None = None
        self._ema = _clone_weights(masters.weights) if config.ema else {}
        self._best = _clone_weights(masters.weights) if held_out is not None else {}

    @torch.no_grad()
    def update_ema(self, update: int) -> None:
        """After an update, counted from 1: its weights go into the mean, early on faster, for the first are random."""
        keep = min(self.config.ema, (1 + update) / (10 + update))
        for name, mean in self._ema.items():
            self.optimizer.local_rows(mean).lerp_(self.optimizer.local_rows(self.optimizer.weights[name]), 1 - keep)

    def evaluate(self, update: int) -> dict[str, float]:
        """Measure the weights, and their mean where there is one, for metrics.jsonl; all processes together."""
        assert self.held_out is not None, "something to look at"
        told = {}
        candidates: dict[str, Mapping[str, Tensor]] = {"acceptance_length": self.optimizer.weights}
        if self._ema:
            candidates["acceptance_length_of_mean"] = self._ema
        for name, weights in candidates.items():
            rounds_N, tokens = self._count_rounds(self.held_out, weights)
            found = Candidate(update, weights is self._ema, tuple(rounds_N.tolist()))
            self.candidates.append(found)
            if self.chosen is None or not found.is_worse(self.chosen):
                self.chosen = found
                self._copy_weights(weights, self._best)
            told[name] = round(tokens / int(rounds_N.sum()), 6)
        return told

    @property
    def should_stop(self) -> bool:
        """Whether the last `patience` looks have all needed more rounds than the best look before them."""
        if self.config.patience is None:
            return False
        updates = list(dict.fromkeys(found.update for found in self.candidates))
        fewest = [min(sum(one.rounds_N) for one in self.candidates if one.update == update) for update in updates]
        before, last = fewest[: -self.config.patience], fewest[-self.config.patience :]
        return bool(before) and min(last) >= min(before)

    def apply_chosen(self) -> None:
        """Put the chosen weights into the masters: training is over."""
        taken = self._best if self.held_out is not None else self._ema
        if taken:
            self._copy_weights(taken, self.optimizer.weights)
            self.optimizer.copy_to_head()

    @torch.no_grad()
    def _copy_weights(self, weights: Mapping[str, Tensor], to: Mapping[str, Tensor]) -> None:
        """Each process its rows."""
        for name, weight in weights.items():
            self.optimizer.local_rows(to[name]).copy_(self.optimizer.local_rows(weight))

    def _count_rounds(self, held_out: HeldOutRows, weights: Mapping[str, Tensor]) -> tuple[Tensor, int]:
        """Rounds of each answer, and the tokens of all; each process drafts some of the answers."""
        ranks = self.optimizer.ranks
        head = Head(self.sizes).to_empty(device="cpu").requires_grad_(False)
        head.load_state_dict(self.optimizer.gather_weights(weights))
        own = range(ranks.rank, len(held_out.indices), ranks.world_size)
        counts_2N = torch.zeros(2, len(held_out.indices), dtype=torch.int64)
        if own:
            rounds = held_out.select(own).replay(head, self.vocab)
            counts_2N[:, own] = torch.tensor([[len(one.accepted), sum(one.accepted)] for one in rounds]).T
        rounds_N, tokens_N = ranks.all_reduce_sum(counts_2N)
        return rounds_N, int(tokens_N.sum())

    # --- interrupted runs --------------------------------------------------------------------------------------------

    def add_state(self, state: LocalState) -> LocalState:
        """The state of the masters and what this object keeps beside it."""
        here, num_rows = dict(state.tensors), dict(state.num_rows)
        for kind, weights in ((MEAN, self._ema), (BEST, self._best)):
            for name, weight in weights.items():
                here[f"{kind}.{name}"] = self.optimizer.local_rows(weight)
                num_rows[f"{kind}.{name}"] = weight.shape[0]
        return LocalState(here, num_rows, state.is_sharded)

    def to_json(self) -> dict[str, Any]:
        """The rest of it, as JSON."""
        chosen = None if self.chosen is None else self.candidates.index(self.chosen)
        return {"found": [asdict(found) for found in self.candidates], "chosen": chosen}

    @torch.no_grad()
    def load_state(self, state: LocalState, note: dict[str, Any]) -> None:
        """The inverse of `with_mine` and `note`."""
        for kind, weights in ((MEAN, self._ema), (BEST, self._best)):
            for name, weight in weights.items():
                self.optimizer.local_rows(weight).copy_(state.tensors[f"{kind}.{name}"])
        self.candidates = [Candidate(one["update"], one["is_mean"], tuple(one["rounds_N"])) for one in note["found"]]
        self.chosen = None if note["chosen"] is None else self.candidates[note["chosen"]]


def evaluation_updates(updates_per_epoch: Sequence[int], evaluate_every: int | None) -> set[int]:
    """After which updates to look. epochs: the updates of each. The last update is always one of them."""
    total = sum(updates_per_epoch)
    ends = {sum(updates_per_epoch[: number + 1]) for number in range(len(updates_per_epoch))}
    return ends if evaluate_every is None else {*range(evaluate_every, total + 1, evaluate_every), total}


def _clone_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in weights.items()}
