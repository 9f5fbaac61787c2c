"""What the target computes of texts: captured layers and final states, a padded batch at a time.

B rows of a batch, T tokens, U of them taught, D hidden, L = 3D captured features, N heads, G key-value heads, H head
size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.base.errors import StageError
from eyas.features.layout import taught
from eyas.features.quantize import StoredDtype, is_finite, quantise
from eyas.features.shard import Pair
from eyas.model.attention import AttentionParams, causal_attention
from eyas.model.target import Target

NUM_LAYERS = 3  # captured ones


@dataclass(frozen=True, eq=False)
class Computed:
    """aux_TL before any norm, hidden_UD after the final norm at the taught positions; of the text `index`."""

    index: int
    aux_TL: Tensor
    hidden_UD: Tensor


class PrefillAttend:
    """Attention over whole rows padded on the right; keeps nothing. Padding comes after all that is real."""

    def __call__(self, layer: int, q_BNTH: Tensor, k_BGTH: Tensor, v_BGTH: Tensor, params: AttentionParams) -> Tensor:
        return causal_attention(q_BNTH, k_BGTH, v_BGTH, params)


@torch.no_grad()
def compute(texts: Sequence[tuple[Tensor, Tensor]], target: Target, batch_tokens: int) -> Iterator[Computed]:
    """Of texts (ids_T, loss_mask_T), where the target lies. Similar lengths share a forward of so many padded tokens.

    A text comes when its batch does, so not in the order given.
    """
    order = sorted(range(len(texts)), key=lambda i: len(texts[i][0]))
    batches: list[list[int]] = []
    for index in order:
        if not batches or (len(batches[-1]) + 1) * len(texts[index][0]) > batch_tokens:
            batches.append([])
        batches[-1].append(index)
    device = next(target.model.parameters()).device
    for batch in batches:
        ids_BT = torch.zeros(len(batch), len(texts[batch[-1]][0]), dtype=torch.int64)
        for slot, index in enumerate(batch):
            ids_BT[slot, : len(texts[index][0])] = texts[index][0]
        positions_1T = torch.arange(ids_BT.shape[1], device=device)[None]
        out = target.forward(ids_BT.to(device), positions_1T, PrefillAttend(), want_aux=True)
        assert out.aux_BTL is not None
        for slot, index in enumerate(batch):
            ids_T, mask_T = texts[index]
            hidden_TD = out.hidden_BTD[slot, : len(ids_T)]
            taught_T = taught(mask_T).to(hidden_TD.device)
            yield Computed(index, out.aux_BTL[slot, : len(ids_T)], hidden_TD[taught_T])


def coded(found: Computed, dtype: StoredDtype, row: str, shared: int = 0) -> tuple[Pair, Pair]:
    """aux and hidden in codes, on the CPU, without the first `shared` tokens' aux. `StageError` naming the row where a
    value is no number.
    """
    pairs = quantise(found.aux_TL[shared:], NUM_LAYERS, dtype), quantise(found.hidden_UD, 1, dtype)
    if not all(is_finite(*pair) for pair in pairs):
        raise not_finite(row)
    (aux, aux_scales), (hidden, hidden_scales) = pairs
    return (aux.cpu(), aux_scales.cpu()), (hidden.cpu(), hidden_scales.cpu())


def not_finite(row: str) -> StageError:
    """For a row that the target makes something of that is no number."""
    return StageError(
        f"a feature of conversation {row} that is no finite number",
        "numbers",
        "load the target as float32 or bfloat16 (target.dtype), or take that conversation out",
    )
