"""Runs the training-time test of EAGLE-3: the head runs K steps on its own output, as it does when it drafts.

A chain is a position at which at least one step is supervised. From there, the head runs its steps one after another.

P rows of a packed batch (its texts one after the other), Q chains, D hidden, L = 3D captured features, N heads, G
key-value heads, R = N / G, H head size, C chains and T rows of one text, K steps, J teacher rows among the S rows whose
final hidden state is stored.

Step 0 runs on all rows, because every row is a key. Later steps run only on the chains, because only the chain itself
attends to the keys of its later steps. The keys that a query of step 2 attends to, marked x, in a text of 4 rows with
chains at t = 1 and t = 2:

                           keys of step 0       keys of step 1   keys of step 2
                           t = 0  1  2  3       t = 1  2         t = 1  2
    query of chain t = 1       x  x  .  .           x  .             x  .
    query of chain t = 2       x  x  x  .           .  x             .  x
                           causal in the text   the chain's own key of each later step
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from eyas.features.layout import Row, supervised_positions, teacher_positions
from eyas.model.attention import AttentionParams
from eyas.model.head import Head
from eyas.train.chain_attention import PackedText, PackedTexts, chain_attention
from eyas.train.loss import TeacherTargets


@dataclass(frozen=True, eq=False)
class PackedBatch(TeacherTargets):
    """A micro-batch of packed texts: the inputs of all steps, and the teacher rows (`TeacherTargets`).

    Attributes:
        ids_P: The token id of each row.
        positions_P: The position of each row in its text.
        aux_PL: The captured layers of each row.
        texts: The rows and chains of each text.
        chains_Q: The row at which each chain starts.
        starts_Q: The first row of its text that each chain attends to.
        tokens_KQ: The token that step k of each chain embeds.
        supervised_KQ: True where step k of the chain is supervised.
        teacher_rows_J: The packed row of each teacher row, ascending.
    """

    ids_P: Tensor
    positions_P: Tensor
    aux_PL: Tensor
    texts: tuple[PackedText, ...]
    chains_Q: Tensor
    starts_Q: Tensor
    tokens_KQ: Tensor
    supervised_KQ: Tensor
    teacher_rows_J: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> "PackedBatch":
        """Returns a batch with `change` applied to every tensor, for example to move it to a device or to pin it."""
        tensors = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "texts"}
        return replace(self, **{name: change(tensor) for name, tensor in tensors.items()})

    @property
    def chain_places(self) -> PackedTexts:
        """The texts, and for each chain, the row at which it starts and the first row that it attends to."""
        return self.texts, self.chains_Q, self.starts_Q

    @property
    def next_ids_P(self) -> Tensor:
        """The token that step 0 embeds: the token after each row. The last row of a text repeats its own token."""
        next_P = self.ids_P.roll(-1)
        for text in self.texts:
            next_P[text.rows.stop - 1] = self.ids_P[text.rows.stop - 1]
        return next_P


def pack_rows(
    rows: Sequence[Row],
    steps: int,
    dtype: torch.dtype,
    max_chains: int | None = None,
    seed: Sequence[int] = (),
    window: int | None = None,
) -> PackedBatch:
    """Packs rows one after the other into a micro-batch.

    Args:
        rows: The rows. Requirement: each has a supervised position.
        steps: The number K of unrolled steps.
        dtype: The dtype of the features in the batch.
        max_chains: The most chains of a text, drawn at random, as blocks: step k is supervised only if all steps before
            it are. None: all chains, and each step is supervised if the target generated its token.
        seed: The seed of the drawing.
        window: The number of tokens, up to its start, that a chain attends to; None: its whole text.
    """
    texts, chains, starts, tokens, masks, positions = [], [], [], [], [], []
    random = np.random.default_rng(seed)
    start = num_chains = 0
    for row in rows:
        length = row.ids_T.shape[0]
        masks_KT = torch.stack([supervised_positions(row.loss_mask_T, step) for step in range(steps)])
        if max_chains is not None:
            masks_KT = masks_KT.long().cumprod(0).bool()
        chains_C = masks_KT.any(0).nonzero()[:, 0]
        if max_chains is not None:
            drawn = random.choice(len(chains_C), min(max_chains, len(chains_C)), replace=False, shuffle=False)
            chains_C = chains_C[np.sort(drawn)]
        count = chains_C.shape[0]
        chain_slice = slice(num_chains, num_chains + count)
        texts.append(PackedText(slice(start, start + length), chain_slice, tuple(chains_C.tolist())))
        chains.append(chains_C + start)
        starts.append((chains_C + 1 - (window or length)).clamp(min=0) + start)
        inputs_KC = (chains_C + 1 + torch.arange(steps)[:, None]).clamp(max=length - 1)
        tokens.append(row.ids_T[inputs_KC])
        masks.append(masks_KT[:, chains_C])
        positions.append(torch.arange(length))
        start += length
        num_chains += count
    chains_Q, supervised_KQ = torch.cat(chains), torch.cat(masks, 1)
    teacher_rows_J, student_index_JK, supervised_JK = _assign_teachers(chains_Q, supervised_KQ)
    stored_S = torch.cat([teacher_positions(row.loss_mask_T) for row in rows]).nonzero()[:, 0]
    stored_index_J = torch.searchsorted(stored_S, teacher_rows_J)
    return PackedBatch(
        hidden_JD=torch.cat([row.hidden_UD for row in rows])[stored_index_J].to(dtype),
        student_index_JK=student_index_JK,
        supervised_JK=supervised_JK,
        ids_P=torch.cat([row.ids_T for row in rows]),
        positions_P=torch.cat(positions),
        aux_PL=torch.cat([row.aux_TL for row in rows]).to(dtype),
        texts=tuple(texts),
        chains_Q=chains_Q,
        starts_Q=torch.cat(starts),
        tokens_KQ=torch.cat(tokens, 1),
        supervised_KQ=supervised_KQ,
        teacher_rows_J=teacher_rows_J,
    )


def _assign_teachers(chains_Q: Tensor, supervised_KQ: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns teacher_rows_J, student_index_JK and supervised_JK of a `PackedBatch`.

    Student outputs are grouped by teacher row. So the target's logits of a row are computed once for all steps.
    """
    steps, num_chains = supervised_KQ.shape
    k_I, q_I = supervised_KQ.nonzero(as_tuple=True)
    # The final hidden state at position t + 1 + k is the teacher of step k of the chain at t.
    teachers_KQ = chains_Q + 1 + torch.arange(steps)[:, None]
    teacher_rows_J, j_I = teachers_KQ[k_I, q_I].unique(sorted=True, return_inverse=True)
    student_index_JK = torch.zeros(teacher_rows_J.shape[0], steps, dtype=torch.int64)
    supervised_JK = torch.zeros_like(student_index_JK, dtype=torch.bool)
    student_index_JK[j_I, k_I] = k_I * num_chains + q_I
    supervised_JK[j_I, k_I] = True
    return teacher_rows_J, student_index_JK, supervised_JK


def unroll(head: Head, packed: PackedBatch, embeds_PD: Tensor, embeds_KQD: Tensor) -> Tensor:
    """Runs all steps of the head. Returns out_KQD, the output of step k of each chain, before the final norm.

    Args:
        head: The head.
        packed: The micro-batch.
        embeds_PD: Embeddings of `packed.next_ids_P`.
        embeds_KQD: Embeddings of `packed.tokens_KQ`. The embeddings of step 0 are not used.
    """
    steps = packed.tokens_KQ.shape[0]
    attention = UnrolledAttention(packed)
    hidden_1PD = head.fuse_aux(packed.aux_PL)[None]
    out_1PD = head.step(embeds_PD[None], hidden_1PD, packed.positions_P[None], attention)
    out_1QD = out_1PD[:, packed.chains_Q]
    outs = [out_1QD]
    positions_1Q = packed.positions_P[packed.chains_Q][None]
    for step in range(1, steps):
        out_1QD = head.step(embeds_KQD[step][None], head.next_hidden(out_1QD), positions_1Q + step, attention)
        outs.append(out_1QD)
    return torch.cat(outs)


class UnrolledAttention:
    """The attention of `unroll`. Call 0 attends over all rows (step 0); call k attends over the chains (step k).

    Step 0 computes the output only of rows that start a chain. The output of all other rows is 0, because no later
    step uses it.
    """

    def __init__(self, packed: PackedBatch) -> None:
        self._packed, self._places = packed, packed.chain_places
        self._prefix_kv: tuple[Tensor, Tensor] | None = None
        self._unrolled_kv: list[tuple[Tensor, Tensor]] = []

    def __call__(self, layer: int, q_BNTH: Tensor, k_BGTH: Tensor, v_BGTH: Tensor, params: AttentionParams) -> Tensor:
        """Stores the keys and values of a step and returns its attention output."""
        assert (layer, q_BNTH.shape[0]) == (0, 1), "one layer, packed rows"
        kv, places = (k_BGTH[0], v_BGTH[0]), self._places
        if self._prefix_kv is None:
            self._prefix_kv = kv
            out_NQH = chain_attention(places, q_BNTH[0][:, self._packed.chains_Q], kv, [], params.scale)
            return torch.zeros_like(q_BNTH).index_copy(2, self._packed.chains_Q, out_NQH[None])
        self._unrolled_kv.append(kv)
        return chain_attention(places, q_BNTH[0], self._prefix_kv, self._unrolled_kv, params.scale)[None]
