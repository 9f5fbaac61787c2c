"""The compiled kernels of `triton_attention` on a CUDA device, against `paged.dense` in float32 on the CPU."""

import os
from dataclasses import replace

import pytest
import torch
from tests.kernels.paged_cases import CASES, PLAIN, TREES, Forward, Shape, forward
from torch import Tensor

from eyas.kernels.paged_attention import dense_paged_attention
from eyas.model.attention import AttentionParams, PackedAttentionFn

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="TRITON_INTERPRET=1: nothing is compiled"),
]
CUDA = torch.device("cuda")
# float32: three products of tf32 keep about 21 bits. 16 bits: weights and outputs have 8 or 11 of them.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
LLAMA = Shape((0, 1, 300, 4097, 1000), (16, 16, 16, 16, 3), heads=(32, 8), head_dim=128)


def prepare(case: Forward) -> PackedAttentionFn:
    from eyas.kernels.triton_attention import prepare_on

    return prepare_on(CUDA)(case.kv, case.req_to_token_RC, case.rows)


def expect(case: Forward, params: AttentionParams, dtype: torch.dtype, layer: int = 1) -> tuple[Tensor, Tensor]:
    """Output and memory of the reference in float32, for numbers that are rounded to `dtype`."""
    wide = case.on("cpu", dtype).on("cpu", torch.float32)
    kv = wide.kv.clone()
    out_TNH = dense_paged_attention(
        wide.q_TNH, wide.k_TGH, wide.v_TGH, kv[layer, 0], kv[layer, 1], wide.req_to_token_RC, wide.rows, params
    )
    return out_TNH, kv


def on_cuda(params: AttentionParams) -> AttentionParams:
    return params if params.sinks_N is None else replace(params, sinks_N=params.sinks_N.to(CUDA))


def check(case: Forward, params: AttentionParams, dtype: torch.dtype) -> None:
    expected_TNH, expected_kv = expect(case, params, dtype)
    there = case.on("cuda", dtype)
    out_TNH = prepare(there)(1, there.q_TNH, there.k_TGH, there.v_TGH, on_cuda(params))
    torch.testing.assert_close(out_TNH.cpu().float(), expected_TNH, atol=TOLERANCE[dtype], rtol=0)
    assert torch.equal(there.kv.cpu().float(), expected_kv)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", CASES)
def test_equals_dense(name: str, dtype: torch.dtype):
    shape, params = CASES[name]
    check(forward(shape, seed=len(name)), params, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("own", ["tree", "causal"])
def test_shape_of_a_real_model(own: str, dtype: torch.dtype):
    check(forward(replace(LLAMA, own=own)), AttentionParams(128**-0.5), dtype)


@pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9), reason="needs fp8")
@pytest.mark.parametrize("own", ["tree", "causal"])
def test_memory_of_8_bits(own: str):
    case, fp8 = forward(replace(LLAMA, own=own)).on("cpu", torch.bfloat16), torch.float8_e4m3fn
    case = replace(case, kv=case.kv.to(fp8), k_TGH=case.k_TGH * 40)  # some keys lie beyond the largest number of fp8
    params = AttentionParams(0.002)
    wide = case.on("cpu", torch.float32)
    kv = case.kv.clone()
    k_TGH = wide.k_TGH.clamp(-448, 448)
    expected_TNH = dense_paged_attention(
        wide.q_TNH, k_TGH, wide.v_TGH, kv[1, 0], kv[1, 1], wide.req_to_token_RC, wide.rows, params
    )
    there = replace(case.on("cuda", torch.bfloat16), kv=case.kv.to(CUDA))
    out_TNH = prepare(there)(1, there.q_TNH, there.k_TGH, there.v_TGH, params)
    torch.testing.assert_close(out_TNH.cpu().float(), expected_TNH, atol=TOLERANCE[torch.bfloat16], rtol=0)
    assert torch.equal(there.kv.cpu().view(torch.uint8), kv.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_prefill(dtype: torch.dtype):
    check(forward(Shape((0, 700), (513, 200), "causal", 513, (8, 2), 128)), AttentionParams(128**-0.5), dtype)


def test_slots_that_no_row_sees_are_not_read():
    case = forward(TREES)
    expected_TNH, _ = expect(case, PLAIN, torch.float32)
    there = case.poisoned().on("cuda", torch.float32)
    out_TNH = prepare(there)(1, there.q_TNH, there.k_TGH, there.v_TGH, PLAIN)
    torch.testing.assert_close(out_TNH.cpu(), expected_TNH, atol=TOLERANCE[torch.float32], rtol=0)


def test_memory_beyond_32_bits():
    """Slots whose address in elements, and in bytes, needs more than 32 bits."""
    case = forward(replace(LLAMA, lengths=(50, 9, 0, 20, 70))).on("cpu", torch.bfloat16)
    used = case.kv.shape[2]
    num_slots = 2**32 // (8 * 128) + used
    if torch.cuda.mem_get_info()[0] < 2.2 * num_slots * 8 * 128 * 2:
        pytest.skip("needs 19 GB of free device memory")
    expected_TNH, _ = expect(case, PLAIN, torch.bfloat16, layer=0)
    there = case.on("cuda", torch.bfloat16)
    kv = torch.zeros((1, 2, num_slots, 8, 128), dtype=torch.bfloat16, device=CUDA)
    kv[0, :, -used:] = there.kv[0]
    shift = num_slots - used
    rows = replace(there.rows, slots_T=there.rows.slots_T + shift, block_slots_BE=there.rows.block_slots_BE + shift)
    far = replace(there, kv=kv, req_to_token_RC=there.req_to_token_RC + shift, rows=rows)
    out_TNH = prepare(far)(0, there.q_TNH, there.k_TGH, there.v_TGH, PLAIN)
    torch.testing.assert_close(out_TNH.cpu().float(), expected_TNH, atol=TOLERANCE[torch.bfloat16], rtol=0)


@pytest.mark.parametrize("params", [PLAIN, AttentionParams(0.3, window=100)], ids=["plain", "window"])
def test_a_captured_forward_replays_with_other_lengths(params: AttentionParams):
    """Everything that a forward says is changed in place: lengths, rows a request, lines, slots, masks, positions."""
    shape = replace(LLAMA, lengths=(0, 1, 30, 400, 100), head_dim=64, heads=(8, 2))
    others = (
        forward(replace(shape, lengths=(350, 0, 7, 64, 399), num_rows=(16, 0, 16, 16, 19), num_own=19), 1, 403),
        forward(replace(shape, lengths=(1, 2, 3, 4, 5), num_rows=(7, 15, 15, 15, 15), num_own=19), 2, 403),
    )
    case = forward(replace(shape, num_own=19), 0, 403).on("cuda", torch.float32)

    def run() -> Tensor:
        attention = prepare(case)
        outs = [attention(layer, case.q_TNH, case.k_TGH, case.v_TGH, params) for layer in range(2)]
        return torch.stack(outs)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out_2TNH = run()
    for other in others:
        for held, given in zip(tensors(case), tensors(other), strict=True):
            held.copy_(given)
        graph.replay()
        torch.cuda.synchronize()
        for layer in range(2):
            expected_TNH, expected_kv = expect(other, params, torch.float32, layer)
            found = out_2TNH[layer].cpu()
            torch.testing.assert_close(found, expected_TNH, atol=TOLERANCE[torch.float32], rtol=0)
            assert torch.equal(case.kv[layer].cpu(), expected_kv[layer])


def tensors(case: Forward) -> list[Tensor]:
    fields = [getattr(case, name) for name in ("kv", "req_to_token_RC", "q_TNH", "k_TGH", "v_TGH")]
    return [*fields, *(part for part in vars(case.rows).values() if part is not None)]
