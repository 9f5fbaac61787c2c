"""Attention over token-granular memory: what one forward adds, whom its rows see, and the plain version of it.

T rows of one forward (of all its requests, one after the other), B requests, N heads, G key-value heads, H head size,
C columns of the table, E columns of the own block, R lines of the table, Z slots.

A row sees the committed text of its request without a mask, and a small *own block* with one:

                 prefix: columns 0..length-1          own block
    table line   17 18 19 40 41 42 43            |   50 51 52 53        <- slots
    row 0         x  x  x  x  x  x  x            |    x  .  .  .        root of a tree
    row 1         x  x  x  x  x  x  x            |    x  x  .  .
    row 2         x  x  x  x  x  x  x            |    x  .  x  .        its sibling

Keys and values of the rows are written to their slots first; what a row sees of its own block includes itself. Slot 0
belongs to nobody: rows that mean nothing are written there.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.model.attention import AttentionParams, PackedAttentionFn


@dataclass(frozen=True, eq=False)
class AttentionMetadata:
    """The rows of one forward. Index tensors are int32 on the device of the memory.

    starts_B1    [B + 1]: rows starts[b]..starts[b + 1] - 1 belong to request b; starts[B] = T
    req_slots_B      line of the table that holds the slots of request b
    lengths_B    committed columns of request b: its prefix
    slots_T      where each row's key and value go
    own_BE       slots of the own block; the rows of this forward are among them
    visible_TE   bool: what a row sees of the own block. None: causal, own column e is row e of the request
    positions_T  position of each row in the text. Only rules with a window or a chunk read it; own column e must
                 then be row e of the request, as it is in every forward of a target
    """

    starts_B1: Tensor
    req_slots_B: Tensor
    lengths_B: Tensor
    slots_T: Tensor
    block_slots_BE: Tensor
    visible_TE: Tensor | None
    positions_T: Tensor


class PagedAttention(Protocol):
    """One layer's attention over memory; every implementation gives the numbers of `dense`."""

    def __call__(  # noqa: PLR0913, the operands of a kernel
        self,
        q_TNH: Tensor,
        k_TGH: Tensor,
        v_TGH: Tensor,
        keys_ZGH: Tensor,
        values_ZGH: Tensor,
        req_to_token_RC: Tensor,
        rows: AttentionMetadata,
        params: AttentionParams,
    ) -> Tensor:
        """Write the rows' keys and values to their slots, return out_TNH in the type of q."""
        ...


def dense_paged_attention(  # noqa: PLR0913, the operands of a kernel
    q_TNH: Tensor,
    k_TGH: Tensor,
    v_TGH: Tensor,
    keys_ZGH: Tensor,
    values_ZGH: Tensor,
    req_to_token_RC: Tensor,
    rows: AttentionMetadata,
    params: AttentionParams,
) -> Tensor:
    """The reference: gathers each request's keys and asks SDPA. Reads lengths on the host, runs on any device."""
    slots_T = rows.slots_T.long()
    keys_ZGH[slots_T] = k_TGH.to(keys_ZGH.dtype)
    values_ZGH[slots_T] = v_TGH.to(values_ZGH.dtype)
    out_TNH = torch.empty_like(q_TNH)
    starts, lengths, lines = rows.starts_B1.tolist(), rows.lengths_B.tolist(), rows.req_slots_B.tolist()
    for b, (begin, end) in enumerate(pairwise(starts)):
        if begin == end:
            continue
        visible_tS = visibility_mask(rows, b, begin, end, lengths[b], params)
        slots_S = torch.cat((req_to_token_RC[lines[b], : lengths[b]], rows.block_slots_BE[b])).long()
        k_GSH, v_GSH = (held[slots_S].transpose(0, 1) for held in (keys_ZGH, values_ZGH))
        if q_TNH.device.type == "cpu":  # no fast kernel for a few rows of bfloat16 there
            k_GSH, v_GSH = k_GSH.float(), v_GSH.float()
        q_NtH = q_TNH[begin:end].transpose(0, 1).to(k_GSH.dtype)
        out_TNH[begin:end] = _attend(q_NtH, k_GSH, v_GSH, visible_tS, params).transpose(0, 1).to(q_TNH.dtype)
    return out_TNH


def visibility_mask(
    rows: AttentionMetadata, b: int, begin: int, end: int, length: int, params: AttentionParams
) -> Tensor:
    """bool [t, S]: what rows begin..end - 1 of request b see of prefix and own block."""
    num_own, device = rows.block_slots_BE.shape[1], rows.block_slots_BE.device
    if rows.visible_TE is None:
        own_tE = torch.ones(end - begin, num_own, dtype=torch.bool, device=device).tril()
    else:
        own_tE = rows.visible_TE[begin:end]
    prefix_tP = torch.ones(end - begin, length, dtype=torch.bool, device=device)
    first_t = params.first_visible(rows.positions_T[begin:end])
    if first_t is not None:
        prefix_tP = torch.arange(length, device=device) >= first_t[:, None]
        seen_E = torch.full((num_own,), -1, dtype=first_t.dtype, device=device)
        seen_E[: end - begin] = rows.positions_T[begin:end]
        own_tE = own_tE & (seen_E >= first_t[:, None])
    return torch.cat((prefix_tP, own_tE), dim=1)


def _attend(q_NtH: Tensor, k_GSH: Tensor, v_GSH: Tensor, visible_tS: Tensor, params: AttentionParams) -> Tensor:
    """Softmax attention of one request, with what SDPA does not know written out."""
    if params.softcap is None and params.sinks_N is None:
        q, k, v, mask = q_NtH[None], k_GSH[None], v_GSH[None], visible_tS[None, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=params.scale, enable_gqa=True)[0]
    num_heads, groups = q_NtH.shape[0], q_NtH.shape[0] // k_GSH.shape[0]
    k_NSH, v_NSH = (held.float().repeat_interleave(groups, 0) for held in (k_GSH, v_GSH))
    scores_NtS = torch.bmm(q_NtH.float(), k_NSH.transpose(1, 2)) * params.scale
    if params.softcap is not None:
        scores_NtS = params.softcap * (scores_NtS / params.softcap).tanh()
    scores_NtS = scores_NtS.masked_fill(~visible_tS, -torch.inf)
    if params.sinks_N is not None:
        sinks_Nt1 = params.sinks_N.float().view(num_heads, 1, 1).expand(-1, scores_NtS.shape[1], 1)
        return torch.bmm(torch.cat((scores_NtS, sinks_Nt1), -1).softmax(-1)[..., :-1], v_NSH)
    return torch.bmm(scores_NtS.softmax(-1), v_NSH)


class PrepareAttention(Protocol):
    """Does once a forward what all layers share. kv is [layers, 2, Z, G, H]."""

    def __call__(self, kv: Tensor, req_to_token_RC: Tensor, rows: AttentionMetadata) -> PackedAttentionFn: ...


def prepare_dense(kv: Tensor, req_to_token_RC: Tensor, rows: AttentionMetadata) -> PackedAttentionFn:
    """The reference as `Prepare`."""

    def attend(layer: int, q_TNH: Tensor, k_TGH: Tensor, v_TGH: Tensor, params: AttentionParams) -> Tensor:
        return dense_paged_attention(q_TNH, k_TGH, v_TGH, kv[layer, 0], kv[layer, 1], req_to_token_RC, rows, params)

    return attend
