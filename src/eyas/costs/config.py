"""The recipe keys `plan.*`: hardware that is not here, what it costs, how much data, and the target's sizes."""

import math
from dataclasses import dataclass

from eyas.base.errors import UsageError

HERE = "here"


@dataclass(frozen=True)
class TargetShape:
    """The recipe keys `plan.shape.*`: a target's sizes under the names of its config.json.

    For where neither the configuration nor the weights are at hand. Keys that are left out are those that the family
    does not have, or that do not change a size.
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
    """What `eyas plan` cannot measure or count here. No stage reads it.

    hardware: "here" measures the rates on this machine, on the target itself; any other text names the machine whose
    rates stand below, and then neither weights nor prompts are needed. *_tps: tokens a second of the whole machine
    (capture_tps: the target reads; respond_tps: it writes, all streams together; train_tps: training goes through,
    prompts included). price_per_hour: of the whole machine, in any currency. storage_price_gb_month: of 10^9 bytes for
    a month. conversations; turns, prompt_tokens, answer_tokens: means of one conversation. Raises UsageError.
    """

    hardware: str = HERE
    capture_tps: float | None = None
    respond_tps: float | None = None
    train_tps: float | None = None
    price_per_hour: float | None = None
    storage_price_gb_month: float | None = None
    storage_months: float = 1.0
    conversations: int | None = None
    turns: float = 1.0
    prompt_tokens: float | None = None
    answer_tokens: float | None = None
    shape: TargetShape | None = None

    def __post_init__(self) -> None:
        above = ("capture_tps", "respond_tps", "train_tps", "conversations", "turns", "prompt_tokens", "answer_tokens")
        for name in (*above, "price_per_hour", "storage_price_gb_month", "storage_months"):
            value = getattr(self, name)
            least = "a number above 0" if name in above else "a number from 0 on"
            if value is not None and not ((value > 0 or (value == 0 and name not in above)) and value < math.inf):
                raise UsageError(f"plan.{name} = {value}", least, f"correct plan.{name}")
        if not self.is_here:
            self._require("capture_tps", "train_tps", "conversations", "prompt_tokens", "answer_tokens")

    @property
    def is_here(self) -> bool:
        """Whether rates are measured on this machine."""
        return self.hardware == HERE

    def _require(self, *names: str) -> None:
        missing = [f"plan.{name}" for name in names if getattr(self, name) is None]
        if missing:
            raise UsageError(
                f"plan.hardware = {self.hardware!r} without {', '.join(missing)}",
                "the rates of that machine and how much data there is",
                'add them, or set plan.hardware to "here" to measure on this machine',
            )
