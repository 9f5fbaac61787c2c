r"""The block head (DSpark, DFlash): drafts a block of tokens in one forward, from the target's captured features.

B requests, T rows, D hidden, L = 3D captured features, N heads, G key-value heads, H head size, W target vocabulary,
g slots of a block, r rank of the correction.

The anchor is the last known token. It is not yet in the target's memory. The block at anchor position a has g rows: the
anchor, then g - 1 mask tokens, at the positions a .. a + g - 1. Slot k predicts the token at position a + k + 1.

With `fill_in`, a block has one row more. Each mask token predicts the token at its own position, and the anchor's row
predicts nothing. The rows that predict something are the slots.

    aux_BTL --fc--> hidden_norm --> context_BTD          one vector for each token before the anchor, for all layers
                                        | k_proj, k_norm, RoPE; v_proj
    anchor mask mask ... --embed--> layers: each row attends to the context and to all rows of its block
                                        | norm
                                        +--> the target's output matrix + correction(token before the slot) -> logits
                                        +--> confidence

A context token enters each layer only as keys and values, so nothing is fed back from draft to draft. The correction is
a matrix of rank r over pairs of tokens: w2 w1[token before the slot]. It makes the rows depend on the drafted tokens,
which the forward does not know. The confidence estimates the probability that the target accepts the token of a slot
if it has accepted all tokens before it. A head of rank 0 has neither.

Source: DSpark (arXiv 2607.05147) and the layers of DeepSpec's Qwen3DSparkModel, whose tensor names this module has.
DFlash (arXiv 2602.06036) has fill-in slots and rank 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from eyas.model.attention import AttentionFn, AttentionParams
from eyas.model.head import DraftHead, HeadConfig, Mlp, Rope, apply_rope

Rotation = tuple[Tensor, Tensor]
"""cos and signed sin of `Rope.forward`."""


@dataclass(frozen=True)
class BlockConfig(HeadConfig):
    """The sizes of a block head. It drafts with the whole vocabulary of the target.

    Attributes:
        num_layers: The number of decoder layers.
        block_size: g, the number of slots: the number of tokens that one forward drafts.
        markov_rank: r, the rank of the correction. With 0, the head has neither correction nor confidence.
        mask_id: The token of all rows of a block except the first.
        fill_in: True if a row predicts the token at its own position (DFlash), False if the one after it (DSpark).
    """

    num_layers: int = 2
    block_size: int = 8
    markov_rank: int = 256
    mask_id: int = 0
    fill_in: bool = False

    @property
    def head_class(self) -> "type[DraftHead]":
        """The class of the heads with this config."""
        return BlockHead

    @property
    def kv_layers(self) -> int:
        """The number of layers that keep keys and values for each token."""
        return self.num_layers

    @property
    def max_depth(self) -> int:
        """The number of tokens that the head can draft one after the other."""
        return self.block_size

    @property
    def num_rows(self) -> int:
        """The number of rows of a block: its slots, and the anchor if it predicts nothing."""
        return self.block_size + self.fill_in

    @property
    def method(self) -> str:
        """The name of the drafting method in vLLM: dspark or dflash."""
        return "dflash" if self.fill_in else "dspark"

    @property
    def variant(self) -> str:
        """The name of the graph for messages."""
        return f"block ({self.num_layers} layers, {self.block_size} slots{', fill-in' * self.fill_in})"

    def find_problem(self) -> str | None:
        """Returns a clause that says why a head with these sizes is impossible; None if it is possible."""
        if self.fc_norm or self.norm_output:
            return "fc_norm and norm_output exist only in EAGLE-3 heads"
        if min(self.num_layers, self.block_size) < 1 or self.markov_rank < 0:
            sizes = f"{self.num_layers}, {self.block_size}, {self.markov_rank}"
            return f"layers and slots must be at least 1, and rank at least 0: {sizes}"
        if self.fill_in and self.markov_rank:
            return f"a head with fill-in slots has no correction, so its rank is 0, not {self.markov_rank}"
        if self.draft_vocab_size != self.vocab_size:
            return f"a block head drafts with all {self.vocab_size} tokens, not with {self.draft_vocab_size}"
        if not 0 <= self.mask_id < self.vocab_size:
            return f"the mask token {self.mask_id} is not one of the {self.vocab_size} tokens"
        return super().find_problem()


class BlockAttention(nn.Module):
    """Grouped-query attention with normed queries and keys (Qwen 3)."""

    def __init__(self, config: BlockConfig, layer: int) -> None:
        super().__init__()
        num_q, num_kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.layer, self.head_dim = layer, config.head_dim
        self.params = AttentionParams(config.head_dim**-0.5)
        self.q_proj = nn.Linear(config.hidden_size, num_q, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, num_kv, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, num_kv, bias=False)
        self.o_proj = nn.Linear(num_q, config.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(config.head_dim, config.rms_norm_eps)

    def keys_values(self, x_BTD: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """Returns k_BTGH and v_BTGH. Context vectors and the rows of a block use the same weights."""
        keys, values = (proj(x_BTD).unflatten(-1, (-1, self.head_dim)) for proj in (self.k_proj, self.v_proj))
        return apply_rope(self.k_norm(keys), *rotation), values

    def forward(self, x_BTD: Tensor, rotation: Rotation, attend: AttentionFn) -> Tensor:
        """Returns the attention's output out_BTD."""
        q_BTNH = apply_rope(self.q_norm(self.q_proj(x_BTD).unflatten(-1, (-1, self.head_dim))), *rotation)
        k_BTGH, v_BTGH = self.keys_values(x_BTD, rotation)
        q_BNTH, k_BGTH, v_BGTH = (part.transpose(1, 2) for part in (q_BTNH, k_BTGH, v_BTGH))
        return self.o_proj(attend(self.layer, q_BNTH, k_BGTH, v_BGTH, self.params).transpose(1, 2).flatten(2))


class BlockLayer(nn.Module):
    """A decoder layer over the rows of a block."""

    def __init__(self, config: BlockConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = BlockAttention(config, layer)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config)

    def forward(self, x_BTD: Tensor, rotation: Rotation, attend: AttentionFn) -> Tensor:
        """Returns the layer's output, with the shape of the input."""
        mixed_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD), rotation, attend)
        return mixed_BTD + self.mlp(self.post_attention_layernorm(mixed_BTD))


class MarkovHead(nn.Module):
    """The correction of the logits by the token before a slot."""

    def __init__(self, vocab_size: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, vocab_size, bias=False)


class BlockHead(DraftHead):
    """The module with all weights that the drawing above shows; the target's output matrix is not among them."""

    config: BlockConfig

    def __init__(self, config: BlockConfig) -> None:
        super().__init__(config)
        size, rank = config.hidden_size, config.markov_rank
        with torch.device("meta"):
            self.fc = nn.Linear(len(config.aux_layer_ids) * config.target_hidden_size, size, bias=False)
            self.hidden_norm = nn.RMSNorm(size, config.rms_norm_eps)
            self.layers = nn.ModuleList(BlockLayer(config, layer) for layer in range(config.num_layers))
            self.norm = nn.RMSNorm(size, config.rms_norm_eps)
            if rank:
                self.markov_head = MarkovHead(config.vocab_size, rank)
                self.confidence_head = nn.ModuleDict({"proj": nn.Linear(size + rank, 1)})
        self.rope = Rope(config.head_dim, config.rope_theta, config.rope_scaling)

    def context_keys_values(self, aux_BTL: Tensor, positions_BT: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Returns k_BTGH and v_BTGH of each layer for tokens of the text.

        Args:
            aux_BTL: The captured layers of the tokens, concatenated low to high.
            positions_BT: Their positions, [B, T] or [1, T].
        """
        context_BTD = self.hidden_norm(self.fc(aux_BTL))
        rotation = self.rope(positions_BT, context_BTD.dtype)
        return [layer.self_attn.keys_values(context_BTD, rotation) for layer in self._layers()]

    def block_ids(self, anchors: Tensor) -> Tensor:
        """Returns the tokens [..., `num_rows`] of the blocks at these anchors [...]: the anchor, then mask tokens."""
        ids = anchors.new_full((*anchors.shape, self.config.num_rows), self.config.mask_id)
        ids[..., 0] = anchors
        return ids

    def step(self, embeds_BTD: Tensor, positions_BT: Tensor, attend: AttentionFn) -> Tensor:
        """Runs the layers over the rows of blocks and returns normed_BTD, the output of the final norm.

        The slots are the last `block_size` rows of each block.

        Args:
            embeds_BTD: The embeddings of `block_ids`.
            positions_BT: The positions of the rows, [B, T] or [1, T]: of row k, that of the anchor + k.
            attend: The attention. Each row must see the context before the anchor and all rows of its block.
        """
        rotation, x_BTD = self.rope(positions_BT, embeds_BTD.dtype), embeds_BTD
        for layer in self._layers():
            x_BTD = layer(x_BTD, rotation, attend)
        return self.norm(x_BTD)

    def correction(self, tokens: Tensor) -> Tensor:
        """Returns the correction of the slots' logits, [..., W]; zeros [..., 1] if the rank is 0.

        Args:
            tokens: The token before each slot.
        """
        if not self.config.markov_rank:
            return self.norm.weight.new_zeros(*tokens.shape, 1)
        return self.markov_head.markov_w2(self.markov_head.markov_w1(tokens))

    def confidence(self, normed: Tensor, vectors: Tensor) -> Tensor:
        """Returns the confidence of slots as a logit [...].

        Args:
            normed: The outputs of `step`, [..., D].
            vectors: markov_w1 of the token before each slot, [..., r].
        """
        return self.confidence_head["proj"](torch.cat((normed, vectors), -1))[..., 0]

    def _layers(self) -> list[BlockLayer]:
        return [layer for layer in self.layers if isinstance(layer, BlockLayer)]
