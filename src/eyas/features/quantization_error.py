"""What storing changes: the error of quantisation, measured before a head exists.

U taught tokens of a row, C of them at once, D hidden, P captured layers, W target vocabulary, R rows of its matrix.

teacher   the mean over taught positions of the total variation between softmax(lm_head(h)) before and after: how often
          a draft of a head that learnt the stored teacher to perfection would be refused
aux       of each layer, the mean over its D channels of |change| / |channel|, norms over all tokens: a channel counts
          as much as another. Few large channels, as most targets have, would hide all others in one norm over the layer
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from eyas.features.extract import NUM_LAYERS
from eyas.features.layout import Row
from eyas.features.quantize import StoredDtype, quantise, restore
from eyas.features.store import QuantisationError
from eyas.model.submodules import apply_softcap
from eyas.model.target import Target

CHUNK_FLOATS = 16_000_000  # logits in flight
MATRIX_ROWS = 16_384  # of the output matrix that stand in float32 at once
DIGITS = 4  # of the figures; what is behind them differs between machines


@torch.no_grad()
def measure(rows: Sequence[Row], dtype: StoredDtype, target: Target) -> QuantisationError:
    """Of rows as the target computed them. Their features must be finite."""
    moved, num_taught = 0.0, 0
    change_PD = size_PD = torch.zeros(())
    for row in rows:
        after_TL = restore(*quantise(row.aux_TL, NUM_LAYERS, dtype), torch.float32)
        before_TPD = row.aux_TL.float().unflatten(-1, (NUM_LAYERS, -1))
        change_PD = change_PD + (after_TL.view_as(before_TPD) - before_TPD).square().sum(0)
        size_PD = size_PD + before_TPD.square().sum(0)
        codes_UD, scales_U1 = quantise(row.hidden_UD, 1, dtype)
        for chunk in torch.arange(len(codes_UD)).split(max(1, CHUNK_FLOATS // target.info.vocab_size)):
            after_CD = restore(codes_UD[chunk], scales_U1[chunk], torch.float32)
            before_CW, after_CW = (_probabilities(x.float(), target) for x in (row.hidden_UD[chunk], after_CD))
            moved += float((before_CW - after_CW).abs().sum()) / 2
        num_taught += len(codes_UD)
    aux_P = (change_PD / size_PD.masked_fill(size_PD == 0, 1.0)).sqrt().mean(-1)
    return QuantisationError(
        teacher=_rounded(moved / num_taught if num_taught else 0.0),
        aux=tuple(_rounded(error) for error in aux_P.tolist()),
        num_rows=len(rows),
        num_tokens=sum(len(row.ids_T) for row in rows),
    )


def _probabilities(hidden_CD: Tensor, target: Target) -> Tensor:
    """[C, W]. In float32 throughout: logits of two bytes would move by their own rounding."""
    weight_WD, bias_W = target.lm_head.weight, getattr(target.lm_head, "bias", None)
    assert isinstance(weight_WD, Tensor), "the target's output matrix"
    hidden_CD = hidden_CD.to(weight_WD.device)
    logits_CW = torch.cat([hidden_CD @ rows_RD.float().T for rows_RD in weight_WD.split(MATRIX_ROWS)], -1)
    if bias_W is not None:
        logits_CW += bias_W.float()
    return apply_softcap(logits_CW, target.logit_softcap).softmax(-1)


def _rounded(figure: float) -> float:
    return float(f"{figure:.{DIGITS}g}")
