"""The kernels of `triton_attention` in Triton's interpreter, against `paged.dense`. Run by test_triton_attention.py.

The interpreter is chosen once, when triton is imported; so these tests have a process of their own.
"""

from dataclasses import replace

import pytest
import torch
from tests.kernels.paged_cases import CASES, PLAIN, TREES, Forward, Shape, forward

from eyas.kernels import attention_split, triton_attention
from eyas.kernels.attention_split import choose_split
from eyas.kernels.paged_attention import dense_paged_attention
from eyas.kernels.triton_attention import TritonAttention, pack_words
from eyas.model.attention import AttentionParams, PackedAttention

FEW, MANY = 1, 12  # processors to fill: one part a tile, several parts


def both(
    case: Forward, params: AttentionParams, num_processors: int, layer: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output of the kernels and of the reference; afterwards memory must be the same, to the bit."""
    memory, reference = case.kv.clone(), case.kv.clone()
    operands = case.q_TNH, case.k_TGH, case.v_TGH
    out_TNH = TritonAttention(memory, case.req_to_token_RC, case.rows, num_processors)(layer, *operands, params)
    expected_TNH = dense_paged_attention(
        *operands, reference[layer, 0], reference[layer, 1], case.req_to_token_RC, case.rows, params
    )
    assert torch.equal(memory.view(torch.uint8), reference.view(torch.uint8))
    return out_TNH, expected_TNH


@pytest.mark.parametrize("num_processors", [FEW, pytest.param(MANY, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", CASES)
def test_equals_dense(name: str, num_processors: int):
    shape, params = CASES[name]
    out_TNH, expected_TNH = both(forward(shape, seed=len(name)), params, num_processors)
    torch.testing.assert_close(out_TNH, expected_TNH, atol=5e-6, rtol=0)


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 300])
def test_more_parts_than_there_is_to_read(length: int):
    """A part is at least one block of 32 columns, and what is too much returns without a trace."""
    case = forward(Shape((length,), (16,)), columns=600)
    out_TNH, expected_TNH = both(case, PLAIN, num_processors=200)
    torch.testing.assert_close(out_TNH, expected_TNH, atol=5e-6, rtol=0)


@pytest.mark.parametrize("num_processors", [1, 4])
def test_long_prefixes_are_cut_though_the_device_is_full(num_processors: int, monkeypatch: pytest.MonkeyPatch):
    """Parts of UNIT columns, though one part a tile would fill the processors; longer ones where these are few."""
    monkeypatch.setattr(attention_split, "UNIT", 64)
    monkeypatch.setattr(attention_split, "FULL", 0)
    case = forward(Shape((300, 20, 130), (3, 5, 1)))
    out_TNH, expected_TNH = both(case, AttentionParams(0.3, window=250), num_processors)
    torch.testing.assert_close(out_TNH, expected_TNH, atol=5e-6, rtol=0)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(2, 6))])
def test_random_forwards(seed: int):
    """Ragged requests of random sizes; requests without rows among them."""
    random = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int, count: int) -> tuple[int, ...]:
        return tuple(torch.randint(low, high, (count,), generator=random).tolist())

    (num_requests,) = draw(1, 7, 1)
    num_own = (1, 5, 16, 33, 64, 65)[seed]
    lengths, num_rows = draw(0, 140, num_requests), draw(0, min(num_own, 10) + 1, num_requests)
    shape = Shape((*lengths, 7), (*num_rows, 1), ("tree", "causal", "levels")[seed % 3], num_own, (6, 2), 24)
    params = (PLAIN, AttentionParams(0.2, softcap=3.0), AttentionParams(0.4, sinks_N=torch.randn(6, generator=random)))[
        seed // 2
    ]
    out_TNH, expected_TNH = both(forward(shape, seed), params, (FEW, MANY)[seed % 2])
    torch.testing.assert_close(out_TNH, expected_TNH, atol=5e-6, rtol=0)


def test_rows_are_written_to_their_slots_and_nowhere_else():
    case = forward(TREES)
    memory, layer = case.kv.clone(), 2
    TritonAttention(memory, case.req_to_token_RC, case.rows, FEW)(layer, case.q_TNH, case.k_TGH, case.v_TGH, PLAIN)
    slots_T = case.rows.slots_T.long()
    torch.testing.assert_close(memory[layer, 0, slots_T], case.k_TGH, atol=0, rtol=0)
    torch.testing.assert_close(memory[layer, 1, slots_T], case.v_TGH, atol=0, rtol=0)
    memory[layer, :, slots_T] = case.kv[layer, :, slots_T]
    assert torch.equal(memory, case.kv)


@pytest.mark.parametrize("name", ["trees", "64 nodes", "draft levels", "causal beyond a block", "head size 80"])
def test_slots_that_no_row_sees_are_not_read(name: str):
    """They hold what others left, or NaN."""
    case, params = forward(CASES[name][0]), CASES[name][1]
    _, expected_TNH = both(case, params, FEW)
    for num_processors in (FEW, MANY):
        poisoned = case.poisoned()
        attention = TritonAttention(poisoned.kv, case.req_to_token_RC, case.rows, num_processors)
        out_TNH = attention(1, case.q_TNH, case.k_TGH, case.v_TGH, params)
        torch.testing.assert_close(out_TNH, expected_TNH, atol=5e-6, rtol=0)


@pytest.mark.parametrize("num_processors", [FEW, MANY])
def test_a_row_that_sees_nothing_is_zero(num_processors: int):
    """Rows that fill up a static shape may see nothing; they must not make numbers that spread."""
    case = forward(Shape((0, 0), (2, 3)))
    assert case.rows.visible_TE is not None
    case.rows.visible_TE[1] = False
    attention = TritonAttention(case.kv, case.req_to_token_RC, case.rows, num_processors)
    out_TNH = attention(0, case.q_TNH, case.k_TGH, case.v_TGH, PLAIN)
    assert torch.equal(out_TNH[1], torch.zeros_like(out_TNH[1]))
    assert bool(out_TNH.isfinite().all())


@pytest.mark.parametrize("rows_dtype", [torch.float16, torch.float32])
def test_memory_of_16_bits(rows_dtype: torch.dtype):
    """Products of 16-bit numbers, sums in float32: as far from the reference in float32 as weights of 16 bits are.

    The interpreter multiplies bfloat16 as integers, so this is float16; tests/gpu has bfloat16.
    """
    rounded = forward(TREES).on("cpu", torch.float16)
    _, expected_TNH = both(rounded.on("cpu", torch.float32), PLAIN, FEW)
    q_TNH, k_TGH, v_TGH = (part.to(rows_dtype) for part in (rounded.q_TNH, rounded.k_TGH, rounded.v_TGH))
    attention = TritonAttention(rounded.kv, rounded.req_to_token_RC, rounded.rows, MANY)
    out_TNH = attention(1, q_TNH, k_TGH, v_TGH, PLAIN)
    assert out_TNH.dtype == rows_dtype
    torch.testing.assert_close(out_TNH.float(), expected_TNH, atol=3e-3, rtol=0)


def test_memory_of_8_bits():
    """With rows that 8 bits hold exactly: the interpreter cuts off what a GPU rounds."""
    case, fp8 = forward(TREES), torch.float8_e4m3fn
    k_TGH, v_TGH = case.k_TGH.to(fp8).float(), case.v_TGH.to(fp8).float()
    out_TNH, expected_TNH = both(replace(case, kv=case.kv.to(fp8), k_TGH=k_TGH, v_TGH=v_TGH), PLAIN, MANY)
    torch.testing.assert_close(out_TNH, expected_TNH, atol=5e-6, rtol=0)
    _, exact_TNH = both(case, PLAIN, MANY)
    assert 0.001 < float((out_TNH - exact_TNH).norm() / exact_TNH.norm()) < 0.1


@pytest.mark.parametrize("heads_first", [False, True])
def test_in_the_layout_of_a_model(heads_first: bool):
    """A model hands over [1, N, T, H]: cut out of one product for q, k and v, or laid out like that by what follows."""
    case = forward(TREES)
    _, expected_TNH = both(case, PLAIN, FEW)
    whole = torch.cat((case.q_TNH, case.k_TGH, case.v_TGH), 1)[None].transpose(1, 2)
    parts = whole.split((4, 2, 2), 1)
    q_BNTH, k_BGTH, v_BGTH = (part.contiguous() if heads_first else part for part in parts)
    attend = PackedAttention(TritonAttention(case.kv.clone(), case.req_to_token_RC, case.rows, FEW))
    out_BNTH = attend(1, q_BNTH, k_BGTH, v_BGTH, PLAIN)
    torch.testing.assert_close(out_BNTH[0].transpose(0, 1), expected_TNH, atol=5e-6, rtol=0)


def test_one_object_serves_layers_with_different_rules():
    case = forward(TREES)
    attention = TritonAttention(case.kv.clone(), case.req_to_token_RC, case.rows, FEW)
    for layer, params in enumerate((AttentionParams(0.3, window=20), PLAIN, AttentionParams(0.3, window=9))):
        _, expected_TNH = both(case, params, FEW, layer)
        out_TNH = attention(layer, case.q_TNH, case.k_TGH, case.v_TGH, params)
        torch.testing.assert_close(out_TNH, expected_TNH, atol=5e-6, rtol=0)


def test_a_table_cut_to_a_bound():
    case = forward(TREES, columns=500)
    _, expected_TNH = both(case, PLAIN, MANY)
    bounded = replace(case, req_to_token_RC=case.req_to_token_RC[:, :70])
    attention = TritonAttention(case.kv.clone(), bounded.req_to_token_RC, case.rows, MANY)
    out_TNH = attention(1, case.q_TNH, case.k_TGH, case.v_TGH, PLAIN)
    torch.testing.assert_close(out_TNH, expected_TNH, atol=5e-6, rtol=0)


def test_no_rows():
    case = forward(Shape((5, 3), (0, 0)))
    out_TNH, _ = both(case, PLAIN, FEW)
    assert out_TNH.shape == (0, 4, 16)


def test_words_of_a_mask():
    visible_TE = torch.zeros(3, 70, dtype=torch.bool)
    visible_TE[0, [0, 63]] = True
    visible_TE[1, 64:66] = True
    visible_TE[2] = True
    words_TW = pack_words(visible_TE)
    assert words_TW.tolist() == [[1 - 2**63, 0], [0, 3], [-1, 63]]
    assert pack_words(visible_TE[:, :64]).tolist() == [[1 - 2**63], [0], [-1]]


class Recorder:
    """Stands where a kernel is launched: keeps the grid."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> "Recorder":
        self.grids.append(grid)
        return self

    def __call__(self, *operands: object, **choices: object) -> None:
        pass


@pytest.mark.parametrize("name", ["trees", "causal", "everything"])
def test_the_host_asks_for_shapes_alone(name: str, monkeypatch: pytest.MonkeyPatch):
    """Tensors of the meta device have no numbers: whoever reads one fails. So a CUDA graph can be captured."""
    shape, params = CASES[name]
    grids = []
    for kernel in ("_write", "_parts", "_merge"):
        recorder = Recorder()
        monkeypatch.setattr(triton_attention, kernel, recorder)
        grids.append(recorder.grids)
    case = forward(shape, columns=5000).on("meta", torch.float32)
    attention = TritonAttention(case.kv, case.req_to_token_RC, case.rows, 132)
    out_TNH = attention(0, case.q_TNH, case.k_TGH, case.v_TGH, params)
    assert out_TNH.shape == case.q_TNH.shape
    # 18 rows of 4 requests: tiles of 16 packed rows, which are 8 rows of 2 heads
    assert [grid[:2] for part in grids for grid in part] == [(18,), (2, 18 // 8 + 4), (18, 4)]


def test_parts_for_a_device_of_132_processors():
    def split(num_programs: int, columns: int) -> tuple[int, int]:
        return choose_split(num_programs, columns // 64 + 1, 2048 // 64, 132)

    assert split(8, 1024) == (33, 17), "one request, short: a block a part"
    assert split(8, 32768) == (33, 33), "one request: two programs a processor"
    assert split(256, 1024) == (1, 1), "32 requests fill the device"
    assert split(256, 32768) == (1, 8), "and are cut where lengths may differ much"
    assert split(10000, 32768) == (1, 1)
    assert split(1, 10**6)[1] == 64
