"""Features in 8 bits: codes, and scales that give the values back. Pure functions, the same bits on every machine.

T tokens, P parts of a row that have a scale each (the captured layers), D values of a part, L = P * D.

    int8    scale = bf16(largest magnitude / 127)    code = round(x / scale), ties to even
    fp8     scale = bf16(largest magnitude / 448)    code = e4m3(x / scale), ties to even
    bfloat16, float32: the values themselves, P = 0 scales

    value = code * scale

A scale is rounded first and the codes are made with what it became, so two bytes are enough for it. All arithmetic is
float32 division, rounding and multiplication of IEEE 754, each of which has one right result.

What storing changes: the error of quantisation, measured before a head exists.

U taught tokens of a row, C of them at once, D hidden, P captured layers, W target vocabulary, R rows of its matrix.

teacher   the mean over taught positions of the total variation between softmax(lm_head(h)) before and after: how often
          a draft of a head that learnt the stored teacher to perfection would be refused
aux       of each layer, the mean over its D channels of |change| / |channel|, norms over all tokens: a channel counts
          as much as another. Few large channels, as most targets have, would hide all others in one norm over the layer
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from eyas.features.layout import NUM_AUX_LAYERS, Row
from eyas.model.submodules import apply_softcap
from eyas.model.target import Target

StoredDtype = Literal["int8", "fp8", "bfloat16", "float32"]

CODE_DTYPES = {
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}
MAX_CODE = {"int8": 127.0, "fp8": 448.0}  # code of the largest magnitude
SCALE_DTYPE = torch.bfloat16
DESCRIPTIONS = {
    "int8": "value = code * scale; scale = largest magnitude / 127, bfloat16, one a token and layer",
    "fp8": "value = code * scale; code e4m3; scale = largest magnitude / 448, bfloat16, one a token and layer",
    "bfloat16": "none",
    "float32": "none",
}


def quantize(x_TL: Tensor, num_groups: int, dtype: StoredDtype) -> tuple[Tensor, Tensor]:
    """(codes_TL, scales_TP), bf16 scales; P = 0 where values are stored as they are.

    The error of a value, s being its part's scale, is at most

        int8    s / 2                      that is 0.4 % of the part's largest magnitude
        fp8     max(|x| / 16, s / 1024)    small values are kept better, large ones worse than by int8

    as long as the largest magnitude is above 1e-34 (below, s is no normal number and the error is at most |x|). A part
    of zeros gives scale 0 and zeros. What is not finite gives no code: see `is_finite`.
    """
    if dtype not in MAX_CODE:
        return x_TL.to(CODE_DTYPES[dtype]), x_TL.new_empty((*x_TL.shape[:-1], 0), dtype=SCALE_DTYPE)
    x_TPD = x_TL.unflatten(-1, (num_groups, -1)).float()
    scales_TP = (x_TPD.abs().amax(-1) / MAX_CODE[dtype]).to(SCALE_DTYPE)
    by_TP = scales_TP.float().masked_fill(scales_TP == 0, 1.0)
    codes_TPD = x_TPD / by_TP[..., None]
    if dtype == "int8":
        codes_TPD.round_()
    # A scale that was rounded down would lead beyond the largest code; e4m3 has no infinity and would give NaN.
    codes_TPD.clamp_(-MAX_CODE[dtype], MAX_CODE[dtype])
    return codes_TPD.to(CODE_DTYPES[dtype]).flatten(-2), scales_TP


def is_finite(codes_TL: Tensor, scales_TP: Tensor) -> bool:
    """Whether every value that these were made from was a number; one that is not makes its scale, or itself, none."""
    return bool((scales_TP if scales_TP.shape[-1] else codes_TL).isfinite().all())


def dequantize(codes_TL: Tensor, scales_TP: Tensor, dtype: torch.dtype) -> Tensor:
    """values_TL in `dtype`, each the rounding of the exact product: a code has at most 7 bits, a scale 8."""
    parts = scales_TP.shape[-1]
    if not parts:
        return codes_TL.to(dtype)
    values_TPD = _codes_to_float(codes_TL, dtype).unflatten(-1, (parts, -1))
    return values_TPD.mul_(scales_TP.to(dtype)[..., None]).flatten(-2)


def _codes_to_float(codes_TL: Tensor, dtype: torch.dtype) -> Tensor:
    """The codes as numbers, exactly. Of fp8 by table: torch on a CPU converts each alone, six times slower."""
    if codes_TL.dtype != torch.float8_e4m3fn:
        return codes_TL.to(dtype)
    table = torch.arange(256, dtype=torch.uint8, device=codes_TL.device).view(codes_TL.dtype).to(dtype)
    return table.index_select(0, codes_TL.view(torch.uint8).flatten().int()).view(codes_TL.shape)


@dataclass(frozen=True)
class QuantizationError:
    """What storing changed on a few rows (features.drift): teacher, mean total variation; aux, relative, by layer."""

    teacher: float
    aux: tuple[float, ...]
    num_rows: int
    num_tokens: int


CHUNK_FLOATS = 16_000_000  # logits in flight
MATRIX_ROWS = 16_384  # of the output matrix that stand in float32 at once
DIGITS = 4  # of the figures; what is behind them differs between machines


@torch.no_grad()
def measure_quantization_error(rows: Sequence[Row], dtype: StoredDtype, target: Target) -> QuantizationError:
    """Of rows as the target computed them. Their features must be finite."""
    moved, num_taught = 0.0, 0
    change_PD = size_PD = torch.zeros(())
    for row in rows:
        after_TL = dequantize(*quantize(row.aux_TL, NUM_AUX_LAYERS, dtype), torch.float32)
        before_TPD = row.aux_TL.float().unflatten(-1, (NUM_AUX_LAYERS, -1))
        change_PD = change_PD + (after_TL.view_as(before_TPD) - before_TPD).square().sum(0)
        size_PD = size_PD + before_TPD.square().sum(0)
        codes_UD, scales_U1 = quantize(row.hidden_UD, 1, dtype)
        for chunk in torch.arange(len(codes_UD)).split(max(1, CHUNK_FLOATS // target.info.vocab_size)):
            after_CD = dequantize(codes_UD[chunk], scales_U1[chunk], torch.float32)
            before_CW, after_CW = (_target_probs(x.float(), target) for x in (row.hidden_UD[chunk], after_CD))
            moved += float((before_CW - after_CW).abs().sum()) / 2
        num_taught += len(codes_UD)
    aux_P = (change_PD / size_PD.masked_fill(size_PD == 0, 1.0)).sqrt().mean(-1)
    return QuantizationError(
        teacher=_round_significant(moved / num_taught if num_taught else 0.0),
        aux=tuple(_round_significant(error) for error in aux_P.tolist()),
        num_rows=len(rows),
        num_tokens=sum(len(row.ids_T) for row in rows),
    )


def _target_probs(hidden_CD: Tensor, target: Target) -> Tensor:
    """[C, W]. In float32 throughout: logits of two bytes would move by their own rounding."""
    weight_WD, bias_W = target.lm_head.weight, getattr(target.lm_head, "bias", None)
    assert isinstance(weight_WD, Tensor), "the target's output matrix"
    hidden_CD = hidden_CD.to(weight_WD.device)
    logits_CW = torch.cat([hidden_CD @ rows_RD.float().T for rows_RD in weight_WD.split(MATRIX_ROWS)], -1)
    if bias_W is not None:
        logits_CW += bias_W.float()
    return apply_softcap(logits_CW, target.logit_softcap).softmax(-1)


def _round_significant(figure: float) -> float:
    return float(f"{figure:.{DIGITS}g}")
