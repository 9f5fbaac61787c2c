"""Attention over paged KV memory with pages of one token: its metadata, and a dense reference implementation.

T rows (tokens) of one forward, those of each request together; B requests, N heads, G key-value heads, H head size,
C columns of req_to_token, E slots of the own block, R request slots, Z KV slots.

The columns of a request are its prefix (the committed text) and its *own block* (the few new tokens of this forward).
A row attends to the whole prefix, and to those slots of the own block that a mask allows:

                 prefix: columns 0..length-1          own block
    req_to_token 17 18 19 40 41 42 43            |   50 51 52 53        <- KV slots
    row 0         x  x  x  x  x  x  x            |    x  .  .  .        root of a tree
    row 1         x  x  x  x  x  x  x            |    x  x  .  .
    row 2         x  x  x  x  x  x  x            |    x  .  x  .        its sibling

The keys and values of the rows are written to their KV slots first, so a row also attends to itself in the own block.
KV slot 0 belongs to no request: padding rows are written there.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from eyas.model.attention import AttentionParams, PackedAttentionFn, masked_attention

NEVER_HIDDEN = 2**30  # a position that no window hides


@dataclass(frozen=True, eq=False)
class AttentionMetadata:
    """The rows of one forward. All tensors are on the device of the KV memory; all but visible_TE are int32.

    starts_B1       [B + 1]: rows starts[b]..starts[b + 1] - 1 belong to request b; starts[B] = T
    req_slots_B     request slot of request b: the index of its row in req_to_token
    lengths_B       number of committed columns of request b: its prefix
    slots_T         KV slot to which the key and value of each row are written
    block_slots_BE  KV slots of the own block; the rows of this forward are among them
    visible_TE      bool: the own-block slots that each row attends to. None: a causal mask, and slot e of the own
                    block is row e of the request
    positions_T     position of each row in the text; only sliding windows and chunks read it
    own_positions_BE  position of each slot of the own block, for windows and chunks. None: slot e is row e of the
                    request
    """

    starts_B1: Tensor
    req_slots_B: Tensor
    lengths_B: Tensor
    slots_T: Tensor
    block_slots_BE: Tensor
    visible_TE: Tensor | None
    positions_T: Tensor
    own_positions_BE: Tensor | None = None

    @classmethod
    def uniform(
        cls,
        req_slots_B: Tensor,
        lengths_B: Tensor,
        slots_T: Tensor,
        block_slots_BE: Tensor,
        positions_T: Tensor,
        visible_TE: Tensor | None = None,
        own_positions_BE: Tensor | None = None,
    ) -> "AttentionMetadata":
        """Returns the metadata of a forward in which each request has the same number of rows."""
        total, count = len(slots_T), len(req_slots_B)
        starts_B1 = torch.arange(0, total + 1, total // count, dtype=torch.int32, device=slots_T.device)
        per_request = starts_B1, req_slots_B.int(), lengths_B.int()
        own_positions_BE = None if own_positions_BE is None else own_positions_BE.int()
        return cls(*per_request, slots_T, block_slots_BE, visible_TE, positions_T.int(), own_positions_BE)

    def with_sink_tokens(self, req_to_token_RC: Tensor, window: int, count: int) -> "AttentionMetadata":
        """Returns the metadata of a forward whose rows also see the first `count` tokens that the window hides.

        The KV slots of these tokens join the own block.

        Requirement: each request has the same number of rows, and without `own_positions_BE` own slot e is row e.
        """
        (num_requests, num_own), device = self.block_slots_BE.shape, self.slots_T.device
        own_E, sinks_F = torch.arange(num_own, device=device), torch.arange(count, device=device)
        visible_TE, positions_BE = self.visible_TE, self.own_positions_BE
        if visible_TE is None:
            visible_TE = (own_E <= own_E[:, None]).repeat(num_requests, 1)
        if positions_BE is None:
            positions_BE = self.positions_T.view(num_requests, num_own)
        hidden_TF = sinks_F <= self.positions_T[:, None] - window
        slots_BF = req_to_token_RC[self.req_slots_B, :count].int()
        return replace(
            self,
            block_slots_BE=torch.cat((self.block_slots_BE, slots_BF), 1),
            visible_TE=torch.cat((visible_TE, hidden_TF), 1),
            own_positions_BE=torch.cat((positions_BE, torch.full_like(slots_BF, NEVER_HIDDEN)), 1),
        )


def dense_paged_attention(  # noqa: PLR0913, the operands of a kernel
    q_TNH: Tensor,
    k_TGH: Tensor,
    v_TGH: Tensor,
    keys_ZGH: Tensor,
    values_ZGH: Tensor,
    req_to_token_RC: Tensor,
    metadata: AttentionMetadata,
    params: AttentionParams,
) -> Tensor:
    """Computes one layer with `masked_attention`. Tests compare all kernels with this function.

    It runs on any device. It writes the rows' keys and values to their KV slots, and it reads the lengths on the host.

    Args:
        q_TNH: queries of the rows.
        k_TGH: new keys of the rows.
        v_TGH: new values of the rows.
        keys_ZGH: keys of one layer in KV memory; written.
        values_ZGH: values of one layer in KV memory; written.
        req_to_token_RC: the KV slot of each column of each request slot.
        metadata: the rows of the forward.
        params: scale, window, chunk, soft cap and sinks of the layer.

    Returns:
        out_TNH with the dtype of q_TNH.
    """
    slots_T = metadata.slots_T.long()
    keys_ZGH[slots_T] = k_TGH.to(keys_ZGH.dtype)
    values_ZGH[slots_T] = v_TGH.to(values_ZGH.dtype)
    out_TNH = torch.empty_like(q_TNH)
    starts, lengths = metadata.starts_B1.tolist(), metadata.lengths_B.tolist()
    req_slots = metadata.req_slots_B.tolist()
    for b, (begin, end) in enumerate(pairwise(starts)):
        if begin == end:
            continue
        visible_tS = visibility_mask(metadata, b, begin, end, lengths[b], params)
        slots_S = torch.cat((req_to_token_RC[req_slots[b], : lengths[b]], metadata.block_slots_BE[b])).long()
        k_GSH, v_GSH = (held[slots_S].transpose(0, 1) for held in (keys_ZGH, values_ZGH))
        if q_TNH.device.type == "cpu":  # no fast kernel for a few rows of bfloat16 there
            k_GSH, v_GSH = k_GSH.float(), v_GSH.float()
        q_NtH = q_TNH[begin:end].transpose(0, 1).to(k_GSH.dtype)
        out_NtH = masked_attention(q_NtH[None], k_GSH[None], v_GSH[None], visible_tS[None], params)[0]
        out_TNH[begin:end] = out_NtH.transpose(0, 1).to(q_TNH.dtype)
    return out_TNH


def visibility_mask(
    metadata: AttentionMetadata, b: int, begin: int, end: int, length: int, params: AttentionParams
) -> Tensor:
    """Returns the mask of one request: bool [end - begin, length + E], True where a row attends to a column.

    Args:
        metadata: the rows of the forward.
        b: index of the request.
        begin: its first row.
        end: the row after its last one.
        length: the number of its committed columns, which come before the E slots of the own block.
        params: the window or chunk of the layer.
    """
    num_own, device = metadata.block_slots_BE.shape[1], metadata.block_slots_BE.device
    if metadata.visible_TE is None:
        own_tE = torch.ones(end - begin, num_own, dtype=torch.bool, device=device).tril()
    else:
        own_tE = metadata.visible_TE[begin:end]
    prefix_tP = torch.ones(end - begin, length, dtype=torch.bool, device=device)
    first_t = params.first_visible(metadata.positions_T[begin:end])
    if first_t is not None:
        prefix_tP = torch.arange(length, device=device) >= first_t[:, None]
        if metadata.own_positions_BE is None:
            seen_E = torch.full((num_own,), -1, dtype=first_t.dtype, device=device)
            seen_E[: end - begin] = metadata.positions_T[begin:end]
        else:
            seen_E = metadata.own_positions_BE[b]
        own_tE = own_tE & (seen_E >= first_t[:, None])
    return torch.cat((prefix_tP, own_tE), dim=1)


PrepareAttention = Callable[[Tensor, Tensor, AttentionMetadata], PackedAttentionFn]
"""A function that is called once per forward and does the work that all layers share.

It takes KV memory [layers, 2, Z, G, H] (keys and values), req_to_token_RC and the rows of the forward. It returns the
attention function of this forward, which is then called once per layer.
"""


def prepare_dense(kv: Tensor, req_to_token_RC: Tensor, metadata: AttentionMetadata) -> PackedAttentionFn:
    """Returns the attention function of one forward: `dense_paged_attention` on the layers of `kv`."""

    def attend(layer: int, q_TNH: Tensor, k_TGH: Tensor, v_TGH: Tensor, params: AttentionParams) -> Tensor:
        return dense_paged_attention(q_TNH, k_TGH, v_TGH, kv[layer, 0], kv[layer, 1], req_to_token_RC, metadata, params)

    return attend
