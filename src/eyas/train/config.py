"""The recipe keys `train.*`, and the sizes of the head that they ask for."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

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
    """The head's own choices; None takes the target's value."""

    intermediate_size: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    fc_norm: bool = False
    norm_output: bool = False


@dataclass(frozen=True)
class TrainConfig:
    """How a head is trained. An *update* is an optimizer step; a *step* is one of the unrolled steps (glossary).

    steps, decay: unrolled steps K and the weight decay^k of step k. epochs: passes over the data; updates: a number of
    updates instead. batch_tokens: supervised tokens of an update; micro_tokens: tokens (prompts included) of one
    forward. warmup: share of all updates. loss: `train.loss` says which there are. init, lm_head: what the weights
    start from, `train.init_head`. dtype: of the products; weights and moments are float32 throughout. stored_dtype: of
    model.safetensors. log_every: updates a line of metrics.jsonl. checkpoint_url: any fsspec URL, of this run alone;
    None: beside the head. shard: several processes divide weights and moments among them. watch: who is told of the
    lines of metrics.jsonl besides, `train.watch`. Raises UsageError.

    Which weights become the head (train.selection): evaluate_every: updates between two looks at held-out answers;
    None: after each epoch. evaluate_answers: how many are looked at; 0: none, and the last weights are the head.
    evaluate_tree: what is drafted there; not the tree of eval, so that no key of eval changes a head. patience: looks
    without a gain that end the training; None: it goes on. ema: how much of the mean of weights an update leaves; 0: no
    mean.
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
            raise UsageError("an empty train.init", "'random' or a head directory", "leave it out to start at random")
        counts = ("steps", "epochs", "updates", "batch_tokens", "micro_tokens", "draft_vocab_size", "log_every")
        for name in (*counts, "evaluate_every", "patience", "evaluate_answers"):
            value, least = getattr(self, name), 0 if name == "evaluate_answers" else 1
            if value is not None and value < least:
                raise UsageError(f"train.{name} = {value}", f"at least {least}", f"raise train.{name}")
        if not 0 <= self.ema < 1:
            raise UsageError(f"train.ema = {self.ema}", "0, or what an update leaves, below 1", "change train.ema")
        if self.patience is not None and not self.evaluate_answers:
            raise UsageError(
                "train.patience with train.evaluate_answers = 0", "answers to look at", "raise train.evaluate_answers"
            )
        for name, high in (("decay", 1.0), ("warmup", 1.0), ("learning_rate", math.inf), ("clip", math.inf)):
            value = getattr(self, name)
            if not 0 <= value <= high or (value == 0 and name != "warmup"):
                raise UsageError(f"train.{name} = {value}", f"above 0 and at most {high}", f"change train.{name}")


def build_head_config(config: TrainConfig, aux_layer_ids: Sequence[int], facts: TargetInfo) -> HeadConfig:
    """The sizes of the head: the target's layer, with the options of the recipe. `InputError` if none can be built."""
    options = config.head
    sizes = HeadConfig.for_target(
        facts,
        min(config.draft_vocab_size, facts.vocab_size),
        intermediate_size=options.intermediate_size,
        aux_layer_ids=tuple(HFIndex(i) for i in aux_layer_ids),
        fc_norm=options.fc_norm,
        norm_output=options.norm_output,
    )
    sizes = dataclasses.replace(
        sizes,
        num_heads=options.num_heads or sizes.num_heads,
        num_kv_heads=options.num_kv_heads or sizes.num_kv_heads,
        head_dim=options.head_dim or sizes.head_dim,
    )
    if (problem := sizes.find_problem()) is not None:
        raise InputError(problem, "sizes that make a head", "change train.head, or capture other layers")
    return sizes
