"""Training-time test: the head runs several steps on its own output, as it will when it drafts.

P rows of a packed batch (its texts one behind the other), Q chains (positions that any step supervises), D hidden,
L = 3D, N heads, G key-value heads, R = N / G, H head size, C chains and T rows of one text, K steps, J teacher rows
among the S rows whose final state is stored.

Step 0 reads all rows, for every row is a key. Later steps run on the chains alone: nobody ever attends to an unrolled
row but its own chain. What a query at step k sees (T = 4, chains at t = 1, 2):

                     keys of step 0       step 1     step 2
                     t = 0  1  2  3       t = 1  2   t = 1  2
    step 2, t = 1        x  x  .  .           x  .       x  .
    step 2, t = 2        x  x  x  .           .  x       .  x
                     causal, per text     only the chain's own: the "diagonal", k scores a query
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from eyas.features.layout import Row, supervised_positions, teacher_index, teacher_positions
from eyas.model.attention import AttentionParams
from eyas.model.head import Head
from eyas.train.chain_attention import PackedText, chain_attention


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """A micro-batch.

    ids_P, positions_P (place in its text), aux_PL: all rows. chains_Q: the row of each chain. tokens_KQ: what step k of
    each chain embeds. supervised_KQ: where step k has something to learn. teachers_J: the rows whose final hidden state
    teaches, ascending; hidden_JD: that state. pupils_JK: index into the K * Q outputs (step-major) of the one that row
    j teaches at step k, meaningless where `taught_JK` is False.
    """

    ids_P: Tensor
    positions_P: Tensor
    aux_PL: Tensor
    texts: tuple[PackedText, ...]
    chains_Q: Tensor
    tokens_KQ: Tensor
    supervised_KQ: Tensor
    teacher_rows_J: Tensor
    hidden_JD: Tensor
    student_index_JK: Tensor
    supervised_JK: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> "PackedBatch":
        """With every tensor changed: moved to a device, or pinned so that it moves fast."""
        tensors = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "texts"}
        return replace(self, **{name: change(tensor) for name, tensor in tensors.items()})

    @property
    def next_ids_P(self) -> Tensor:
        """What step 0 embeds: the token after each row. The last row of a text gets its own; no chain sees it."""
        next_P = self.ids_P.roll(-1)
        for text in self.texts:
            next_P[text.rows.stop - 1] = self.ids_P[text.rows.stop - 1]
        return next_P


def pack_rows(rows: Sequence[Row], steps: int, dtype: torch.dtype) -> PackedBatch:
    """The rows one behind the other, features in `dtype`. Every row must have at least one supervised position."""
    texts, chains, tokens, masks, positions = [], [], [], [], []
    start = num_chains = 0
    for row in rows:
        length = row.ids_T.shape[0]
        masks_KT = torch.stack([supervised_positions(row.loss_mask_T, step) for step in range(steps)])
        own_C = masks_KT.any(0).nonzero()[:, 0]
        count = own_C.shape[0]
        chain_slice = slice(num_chains, num_chains + count)
        texts.append(PackedText(slice(start, start + length), chain_slice, tuple(own_C.tolist())))
        chains.append(own_C + start)
        inputs_KC = (own_C + 1 + torch.arange(steps)[:, None]).clamp(max=length - 1)
        tokens.append(row.ids_T[inputs_KC])
        masks.append(masks_KT[:, own_C])
        positions.append(torch.arange(length))
        start += length
        num_chains += count
    chains_Q, supervised_KQ = torch.cat(chains), torch.cat(masks, 1)
    teachers_J, pupils_JK, taught_JK = _build_targets(chains_Q, supervised_KQ)
    stored_S = torch.cat([teacher_positions(row.loss_mask_T) for row in rows]).nonzero()[:, 0]
    places_J = torch.searchsorted(stored_S, teachers_J)
    return PackedBatch(
        ids_P=torch.cat([row.ids_T for row in rows]),
        positions_P=torch.cat(positions),
        aux_PL=torch.cat([row.aux_TL for row in rows]).to(dtype),
        texts=tuple(texts),
        chains_Q=chains_Q,
        tokens_KQ=torch.cat(tokens, 1),
        supervised_KQ=supervised_KQ,
        teacher_rows_J=teachers_J,
        hidden_JD=torch.cat([row.hidden_UD for row in rows])[places_J].to(dtype),
        student_index_JK=pupils_JK,
        supervised_JK=taught_JK,
    )


def _build_targets(chains_Q: Tensor, supervised_KQ: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Who teaches whom, gathered by teacher, so that the target's logits of a row are computed once for all steps."""
    steps, num_chains = supervised_KQ.shape
    k_I, q_I = supervised_KQ.nonzero(as_tuple=True)
    by_step = [chains_Q + teacher_index(0, step) for step in range(steps)]
    teacher_I = torch.stack(by_step)[k_I, q_I]
    teachers_J, place_I = teacher_I.unique(sorted=True, return_inverse=True)
    pupils_JK = torch.zeros(teachers_J.shape[0], steps, dtype=torch.int64)
    taught_JK = torch.zeros_like(pupils_JK, dtype=torch.bool)
    pupils_JK[place_I, k_I] = k_I * num_chains + q_I
    taught_JK[place_I, k_I] = True
    return teachers_J, pupils_JK, taught_JK


def unroll(head: Head, packed: PackedBatch, embed_rows: Tensor, embed_chains_KQD: Tensor) -> Tensor:
    """out_KQD, the block's output of every step at every chain.

    embed_rows: [P, D] embeddings of `packed.next_ids_P`; embed_chains_KQD: those of `packed.tokens_KQ` (step 0 unused).
    """
    steps = packed.tokens_KQ.shape[0]
    attend = UnrolledAttend(packed)
    hidden_1PD = head.fuse_aux(packed.aux_PL)[None]
    out_1PD = head.step(embed_rows[None], hidden_1PD, packed.positions_P[None], attend)
    out_1QD = out_1PD[:, packed.chains_Q]
    outs = [out_1QD]
    positions_1Q = packed.positions_P[packed.chains_Q][None]
    for step in range(1, steps):
        out_1QD = head.step(embed_chains_KQD[step][None], head.next_hidden(out_1QD), positions_1Q + step, attend)
        outs.append(out_1QD)
    return torch.cat(outs)


class UnrolledAttend:
    """The attention of `unroll`: first call = step 0 over all rows, then one call a step over the chains.

    Step 0 answers only the rows that start a chain; the others get zeros, for nobody reads their output.
    """

    def __init__(self, packed: PackedBatch) -> None:
        self._packed = packed
        self._prefix: tuple[Tensor, Tensor] | None = None
        self._diagonal: list[tuple[Tensor, Tensor]] = []

    def __call__(self, layer: int, q_BNTH: Tensor, k_BGTH: Tensor, v_BGTH: Tensor, params: AttentionParams) -> Tensor:
        assert (layer, q_BNTH.shape[0]) == (0, 1), "one layer, packed rows"
        if self._prefix is None:
            self._prefix = (k_BGTH[0], v_BGTH[0])
            chains_Q = self._packed.chains_Q
            out_NQH = self._attend(q_BNTH[0][:, chains_Q], params.scale)
            return torch.zeros_like(q_BNTH).index_copy(2, chains_Q, out_NQH[None])
        self._diagonal.append((k_BGTH[0], v_BGTH[0]))
        return self._attend(q_BNTH[0], params.scale)[None]

    def _attend(self, q_NQH: Tensor, scale: float) -> Tensor:
        assert self._prefix is not None
        return chain_attention(self._packed.texts, q_NQH, self._prefix, self._diagonal, scale)
