"""Defines a training example: which features and which token each step reads, and which token it predicts.

docs/alignment.md explains this layout; only this file defines it.

T tokens of one row, U of them teacher positions, D hidden, L = 3D captured features.

A row is one text: the prompt and the answers. f_t are the captured features at position t (aux). h_t is the target's
last hidden state at position t, after the final norm:

    position t        0    1    2    3    4    5    6    7
    token x_t         a    b    c    D    E    F    G    .        capitals and "." (end of turn) are generated
    loss mask l_t     -    -    -    x    x    x    x    x        x: true, the target generated the token
    h_t predicts      b    c    D    E    F    G    .             lm_head(h_t) is the target's distribution of x_{t+1}

    chain at t = 2, the last prompt token, where the first draft of serving starts:
        step 0        f_2  + emb(x_3 = D)   at RoPE position 2     predicts x_4 = E    teacher h_3
        step 1        out0 + emb(x_4 = E)   at RoPE position 3     predicts x_5 = F    teacher h_4
        step 2        out1 + emb(x_5 = F)   at RoPE position 4     predicts x_6 = G    teacher h_5

In general, step k of the chain at t reads the chain's previous output (f_t at k = 0) and the embedding of x_{t+1+k}, at
RoPE position t + k. It predicts x_{t+2+k}. Its teacher is softmax(lm_head(h_{t+1+k})) over the draft vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Split = Literal["train", "held_out"]
NUM_AUX_LAYERS = 3  # captured layers


@dataclass(frozen=True, eq=False)
class Row:
    """One text with its features.

    Attributes:
        id: The id of the row (`examples.TextRow.id`).
        task: The task of the conversation.
        ids_T: int64, the token ids.
        loss_mask_T: bool, True where the target generated the token; the end-of-turn token is included.
        aux_TL: The three captured layers, concatenated from the lowest to the highest, before any norm.
        hidden_UD: The target's last hidden state after the final norm, at `teacher_positions` only.
    """

    id: str
    task: str
    ids_T: Tensor
    loss_mask_T: Tensor
    aux_TL: Tensor
    hidden_UD: Tensor


def supervised_positions(loss_mask_T: Tensor, step: int) -> Tensor:
    """Returns m_k: bool [T], True at t if step k of the chain at t is supervised: l_{t+1} and l_{t+2+k} are True.

    So the target generated the token that step 0 of the chain embeds, and the token that step k predicts. Both indices
    must lie inside the row. For the text in the module docstring:

        t       0  1  2  3  4  5  6  7
        m_0     .  .  x  x  x  x  .  .
        m_2     .  .  x  x  .  .  .  .
    """
    out_T = torch.zeros_like(loss_mask_T)
    count = loss_mask_T.shape[0] - 2 - step
    if count > 0:
        out_T[:count] = loss_mask_T[1 : 1 + count] & loss_mask_T[2 + step :]
    return out_T


def teacher_positions(loss_mask_T: Tensor) -> Tensor:
    """Returns bool [T], True at t if l_{t+1} is True: the positions whose final hidden state is stored.

    The teacher of step k of the chain at t is h_{t+1+k}, and `supervised_positions` requires that l_{t+2+k} is True. So
    each teacher position is right before a generated token, for any number of steps. `eyas eval` reads the target's
    probabilities at the same positions.

        token x_t              a  b  c  D  E  F  G  .
        loss mask l_t          -  -  -  x  x  x  x  x
        teachers of step 0     .  .  .  x  x  x  x  .      h_3 ... h_6
        read by `eyas eval`    .  .  x  x  x  x  x  .      h_2 predicts D, which prefill generates and no step drafts
        stored                 .  .  x  x  x  x  x  .

    That is one state for each generated token, except for the first token of a text.
    """
    out_T = torch.zeros_like(loss_mask_T)
    out_T[:-1] = loss_mask_T[1:]
    return out_T


def trimmed_length(loss_mask: Sequence[bool]) -> int:
    """Returns the number of tokens up to and including the last generated token. Later tokens are not stored.

    No loss depends on later tokens, such as a line break that the chat template adds after the end of the turn. The
    features of the last two stored tokens are not read either, because the chain at t predicts x_{t+2} or later. They
    are stored nevertheless, so that ids and features of a row have the same index.
    """
    return max((t + 1 for t, generated in enumerate(loss_mask) if generated), default=0)


def count_supervised(loss_mask_T: Tensor) -> int:
    """Returns the number of supervised tokens of a row: the positions at which step 0 is trained."""
    return int(supervised_positions(loss_mask_T, 0).sum())
