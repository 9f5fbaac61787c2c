"""Quantizes features to 8 bits (codes and scales), restores them, and measures the quantization error.

T tokens, G groups of a row with one scale each (the captured layers), D values of a group, L = G * D.

    int8    scale = bf16(largest magnitude / 127)    code = round(x / scale), ties to even
    fp8     scale = bf16(largest magnitude / 448)    code = e4m3(x / scale), ties to even
    bfloat16, float32: the code is the value itself; there are no scales (the scales tensor has width 0)

    value = code * scale

The scale is rounded to bfloat16 (two bytes) first, and the codes are computed with the rounded scale. All operations
are float32 division, rounding and multiplication of IEEE 754. Each operation has one correct result, so all machines
compute the same bits.
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

CODE_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn, "bfloat16": torch.bfloat16, "float32": torch.float32}
MAX_CODE = {"int8": 127.0, "fp8": 448.0}  # the code of the largest magnitude of a group
SCALE_DTYPE = torch.bfloat16
DESCRIPTIONS = {
    "int8": "value = code * scale; scale = largest magnitude / 127, bfloat16, one a token and layer",
    "fp8": "value = code * scale; code e4m3; scale = largest magnitude / 448, bfloat16, one a token and layer",
}
"""The text of `quantisation` in a manifest, by the dtype of the codes. For other dtypes, it is "none"."""

CHUNK_FLOATS = 16_000_000  # logits computed at once
MATRIX_ROWS = 16_384  # rows of the output matrix that are converted to float32 at once
DIGITS = 4  # significant digits of an error; further digits differ between machines


def quantize(x_TL: Tensor, num_groups: int, dtype: StoredDtype) -> tuple[Tensor, Tensor]:
    """Returns codes_TL and bf16 scales_TG. For the dtypes bfloat16 and float32, scales_TG has width 0.

    Let s be the scale of the group of a value. The error of the value is at most

        int8    s / 2                      0.4 % of the largest magnitude of the group
        fp8     max(|x| / 16, s / 1024)    small values are more exact than with int8, large ones less

    if the largest magnitude is above 1e-34. Below that, s is not a normal number and the error is at most |x|. A group
    of zeros has scale 0 and codes 0. Requirement: the caller rejects NaN and infinity by `is_finite` on the result.
    """
    if dtype not in MAX_CODE:
        return x_TL.to(CODE_DTYPES[dtype]), x_TL.new_empty((*x_TL.shape[:-1], 0), dtype=SCALE_DTYPE)
    x_TGD = x_TL.unflatten(-1, (num_groups, -1)).float()
    scales_TG = (x_TGD.abs().amax(-1) / MAX_CODE[dtype]).to(SCALE_DTYPE)
    codes_TGD = x_TGD / scales_TG.float().masked_fill(scales_TG == 0, 1.0)[..., None]
    if dtype == "int8":
        codes_TGD.round_()
    # A scale that was rounded down leads beyond the largest code; e4m3 has no infinity and would give NaN.
    codes_TGD.clamp_(-MAX_CODE[dtype], MAX_CODE[dtype])
    return codes_TGD.to(CODE_DTYPES[dtype]).flatten(-2), scales_TG


def is_finite(codes_TL: Tensor, scales_TG: Tensor) -> Tensor:
    """Returns True (a scalar) if every value was finite before `quantize`. Otherwise a scale or code is not finite."""
    return (scales_TG if scales_TG.shape[-1] else codes_TL).isfinite().all()


def dequantize(codes_TL: Tensor, scales_TG: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns values_TL in `dtype`: each is code * scale, computed exactly and rounded once."""
    num_groups = scales_TG.shape[-1]
    if not num_groups:
        return codes_TL.to(dtype)
    values_TGD = _codes_to_float(codes_TL, dtype).unflatten(-1, (num_groups, -1))
    return values_TGD.mul_(scales_TG.to(dtype)[..., None]).flatten(-2)


def _codes_to_float(codes_TL: Tensor, dtype: torch.dtype) -> Tensor:
    """Converts codes exactly. A table converts fp8 codes, which is six times faster on a CPU than `Tensor.to`."""
    if codes_TL.dtype != torch.float8_e4m3fn:
        return codes_TL.to(dtype)
    table = torch.arange(256, dtype=torch.uint8, device=codes_TL.device).view(codes_TL.dtype).to(dtype)
    return table.index_select(0, codes_TL.view(torch.uint8).flatten().int()).view(codes_TL.shape)


@dataclass(frozen=True)
class QuantizationError:
    """The relative error of stored features, measured on a few rows; the field `quantisation_error` of a manifest.

    Attributes:
        teacher: The mean over teacher positions of the total variation between softmax(lm_head(h)) before and after
            quantization. If a head learned the quantized distribution perfectly, verification would reject this share
            of its drafts.
        aux: For each layer, the mean over its D channels of norm(change) / norm(channel), with norms over all tokens.
            So each channel has the same weight, and a few large channels do not hide the errors of small channels.
        num_rows: The number of rows that were measured.
        num_tokens: The number of tokens of these rows.
    """

    teacher: float
    aux: tuple[float, ...]
    num_rows: int
    num_tokens: int


@torch.no_grad()
def measure_quantization_error(rows: Sequence[Row], dtype: StoredDtype, target: Target) -> QuantizationError:
    """Returns the error of storing these rows as `dtype`. Requirement: their features are finite and not quantized.

    U teacher positions of a row, C of them in a chunk, W target vocabulary.
    """
    total_variation, num_teachers = 0.0, 0
    change_GD = size_GD = torch.zeros(())
    for row in rows:
        after_TL = dequantize(*quantize(row.aux_TL, NUM_AUX_LAYERS, dtype), torch.float32)
        before_TGD = row.aux_TL.float().unflatten(-1, (NUM_AUX_LAYERS, -1))
        change_GD = change_GD + (after_TL.view_as(before_TGD) - before_TGD).square().sum(0)
        size_GD = size_GD + before_TGD.square().sum(0)
        codes_UD, scales_U1 = quantize(row.hidden_UD, 1, dtype)
        for chunk in torch.arange(len(codes_UD)).split(max(1, CHUNK_FLOATS // target.info.vocab_size)):
            after_CD = dequantize(codes_UD[chunk], scales_U1[chunk], torch.float32)
            before_CW, after_CW = (_target_probs(x.float(), target) for x in (row.hidden_UD[chunk], after_CD))
            total_variation += float((before_CW - after_CW).abs().sum()) / 2
        num_teachers += len(codes_UD)
    aux_G = (change_GD / size_GD.masked_fill(size_GD == 0, 1.0)).sqrt().mean(-1)
    errors = (total_variation / max(1, num_teachers), *aux_G.tolist())
    teacher, *aux = (float(f"{error:.{DIGITS}g}") for error in errors)
    return QuantizationError(teacher, tuple(aux), len(rows), sum(len(row.ids_T) for row in rows))


def _target_probs(hidden_CD: Tensor, target: Target) -> Tensor:
    """Returns the target's probabilities [C, W] of the next token.

    They are computed in float32, because the rounding of 16-bit logits would be larger than the measured error.
    """
    weight_WD, bias_W = target.lm_head.weight, getattr(target.lm_head, "bias", None)
    assert isinstance(weight_WD, Tensor), "the target's output matrix"
    hidden_CD = hidden_CD.to(weight_WD.device)
    logits_CW = torch.cat([hidden_CD @ rows_RD.float().T for rows_RD in weight_WD.split(MATRIX_ROWS)], -1)
    if bias_W is not None:
        logits_CW += bias_W.float()
    return apply_softcap(logits_CW, target.logit_softcap).softmax(-1)
