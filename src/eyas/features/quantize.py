"""Features in 8 bits: codes, and scales that give the values back. Pure functions, the same bits on every machine.

T tokens, P parts of a row that have a scale each (the captured layers), D values of a part, L = P * D.

    int8    scale = bf16(largest magnitude / 127)    code = round(x / scale), ties to even
    fp8     scale = bf16(largest magnitude / 448)    code = e4m3(x / scale), ties to even
    bfloat16, float32: the values themselves, P = 0 scales

    value = code * scale

A scale is rounded first and the codes are made with what it became, so two bytes are enough for it. All arithmetic is
float32 division, rounding and multiplication of IEEE 754, each of which has one right result.
"""

from typing import Literal

import torch
from torch import Tensor

StoredDtype = Literal["int8", "fp8", "bfloat16", "float32"]

CODES = {
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}
LARGEST = {"int8": 127.0, "fp8": 448.0}  # code of the largest magnitude
SCALE = torch.bfloat16
MEANING = {
    "int8": "value = code * scale; scale = largest magnitude / 127, bfloat16, one a token and layer",
    "fp8": "value = code * scale; code e4m3; scale = largest magnitude / 448, bfloat16, one a token and layer",
    "bfloat16": "none",
    "float32": "none",
}


def quantise(x_TL: Tensor, parts: int, dtype: StoredDtype) -> tuple[Tensor, Tensor]:
    """(codes_TL, scales_TP), bf16 scales; P = 0 where values are stored as they are.

    The error of a value, s being its part's scale, is at most

        int8    s / 2                      that is 0.4 % of the part's largest magnitude
        fp8     max(|x| / 16, s / 1024)    small values are kept better, large ones worse than by int8

    as long as the largest magnitude is above 1e-34 (below, s is no normal number and the error is at most |x|). A part
    of zeros gives scale 0 and zeros. What is not finite gives no code: see `is_finite`.
    """
    if dtype not in LARGEST:
        return x_TL.to(CODES[dtype]), x_TL.new_empty((*x_TL.shape[:-1], 0), dtype=SCALE)
    x_TPD = x_TL.unflatten(-1, (parts, -1)).float()
    scales_TP = (x_TPD.abs().amax(-1) / LARGEST[dtype]).to(SCALE)
    by_TP = scales_TP.float().masked_fill(scales_TP == 0, 1.0)
    codes_TPD = x_TPD / by_TP[..., None]
    if dtype == "int8":
        codes_TPD.round_()
    # A scale that was rounded down would lead beyond the largest code; e4m3 has no infinity and would give NaN.
    codes_TPD.clamp_(-LARGEST[dtype], LARGEST[dtype])
    return codes_TPD.to(CODES[dtype]).flatten(-2), scales_TP


def is_finite(codes_TL: Tensor, scales_TP: Tensor) -> bool:
    """Whether every value that these were made from was a number; one that is not makes its scale, or itself, none."""
    return bool((scales_TP if scales_TP.shape[-1] else codes_TL).isfinite().all())


def restore(codes_TL: Tensor, scales_TP: Tensor, dtype: torch.dtype) -> Tensor:
    """values_TL in `dtype`, each the rounding of the exact product: a code has at most 7 bits, a scale 8."""
    parts = scales_TP.shape[-1]
    if not parts:
        return codes_TL.to(dtype)
    values_TPD = _values(codes_TL, dtype).unflatten(-1, (parts, -1))
    return values_TPD.mul_(scales_TP.to(dtype)[..., None]).flatten(-2)


def _values(codes_TL: Tensor, dtype: torch.dtype) -> Tensor:
    """The codes as numbers, exactly. Of fp8 by table: torch on a CPU converts each alone, six times slower."""
    if codes_TL.dtype != torch.float8_e4m3fn:
        return codes_TL.to(dtype)
    table = torch.arange(256, dtype=torch.uint8, device=codes_TL.device).view(codes_TL.dtype).to(dtype)
    return table.index_select(0, codes_TL.view(torch.uint8).flatten().int()).view(codes_TL.shape)
