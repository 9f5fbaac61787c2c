"""Defines the recipe keys `train.*` and the sizes of the head that they give."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from eyas.base.config import require_range
from eyas.base.errors import InputError, UsageError
from eyas.model.head import HeadConfig
from eyas.model.layer_ids import HFIndex
from eyas.model.target_info import TargetInfo
from eyas.train.init_head import RANDOM
from eyas.train.loss import LossName
from eyas.train.training_metrics import TrackerName
from eyas.tree.shape import TreeShape


@dataclass(frozen=True)
class HeadOptions:
    """The recipe keys `train.head.*`. None takes the target's value."""

    intermediate_size: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    fc_norm: bool = False
    norm_output: bool = False


@dataclass(frozen=True)
class TrainConfig:
    """The recipe keys `train.*`. Raises UsageError for a value out of range.

    An *update* is an optimizer step; a *step* is one of the unrolled steps (glossary).

    steps, decay: unrolled steps K, and the loss weight decay^k of step k.
    epochs, updates: passes over the data, or a number of updates instead.
    batch_tokens: supervised tokens of an update.
    micro_tokens: tokens of one forward, prompts included.
    warmup: share of all updates.
    loss: one of the losses of `train.loss`.
    init, lm_head: the initial weights (`train.init_head`).
    dtype: of forward and backward; master weights and moments are float32.
    stored_dtype: of model.safetensors.
    log_every: updates per line of metrics.jsonl.
    checkpoint_url: any fsspec URL, used by this run only. None: beside the head.
    shard: divides master weights and moments among the processes.
    watch: experiment trackers that also get the lines of metrics.jsonl.

    Which weights become the head (`train.checkpoint_selection`):

    evaluate_every: updates between two evaluations on held-out answers. None: after each epoch.
    evaluate_answers: held-out answers that are evaluated. 0: none, and the last weights become the head.
    evaluate_tree: the tree of these evaluations. It is not that of `eval`, so that no key of `eval` changes a head.
    patience: evaluations without improvement after which training stops. None: it never stops early.
    ema: the share of the EMA that an update keeps. 0: no EMA.
    """

    steps: int = 7
    decay: float = 0.8
    epochs: int = 3
    updates: int | None = None
    batch_tokens: int = 2048
    micro_tokens: int = 8192
    learning_rate: float = 1e-3
    warmup: float = 0.03
    weight_decay: float = 0.01
    clip: float = 0.5
    seed: int = 0
    draft_vocab_size: int = 32000
    head: HeadOptions = field(default_factory=HeadOptions)
    init: str = RANDOM
    lm_head: Literal["random", "target"] = "random"
    loss: LossName = "soft"
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    stored_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    log_every: int = 20
    checkpoint_every_s: float = 60.0
    checkpoint_url: str | None = None
    shard: bool = False
    evaluate_every: int | None = None
    evaluate_answers: int = 16
    evaluate_tree: TreeShape = field(default_factory=lambda: TreeShape(6, 4, 16))
    patience: int | None = None
    ema: float = 0.0
    watch: tuple[TrackerName, ...] = ()

    def __post_init__(self) -> None:
        if not self.init:
            raise UsageError("train.init is empty", "Set it to 'random' or to a head directory")
        counts = ("steps", "epochs", "updates", "batch_tokens", "micro_tokens", "draft_vocab_size", "log_every")
        for name in (*counts, "evaluate_every", "patience"):
            require_range(f"train.{name}", getattr(self, name), 1)
        require_range("train.evaluate_answers", self.evaluate_answers, 0)
        require_range("train.warmup", self.warmup, 0, 1)
        for name, high in (("decay", 1.0), ("learning_rate", math.inf), ("clip", math.inf)):
            require_range(f"train.{name}", getattr(self, name), 0, high, exclude_low=True)
        if not 0 <= self.ema < 1:
            raise UsageError(f"train.ema = {self.ema} is out of range", "Set train.ema to at least 0 and below 1")
        if self.patience is not None and not self.evaluate_answers:
            problem = "train.patience needs evaluations, but train.evaluate_answers is 0"
            raise UsageError(problem, "Raise train.evaluate_answers, or remove train.patience")


def build_head_config(config: TrainConfig, aux_layer_ids: Sequence[int], info: TargetInfo) -> HeadConfig:
    """Returns the sizes of the head: those of one layer of the target, changed by `train.head`.

    Raises:
        InputError: If no head can have these sizes.
    """
    options = config.head
    sizes = HeadConfig.for_target(
        info,
        min(config.draft_vocab_size, info.vocab_size),
        intermediate_size=options.intermediate_size,
        aux_layer_ids=tuple(HFIndex(i) for i in aux_layer_ids),
        fc_norm=options.fc_norm,
        norm_output=options.norm_output,
    )
    heads = {name: getattr(options, name) for name in ("num_heads", "num_kv_heads", "head_dim")}
    sizes = dataclasses.replace(sizes, **{name: size for name, size in heads.items() if size})
    if (problem := sizes.find_problem()) is not None:
        raise InputError(f"No head can be built: {problem}", "Change train.head, or set capture.aux_layer_ids")
    return sizes
