r"""The EAGLE-3 draft head: one decoder layer that reads the next token's embedding and the target's captured features.

B requests, T rows, D hidden, L = 3D captured features, N heads, G key-value heads, H head size, V draft vocabulary.

    aux_BTL --fc--> hidden --+-- hidden_norm --------\
                             |                        concat -> attention -+-> + -> out ---> norm -> lm_head -> logits
    embed(next token) ------ | ---- input_layernorm -/                     |   ^     |
                             +------------- residual (un-normed) ----------+  mlp    +--> hidden of the next step

Source: the EAGLE-3 paper (arXiv 2503.01840) and the graph that SGLang and vLLM load as LlamaForCausalLMEagle3. The next
step's hidden state is the block's output before the final norm. The later variant "EAGLE 3.1" uses the normed output
(`norm_output`) and norms each captured layer before fc (`fc_norm`). Heads of speculators may norm all captured layers
at once (`norm_before_fc`) and take the normed hidden half as the residual (`norm_before_residual`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from eyas.base.errors import InputError
from eyas.model.attention import AttentionFn, AttentionParams, CompiledForward, PackedAttention
from eyas.model.layer_ids import HFIndex, choose_aux_layers
from eyas.model.target_info import TargetInfo

INIT_STD = 0.02  # the usual initializer_range of Llama configurations
VARIANT_FLAGS = ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual")
"""The flags of a HeadConfig that change the graph."""
ROPE_TYPES = ("linear", "llama3", "yarn")  # of RoPE scaling that does not depend on the text's length


@dataclass(frozen=True)
class HeadConfig:
    """The sizes and flags of a head.

    Attributes:
        vocab_size: The size of the target's vocabulary.
        draft_vocab_size: The size of the draft vocabulary.
        target_hidden_size: The hidden size of the target.
        aux_layer_ids: The captured layers of the target that the head reads.
        fc_norm: Norms each captured layer before fc.
        norm_output: Feeds the output of the final norm to the next step.
        norm_before_fc: Norms all captured layers at once before fc.
        norm_before_residual: Takes the normed hidden state as the residual.
        rope_scaling: The entry of transformers: `rope_type` (one of ROPE_TYPES) and its numbers. None for plain RoPE.
    """

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    vocab_size: int
    draft_vocab_size: int
    max_position_embeddings: int
    target_hidden_size: int
    aux_layer_ids: tuple[HFIndex, ...]
    fc_norm: bool = False
    norm_output: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    rope_scaling: Mapping[str, Any] | None = None

    @staticmethod
    def for_target(
        info: TargetInfo,
        draft_vocab_size: int,
        *,
        intermediate_size: int | None = None,
        aux_layer_ids: tuple[HFIndex, ...] | None = None,
    ) -> "HeadConfig":
        """Returns the config of a head whose decoder layer has the sizes of a layer of the target.

        The head uses plain RoPE with the target's base, even if the target uses RoPE scaling (llama3, yarn, linear).
        Most published heads for such targets do the same (docs/families.md).

        Args:
            info: The target.
            draft_vocab_size: V.
            intermediate_size: The feed-forward width; None for the target's.
            aux_layer_ids: The captured layers; None for the default ones.

        Raises:
            InputError: The target has no RoPE base, or no feed-forward width to copy.
        """
        if info.rope_theta is None:
            raise InputError(f"Target {info.name} has no rotary positions (rope_theta)", "Use a target with RoPE")
        width = intermediate_size or info.intermediate_size
        if width is None:
            raise InputError(f"Target {info.name} has no single feed-forward width", "Set train.head.intermediate_size")
        return HeadConfig(
            hidden_size=info.hidden_size,
            intermediate_size=width,
            num_heads=info.num_heads,
            num_kv_heads=info.num_kv_heads,
            head_dim=info.head_dim,
            rms_norm_eps=info.rms_norm_eps,
            rope_theta=info.rope_theta,
            vocab_size=info.vocab_size,
            draft_vocab_size=draft_vocab_size,
            max_position_embeddings=info.max_positions,
            target_hidden_size=info.hidden_size,
            aux_layer_ids=aux_layer_ids or choose_aux_layers(info.num_layers),
        )

    @property
    def variant(self) -> str:
        """The name of the graph for messages, for example "EAGLE-3 with fc_norm"."""
        flags = [name for name in VARIANT_FLAGS if getattr(self, name)]
        return " with ".join(["EAGLE-3", *([" and ".join(flags)] if flags else [])])

    @property
    def head_class(self) -> "type[DraftHead]":
        """The class of the heads with this config."""
        return Head

    @property
    def method(self) -> str:
        """The name of the drafting method in vLLM."""
        return "eagle3"

    @property
    def kv_layers(self) -> int:
        """The number of layers that keep keys and values for each token."""
        return 1

    @property
    def max_depth(self) -> int | None:
        """The number of tokens that the head can draft one after the other; None if there is no limit."""
        return None

    def find_problem(self) -> str | None:
        """Returns a clause that says why a head with these sizes is impossible; None if it is possible."""
        if self.hidden_size != self.target_hidden_size:  # the embedding rows are the target's
            return f"the head's hidden size {self.hidden_size} is not the target's, {self.target_hidden_size}"
        if len(self.aux_layer_ids) != 3 and self.max_depth is None:  # the engines build EAGLE-3's fc for three
            return f"the head reads {len(self.aux_layer_ids)} captured layers, not three: {list(self.aux_layer_ids)}"
        if self.num_heads % self.num_kv_heads:
            return f"the head's {self.num_heads} heads are not a multiple of its {self.num_kv_heads} key-value heads"
        if self.head_dim % 2:
            return f"the head_dim {self.head_dim} is odd, but RoPE needs an even one"
        if self.draft_vocab_size > self.vocab_size:
            return f"the draft vocabulary ({self.draft_vocab_size}) is larger than the target's ({self.vocab_size})"
        if self.fc_norm and self.norm_before_fc:
            return "both fc_norm and norm_before_fc are set, but only one norm can precede fc"
        return None


class Rope(nn.Module):
    """RoPE in Llama's half-split layout: components i and i + H / 2 rotate together.

    Angles are computed in float32 as in SGLang and vLLM, or in float64 for a float64 head. The results have its dtype.
    """

    freq_H: Tensor

    def __init__(self, head_dim: int, theta: float, scaling: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.head_dim, self.theta, self.scaling = head_dim, theta, scaling
        self.amplitude = 1.0  # of cos and sin; yarn's is not 1
        self.register_buffer("freq_H", torch.empty(0), persistent=False)
        self.set_frequencies(torch.device("cpu"), torch.float32)

    def set_frequencies(self, device: torch.device, dtype: torch.dtype) -> None:
        """Computes the frequencies. Those of the first half are negative, so that its sines are negated."""
        even = torch.arange(0, self.head_dim, 2, device=device, dtype=dtype)
        freq = 1.0 / self.theta ** (even / self.head_dim)
        if self.scaling is not None:
            parameters = {"rope_theta": self.theta, **self.scaling}
            sizes: dict[str, Any] = {"hidden_size": self.head_dim, "num_attention_heads": 1, "head_dim": self.head_dim}
            config = LlamaConfig(**sizes, rope_parameters=parameters)
            with device:  # the module may be under construction on the meta device
                freq, self.amplitude = ROPE_INIT_FUNCTIONS[self.scaling["rope_type"]](config, device)
            freq = freq.to(dtype)
        self.freq_H = torch.cat((-freq, freq))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Rope":
        # The frequencies keep float32 in a cast to bfloat16: an angle of 1000 would be off by whole turns.
        probe = fn(torch.zeros((), device=self.freq_H.device, dtype=self.freq_H.dtype))
        self.set_frequencies(probe.device, torch.float64 if probe.dtype == torch.float64 else torch.float32)
        return self

    def forward(self, positions_BT: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Returns cos and signed sin for `apply_rope`, both [B, T, 1, H]. B may be 1."""
        angle_BT1H = positions_BT[:, :, None, None] * self.freq_H
        if self.amplitude != 1.0:
            return (angle_BT1H.cos() * self.amplitude).to(dtype), (angle_BT1H.sin() * self.amplitude).to(dtype)
        return angle_BT1H.cos().to(dtype), angle_BT1H.sin().to(dtype)


def apply_rope(x_BTNH: Tensor, cos_BT1H: Tensor, sin_BT1H: Tensor) -> Tensor:
    """Rotates each pair (i, i + H / 2). Returns x * cos + swapped * signed sin, where swapped exchanges the halves."""
    swapped_BTNH = x_BTNH.roll(x_BTNH.shape[-1] // 2, -1)
    return torch.addcmul(x_BTNH * cos_BT1H, swapped_BTNH, sin_BT1H)


class SelfAttention(nn.Module):
    """Grouped-query attention over the concatenation of token embedding and hidden state, which is 2D wide."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        num_q, num_kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.config, self.params = config, AttentionParams(config.head_dim**-0.5)
        self.q_proj = nn.Linear(2 * config.hidden_size, num_q, bias=False)
        self.k_proj = nn.Linear(2 * config.hidden_size, num_kv, bias=False)
        self.v_proj = nn.Linear(2 * config.hidden_size, num_kv, bias=False)
        self.o_proj = nn.Linear(num_q, config.hidden_size, bias=False)
        self.rope = Rope(config.head_dim, config.rope_theta, config.rope_scaling)
        self.qkv_packed: Tensor | None = None

    def forward(self, pair_BTC: Tensor, positions_BT: Tensor, attend: AttentionFn) -> Tensor:
        """Returns the attention's output out_BTD for pair_BTC, where C = 2D."""
        B, T, _ = pair_BTC.shape
        G, H = self.config.num_kv_heads, self.config.head_dim
        if self.qkv_packed is None:
            qkv = torch.cat((self.q_proj(pair_BTC), self.k_proj(pair_BTC), self.v_proj(pair_BTC)), -1)
        else:
            qkv = F.linear(pair_BTC, self.qkv_packed)
        qkv = qkv.view(B, T, -1, H)
        rotation = self.rope(positions_BT, pair_BTC.dtype)
        qk = apply_rope(qkv[:, :, :-G], *rotation).transpose(1, 2)  # queries and keys together
        out_BNTH = attend(0, qk[:, :-G], qk[:, -G:], qkv[:, :, -G:].transpose(1, 2), self.params)
        return self.o_proj(out_BNTH.transpose(1, 2).reshape(B, T, -1))


class Mlp(nn.Module):
    """Llama's feed-forward layer: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.gate_up_packed: Tensor | None = None

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Returns the output, with the shape of the input."""
        if self.gate_up_packed is None:
            gate, up = self.gate_proj(x_BTD), self.up_proj(x_BTD)
        else:
            gate, up = F.linear(x_BTD, self.gate_up_packed).chunk(2, -1)
        return self.down_proj(F.silu(gate) * up)


class Midlayer(nn.Module):
    """The head's only decoder layer. Its residual is the hidden state, normed if `norm_before_residual` is set."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.norm_before_residual = config.norm_before_residual
        self.hidden_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = SelfAttention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config)

    def forward(self, embeds_BTD: Tensor, hidden_BTD: Tensor, positions_BT: Tensor, attend: AttentionFn) -> Tensor:
        """Returns out_BTD before the final norm."""
        normed_BTD = self.hidden_norm(hidden_BTD)
        pair_BTC = torch.cat((self.input_layernorm(embeds_BTD), normed_BTD), -1)
        residual_BTD = normed_BTD if self.norm_before_residual else hidden_BTD
        mixed_BTD = residual_BTD + self.self_attn(pair_BTC, positions_BT, attend)
        return mixed_BTD + self.mlp(self.post_attention_layernorm(mixed_BTD))


class DraftHead(nn.Module):
    """A trained head of any kind. It has no embedding: the rows of the target's embedding are an input.

    `formats.head_dir.read_head` loads a stored one. The constructor creates weights without values on the meta device.
    state_dict() has the names of the stored tensors.
    """

    norm: nn.RMSNorm
    window: int | None = None

    def __init__(self, config: HeadConfig) -> None:
        assert config.find_problem() is None, config.find_problem()
        super().__init__()
        self.config = config

    def limit_attention(self, window: int | None) -> None:
        """Lets each row attend to the last `window` positions only; None: to all. Call it before compiling."""
        self.window = window
        for module in self.modules():
            if isinstance(params := getattr(module, "params", None), AttentionParams):
                object.__setattr__(module, "params", replace(params, window=window))

    @classmethod
    def init(cls, config: HeadConfig, seed: int, dtype: torch.dtype = torch.float32) -> Self:
        """Returns a new head: matrices are normal with deviation 0.02, norms 1, biases 0. Equal seeds: equal heads."""
        head = cls(config).to_empty(device="cpu")
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, weight in head.named_parameters():
                weight.fill_(0.0 if name.endswith("bias") else 1.0)
                if weight.ndim == 2:
                    weight.normal_(0.0, INIT_STD, generator=generator)
        return head.to(dtype)

    @property
    def num_parameters(self) -> int:
        """The number of weights, without the embedding."""
        return sum(weight.numel() for weight in self.parameters())

    @property
    def compilable(self) -> "Head | None":
        """This head if `kernels.aot_compile` can compile it; None: it runs uncompiled."""
        return self if isinstance(self, Head) else None

    def pack_projections(self) -> Self:
        """Prepares the head for inference and returns self. It can no longer be trained."""
        return self.requires_grad_(False)


class Head(DraftHead):
    """The EAGLE-3 head, whose decoder layer reads its own output of the step before."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        num_aux = len(config.aux_layer_ids)
        with torch.device("meta"):
            self.fc = nn.Linear(num_aux * config.target_hidden_size, config.hidden_size, bias=False)
            self.midlayer = Midlayer(config)
            self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
            self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
            size, eps = config.target_hidden_size, config.rms_norm_eps
            self.fc_norm = nn.ModuleList(nn.RMSNorm(size, eps) for _ in range(num_aux)) if config.fc_norm else None
            self.input_norm = nn.RMSNorm(num_aux * size, eps) if config.norm_before_fc else None
        self.compiled_forward: CompiledForward | None = None
        """Computes `step_with_logits` from embeds_1TD, hidden_1TD and positions_1T. `kernels.aot_compile` sets it."""

    def fuse_aux(self, aux_BTL: Tensor) -> Tensor:
        """Returns hidden_BTD of the first step from the captured layers, concatenated low to high in aux_BTL."""
        if self.fc_norm is not None:
            parts = aux_BTL.split(self.config.target_hidden_size, -1)
            aux_BTL = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        if self.input_norm is not None:
            aux_BTL = self.input_norm(aux_BTL)
        return self.fc(aux_BTL)

    def step(self, embeds_BTD: Tensor, hidden_BTD: Tensor, positions_BT: Tensor, attend: AttentionFn) -> Tensor:
        """Runs the decoder layer and returns out_BTD, its output before the final norm.

        Args:
            embeds_BTD: Row t is the embedding of token t + 1.
            hidden_BTD: Row t is the hidden state of token t: from `fuse_aux`, or from `next_hidden` of a step before.
            positions_BT: Positions for RoPE, [B, T] or [1, T].
            attend: The attention; called once, with layer 0.
        """
        return self.midlayer(embeds_BTD, hidden_BTD, positions_BT, attend)

    def next_hidden(self, out_BTD: Tensor) -> Tensor:
        """Returns hidden_BTD of the next step, from out_BTD of the step before."""
        return self.norm(out_BTD) if self.config.norm_output else out_BTD

    def logits(self, out_BTD: Tensor) -> Tensor:
        """Returns logits_BTV over the draft vocabulary, from out_BTD of `step`."""
        return self.lm_head(self.norm(out_BTD))

    def step_with_logits(
        self, embeds_BTD: Tensor, hidden_BTD: Tensor, positions_BT: Tensor, attend: AttentionFn
    ) -> tuple[Tensor, Tensor]:
        """Runs `step` with these arguments and returns the results of `next_hidden` and `logits` for all rows."""
        if self.compiled_forward is not None and isinstance(attend, PackedAttention):
            return self.compiled_forward(attend.packed_attention, embeds_BTD, hidden_BTD, positions_BT)
        out_BTD = self.step(embeds_BTD, hidden_BTD, positions_BT, attend)
        return self.next_hidden(out_BTD), self.logits(out_BTD)

    def pack_projections(self) -> Self:
        """Concatenates the weights of q, k, v and those of gate, up for inference, and returns self.

        Two matrix products then replace five, which is faster for few rows. The named weights become views of the
        concatenated ones, so the head uses no more memory. It can no longer be trained. Moving or casting the head
        undoes the packing.
        """
        super().pack_projections()
        attn, mlp = self.midlayer.self_attn, self.midlayer.mlp
        attn.qkv_packed = _concatenate_weights(attn.q_proj, attn.k_proj, attn.v_proj)
        mlp.gate_up_packed = _concatenate_weights(mlp.gate_proj, mlp.up_proj)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.midlayer.self_attn.qkv_packed = None
        self.midlayer.mlp.gate_up_packed = None
        self.compiled_forward = None
        return super()._apply(fn, recurse)


def _concatenate_weights(*linears: nn.Linear) -> Tensor:
    packed = torch.cat([linear.weight.data for linear in linears])
    for linear, part in zip(linears, packed.split([linear.out_features for linear in linears]), strict=True):
        linear.weight.data = part
    return packed
