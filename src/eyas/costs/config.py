"""Defines the recipe keys `plan.*`: rates and prices of other hardware, amounts of data, sizes of the target."""

from dataclasses import dataclass

from eyas.base.config import NonNegativeFloat, PositiveFloat, PositiveInt
from eyas.base.errors import UsageError

HERE = "here"


@dataclass(frozen=True)
class TargetShape:
    """The recipe keys `plan.shape.*`: a target's sizes, with the names of its config.json.

    They are needed only if neither configuration nor weights are available. Leave out keys that the model family does
    not have, or that change no size.

    Attributes:
        model_type: The model family as transformers names it, such as llama.
        hidden_size: The width of the hidden states.
        num_hidden_layers: The number of layers.
        num_attention_heads: The number of query heads of a layer.
        num_key_value_heads: The number of key-value heads of a layer.
        head_dim: The width of one attention head.
        intermediate_size: The feed-forward width; for a mixture of experts, the width of one expert.
        vocab_size: The number of tokens of the vocabulary.
        max_position_embeddings: The maximum number of positions.
        tie_word_embeddings: True if input and output embeddings are one matrix.
        intermediate_size_mlp: The feed-forward width of the layers without experts, for models with both kinds of
            layers.
        num_local_experts: The number of experts of a layer.
        num_experts_per_tok: The number of experts that compute one token.
    """

    model_type: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool = False
    intermediate_size_mlp: int | None = None
    num_local_experts: int | None = None
    num_experts_per_tok: int | None = None


@dataclass(frozen=True)
class PlanConfig:
    """The recipe keys `plan.*`, which only `eyas plan` reads. Raises UsageError for a missing or wrong value.

    Attributes:
        hardware: "here" measures the rates on this machine with the target. Any other text is the name of another
            machine; then the next keys must give its rates, and eyas needs neither weights nor prompts.
        capture_tps: The tokens per second that one device processes in `eyas capture`. If `plan.devices` is 1, the
            machine counts as one device. The plan computes the rate of the machine and prints how.
        devices: The number of devices of the machine, on which `capture.world` processes run.
        device_memory_gb: The memory of one device in 10^9 bytes. Required if `plan.devices` is more than 1. It decides
            whether each device holds the whole target or the layers are spread over several devices.
        respond_tps: The output tokens per second that the target generates, over all streams together.
        train_tps: The tokens per second that training processes, prompts included.
        price_per_hour: The cost of the whole machine per hour, in any currency.
        storage_price_gb_month: The cost of storing 10^9 bytes for a month, in the currency of `plan.price_per_hour`.
        storage_months: The number of months for which the features are stored.
        conversations: The number of conversations.
        turns: The mean number of turns of a conversation.
        prompt_tokens: The mean number of prompt tokens of a conversation.
        answer_tokens: The mean number of answer tokens of a conversation.
    """

    hardware: str = HERE
    capture_tps: PositiveFloat | None = None
    devices: PositiveInt = 1
    device_memory_gb: PositiveFloat | None = None
    respond_tps: PositiveFloat | None = None
    train_tps: PositiveFloat | None = None
    price_per_hour: NonNegativeFloat | None = None
    storage_price_gb_month: NonNegativeFloat | None = None
    storage_months: NonNegativeFloat = 1.0
    conversations: PositiveInt | None = None
    turns: PositiveFloat = 1.0
    prompt_tokens: PositiveFloat | None = None
    answer_tokens: PositiveFloat | None = None
    shape: TargetShape | None = None

    def __post_init__(self) -> None:
        required = ("capture_tps", "train_tps", "conversations", "prompt_tokens", "answer_tokens")
        if self.devices > 1:
            required += ("device_memory_gb",)
        missing = [f"plan.{name}" for name in required if getattr(self, name) is None]
        if missing and not self.is_here:
            problem = f"plan.hardware is {self.hardware!r}, but {', '.join(missing)} is not set"
            raise UsageError(problem, 'Set the missing keys, or set plan.hardware to "here" to measure on this machine')

    @property
    def is_here(self) -> bool:
        """True if rates are measured on this machine."""
        return self.hardware == HERE
