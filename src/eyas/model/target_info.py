"""What the other rooms need to know about a target, without holding the target."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TargetFacts:
    """Sizes and settings of a loaded target.

    `intermediate_size` is None where the target has no single one (some mixtures of experts). `rope_theta` is None
    where the target does not use rotary positions; `rope_type` is transformers' name, "default" for plain RoPE. Where
    layers differ in their RoPE, both are those of the layers that see the whole text.
    `num_kv_heads` and `head_dim` are what the attention function really received, so they hold for any family.
    """

    name: str
    hidden_size: int
    intermediate_size: int | None
    vocab_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rope_theta: float | None
    rope_type: str | None
    rms_norm_eps: float
    bos_id: int | None
    eos_ids: tuple[int, ...]
    num_parameters: int
