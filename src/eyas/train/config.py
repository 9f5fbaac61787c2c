"""Defines the recipe keys `train.*`, and computes the sizes of the head from them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from eyas.base.config import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from eyas.base.errors import InputError, UsageError
from eyas.model.block_head import BlockConfig
from eyas.model.head import HeadConfig
from eyas.model.layer_ids import HFIndex
from eyas.model.target_info import TargetInfo
from eyas.train.init_head import RANDOM, RowSource
from eyas.train.loss import LossName
from eyas.train.training_metrics import TrackerName
from eyas.tree.shape import TreeShape


@dataclass(frozen=True)
class HeadOptions:
    """The recipe keys `train.head.*`.

    Attributes:
        intermediate_size: The feed-forward width of the head; by default the target's.
        num_heads: The number of attention heads; by default the target's.
        num_kv_heads: The number of key-value heads; by default the target's.
        head_dim: The width of one attention head; by default the target's.
        fc_norm: Applies RMSNorm to each captured layer before the first linear layer.
        norm_output: Gives the output of a step to the next step after the final norm, instead of before it.
    """

    intermediate_size: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    fc_norm: bool = False
    norm_output: bool = False


@dataclass(frozen=True)
class BlockOptions:
    """The recipe keys `train.block.*` of a block head.

    Attributes:
        method: The kind of block head: "dspark", or "dflash", which has neither correction nor confidence. Of the two,
            vLLM's CPU build runs only dflash (docs/formats.md).
        layers: The number of decoder layers.
        size: The number of slots: the number of tokens that one forward drafts.
        rank: The rank of the correction by the token before a slot; 0 for no correction. "dflash" ignores this key.
        anchors: The most anchors of one text in an update. They are drawn again for each update.
        token_weight: The weight of the cross-entropy with the next token. DSpark's is 0.1, for 10 passes over a million
            answers. A higher weight learns faster at first (docs/drafters.md).
    """

    method: Literal["dspark", "dflash"] = "dspark"
    layers: PositiveInt = 2
    size: PositiveInt = 8
    rank: NonNegativeInt = 128
    anchors: PositiveInt = 64
    token_weight: NonNegativeFloat = 0.1


@dataclass(frozen=True)
class TrainConfig:
    """The recipe keys `train.*`. Raises UsageError for values that do not fit.

    An *update* is an optimizer step; a *step* is one of the unrolled steps (glossary). The keys `evaluate_every`,
    `evaluate_answers`, `evaluate_tree`, `patience` and `ema` decide which weights become the head
    (`train.checkpoint_selection`). Training does not use the tree of `eval.*`, so no key of `eval` changes the head.

    Attributes:
        drafter: The kind of head: "eagle3", or "block" (docs/drafters.md). A block head has no `steps`,
            `draft_vocab_size`, `lm_head` and `loss`: it drafts `block.size` tokens of the whole vocabulary at once.
            It uses the target's output matrix and the loss of `train.block_loss`.
        steps: The number of unrolled steps K of the training-time test.
        decay: The base of the loss weights: the loss of unrolled step or slot k, from 0, is multiplied by decay^k.
        epochs: The number of passes over the data.
        updates: The number of optimizer steps, instead of `epochs`.
        batch_tokens: The number of supervised tokens of one update.
        micro_tokens: The most tokens of one forward and backward, prompts included.
        window: The number of tokens before a drafted one that the head attends to in every second update; by default
            all. So the head learns texts whose beginning it does not see, as in serving beyond `trained_context`.
        learning_rate: The highest learning rate, reached at the end of the warm-up.
        warmup: The share of all updates in which the learning rate rises.
        weight_decay: The weight decay of matrices; weights of norms do not decay.
        clip: The largest norm of the gradient; a larger gradient is scaled down to this norm.
        seed: The seed of the random weights and of the order of the data.
        draft_vocab_size: The number of tokens that the head can draft, at most the target's vocabulary.
        init: The initial weights: "random", or the directory of a head to continue from.
        lm_head: The initial rows of the head's output matrix: random, or the target's rows. Rows of draft tokens that
            the head `train.init` has are copied from it.
        loss: The loss of a step. soft: the cross-entropy of EAGLE-3. kl: soft minus the target's entropy. lk: minus
            the acceptance probability. lk_log: minus the logarithm of the acceptance probability.
        dtype: The dtype of the forward and backward passes; master weights and optimizer moments are float32. A CPU
            without instructions for bfloat16 computes in float32, which is many times as fast there.
        stored_dtype: The dtype of the weights in model.safetensors.
        log_every: The number of updates between two lines of metrics.jsonl.
        checkpoint_every_s: The number of seconds between two checkpoints.
        checkpoint_url: The directory of the checkpoints, any fsspec URL. Requirement: no other run uses it. By default
            the head directory.
        shard: Divides master weights and optimizer moments among the training processes.
        evaluate_every: The number of updates between two evaluations on held-out answers; by default one after each
            epoch.
        evaluate_answers: The number of held-out answers of an evaluation. The weights with the best evaluation become
            the head; with 0 answers, the last weights become the head.
        patience: The number of evaluations without improvement after which training stops; by default it never stops
            early.
        ema: The factor k of the exponential moving average m = k * m + (1 - k) * weights, computed after each update;
            0 computes no average.
        watch: The experiment trackers that get a copy of each line of metrics.jsonl.
    """

    drafter: Literal["eagle3", "block"] = "eagle3"
    block: BlockOptions = field(default_factory=BlockOptions)
    steps: PositiveInt = 7
    decay: Annotated[float, Field(gt=0, le=1)] = 0.8
    epochs: PositiveInt = 3
    updates: PositiveInt | None = None
    batch_tokens: PositiveInt = 2048
    micro_tokens: PositiveInt = 8192
    window: PositiveInt | None = None
    learning_rate: PositiveFloat = 1e-3
    warmup: Annotated[float, Field(ge=0, le=1)] = 0.03
    weight_decay: float = 0.01
    clip: Annotated[float, Field(gt=0)] = 0.5
    seed: int = 0
    draft_vocab_size: PositiveInt = 32000
    head: HeadOptions = field(default_factory=HeadOptions)
    init: str = RANDOM
    lm_head: RowSource = "random"
    loss: LossName = "soft"
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    stored_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    log_every: PositiveInt = 20
    checkpoint_every_s: float = 60.0
    checkpoint_url: str | None = None
    shard: bool = False
    evaluate_every: PositiveInt | None = None
    evaluate_answers: NonNegativeInt = 16
    evaluate_tree: TreeShape = field(default_factory=lambda: TreeShape(6, 4, 16))
    patience: PositiveInt | None = None
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.0
    watch: tuple[TrackerName, ...] = ()

    def __post_init__(self) -> None:
        if not self.init:
            raise UsageError("train.init is empty", "Set it to 'random' or to a head directory")
        if self.patience is not None and not self.evaluate_answers:
            problem = "train.patience needs evaluations, but train.evaluate_answers is 0"
            raise UsageError(problem, "Raise train.evaluate_answers, or remove train.patience")

    @property
    def num_steps(self) -> int:
        """K, the number of tokens after its root that a chain learns: the unrolled steps, or the slots of a block."""
        return self.block.size if self.drafter == "block" else self.steps

    @property
    def max_anchors(self) -> int | None:
        """The most chains of a text in an update; None: all."""
        return self.block.anchors if self.drafter == "block" else None


def build_head_config(
    config: TrainConfig, aux_layer_ids: Sequence[int], info: TargetInfo, mask_id: int = 0
) -> HeadConfig:
    """Returns the sizes of the head: the sizes of one layer of the target, except where `train.head` sets them.

    Args:
        config: The settings.
        aux_layer_ids: The captured layers.
        info: The target.
        mask_id: The mask token of a block head.

    Raises:
        InputError: If no head can have these sizes.
    """
    options, block = config.head, config.block
    sizes = HeadConfig.for_target(
        info,
        info.vocab_size if config.drafter == "block" else min(config.draft_vocab_size, info.vocab_size),
        intermediate_size=options.intermediate_size,
        aux_layer_ids=tuple(HFIndex(i) for i in aux_layer_ids),
    )
    sizes = replace(sizes, **{name: value for name, value in vars(options).items() if value})
    if config.drafter == "block":
        shared: dict[str, Any] = vars(sizes) | {"num_layers": block.layers, "block_size": block.size}
        is_dflash = block.method == "dflash"
        sizes = BlockConfig(**shared, markov_rank=0 if is_dflash else block.rank, mask_id=mask_id, fill_in=is_dflash)
    if (problem := sizes.find_problem()) is not None:
        raise InputError(f"No head can be built: {problem}", "Change train.head, or set capture.aux_layer_ids")
    return sizes


def match_sizes(config: TrainConfig, sizes: HeadConfig) -> TrainConfig:
    """Returns the settings with the kind and the sizes of an existing head, so that training can start from it."""
    head = HeadOptions(**{field.name: getattr(sizes, field.name) for field in fields(HeadOptions)})
    if not isinstance(sizes, BlockConfig):
        return replace(config, drafter="eagle3", head=head)
    own = {"method": sizes.method, "layers": sizes.num_layers, "size": sizes.block_size, "rank": sizes.markov_rank}
    return replace(config, drafter="block", head=head, block=replace(config.block, **own))
