"""The operator of cpu_linear.c against torch: every number of rows of a tile, every dtype and vector length."""

import ctypes
import errno
import mmap
import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from tests.model.test_head import CONFIG
from torch import Tensor, nn

from eyas.kernels import cpu_attention, cpu_linear
from eyas.kernels.attention_op import load_operator
from eyas.kernels.cpu_attention import Unavailable
from eyas.kernels.cpu_linear import PackedLinear, PackedWeight, can_pack, is_packed, pack_linears
from eyas.kernels.huge_pages import ALIGNMENT, PAGE, HugePages
from eyas.model.head import Head

F32, BF16 = torch.float32, torch.bfloat16
# (inputs, outputs): one panel and many, panels that are not whole, an odd number of inputs.
SIZES = [(64, 32), (7, 5), (48, 200), (129, 97), (256, 512)]
# With one thread, 16 lanes and few rows, the last tile of these has 1 to 6 panels.
LAST_TILES = [(34, 32 * (6 + panels)) for panels in range(1, 7)]
ROWS = [1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 17, 25, 33, 250, 290]
NARROWER = {"-march=x86-64": "sse2", "-march=haswell": "avx2", "-march=skylake-avx512": "avx512vl"}


def layer(num_in: int, num_out: int, dtype: torch.dtype, bias: bool = True) -> nn.Linear:
    torch.manual_seed(num_in)
    return nn.Linear(num_in, num_out, bias=bias, dtype=dtype).requires_grad_(False)


def inputs(rows: int, num_in: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(rows, num_in, generator=torch.Generator().manual_seed(rows)).to(dtype)


def assert_equals_torch(found: Tensor, x: Tensor, linear: nn.Linear) -> None:
    """Compares with the product in float64. A bfloat16 result may differ by its rounding."""
    bias = None if linear.bias is None else linear.bias.double()
    expected = F.linear(x.double(), linear.weight.double(), bias)
    assert found.dtype == x.dtype
    rtol, atol = (2**-8, 1e-4) if x.dtype == BF16 else (1e-5, 1e-5)
    torch.testing.assert_close(found.double(), expected, rtol=rtol, atol=atol)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("size", SIZES + LAST_TILES, ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_equals_torch(size: tuple[int, int], dtype: torch.dtype, threads: int) -> None:
    linear = layer(*size, dtype)
    packed = PackedWeight([linear])
    for rows in ROWS:
        x = inputs(rows, size[0], dtype)
        assert_equals_torch(packed(x), x, linear)


@pytest.mark.skipif(not can_pack(F32), reason="needs the linear operator")
def test_the_layers_of_a_module_lie_side_by_side_on_large_pages() -> None:
    module = nn.Sequential(*(layer(*size, F32) for size in SIZES))
    pack_linears(module)
    packed = [part.packed for part in module.modules() if isinstance(part, PackedWeight)]
    ends = [-(-(part.data_ptr() + part.nbytes) // ALIGNMENT) * ALIGNMENT for part in packed]
    assert packed[0].data_ptr() % PAGE == 0
    assert [part.data_ptr() for part in packed[1:]] == ends[:-1]
    x = inputs(3, SIZES[-1][0], F32)
    last = module[-1]
    assert_equals_torch(last(x), x, layer(*SIZES[-1], F32))


def test_without_large_pages_the_memory_has_usual_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(mmap.mmap):
        def madvise(self, *_: object) -> None:
            raise OSError(errno.EINVAL, "no large pages")

    monkeypatch.setattr(mmap, "mmap", Refusing)
    weight = torch.arange(6.0).view(2, 3).t()
    copy = HugePages(64).copy(weight)
    assert copy.is_contiguous()
    assert torch.equal(copy, weight)


@pytest.mark.parametrize("flag", NARROWER)
def test_narrower_vectors(flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = Path("/proc/cpuinfo").read_text().split() if platform.machine() == "x86_64" else []
    if NARROWER[flag] not in known:
        pytest.skip(f"this CPU has no {NARROWER[flag]}")
    flags = tuple(flag if one == "-march=native" else one for one in cpu_attention.FLAGS)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cpu_attention, "SOURCE", replace(cpu_attention.SOURCE, flags=flags))
    library = cpu_linear.load_cpu_library()
    assert isinstance(library, ctypes.CDLL), library
    library.eyas_linear.argtypes = (ctypes.c_void_p,)
    monkeypatch.setattr(cpu_linear, "linear_library", lambda: library)
    for size in SIZES:
        for dtype in (F32, BF16):
            linear = layer(*size, dtype)
            packed = PackedWeight([linear])
            for rows in ROWS:
                x = inputs(rows, size[0], dtype)
                assert_equals_torch(packed(x), x, linear)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_a_row_does_not_depend_on_the_others(dtype: torch.dtype) -> None:
    packed = PackedWeight([layer(129, 97, dtype)])
    x = inputs(300, 129, dtype)
    alone = torch.cat([packed(row[None]) for row in x])
    for rows in ROWS:
        assert torch.equal(packed(x[:rows]), alone[:rows])


def test_inputs_of_any_shape_and_stride() -> None:
    linear = layer(64, 40, BF16)
    packed = PackedWeight([linear])
    x = inputs(24, 128, BF16)[:, ::2]
    assert_equals_torch(packed(x), x, linear)
    assert torch.equal(packed(x.view(2, 3, 4, 64)), packed(x).view(2, 3, 4, 40))
    assert packed(x[:0]).shape == (0, 40)


def test_other_inputs_are_refused() -> None:
    packed = PackedWeight([layer(64, 40, BF16)])
    trained = torch.zeros(2, 64, dtype=BF16, requires_grad=True)
    for x in (torch.zeros(2, 64), torch.zeros(2, 63, dtype=BF16), trained):
        with pytest.raises(AssertionError):
            packed(x)


def test_numbers_that_are_no_numbers() -> None:
    """Infinity and NaN spread to their own row alone."""
    packed = PackedWeight([layer(64, 40, BF16, bias=False)])
    x = inputs(5, 64, BF16)
    clean = packed(x)
    x[1, 3], x[2, 5] = float("nan"), float("inf")
    found = packed(x)
    assert found[1].isnan().all()
    assert not found[2].isfinite().any()
    assert torch.equal(found[[0, 3, 4]], clean[[0, 3, 4]])


class Attention(nn.Module):
    """Three layers with one input, in the names that models use, and a fourth."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.q_proj, self.k_proj = layer(64, 96, dtype, bias=False), layer(64, 40, dtype)
        self.v_proj, self.o_proj = layer(64, 24, dtype, bias=False), layer(24, 64, dtype)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return self.o_proj(q[..., :24] * k[..., :24] * v)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_layers_with_one_input_are_one_call(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Attention(dtype)
    x, before = inputs(9, 64, dtype), {name: weight.clone() for name, weight in module.state_dict().items()}
    expected = module(x)
    pack_linears(module)
    calls: list[int] = []
    forward = PackedWeight.forward
    monkeypatch.setattr(PackedWeight, "forward", lambda self, x: calls.append(self.num_out) or forward(self, x))
    torch.testing.assert_close(module(x), expected, rtol=0.02, atol=0.02)
    torch.testing.assert_close(module(x), expected, rtol=0.02, atol=0.02)
    assert calls == [160, 64, 160, 64]
    after = module.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    assert module.q_proj.bias is None


def test_layers_with_one_input_in_any_order() -> None:
    """Another input is computed anew, also before all layers have read the first."""
    module = Attention(F32)
    pack_linears(module)
    first, second = inputs(3, 64, F32), inputs(4, 64, F32)
    alone = {x: [module.q_proj(x.clone()), module.v_proj(x.clone())] for x in (first, second)}
    assert torch.equal(module.q_proj(first), alone[first][0])
    assert torch.equal(module.q_proj(second), alone[second][0])
    assert torch.equal(module.v_proj(second), alone[second][1])
    assert torch.equal(module.v_proj(first), alone[first][1])


def test_what_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(nn.Linear(4, 4, dtype=torch.float64), nn.LayerNorm(4), nn.Bilinear(4, 4, 4))
    pack_linears(module)
    assert not is_packed(module)
    monkeypatch.setattr(cpu_linear, "linear_library", lambda: Unavailable("no compiler"))
    assert not can_pack(F32)
    module = Attention(F32)
    pack_linears(module)
    assert not is_packed(module)


@pytest.mark.parametrize("units", [0, 1])
def test_layers_of_bfloat16_need_the_matrix_units_of_the_processor(units: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(cpu_linear, "linear_library", lambda: SimpleNamespace(eyas_linear_units=lambda: units))
    assert (can_pack(F32), can_pack(BF16)) == (True, bool(units))


def test_a_head_computes_the_same() -> None:
    plain, packed = (Head.init(CONFIG, 3) for _ in range(2))
    pack_linears(packed)
    assert isinstance(packed.lm_head, PackedLinear)
    x = inputs(6, plain.config.hidden_size, F32)
    torch.testing.assert_close(packed.logits(x), plain.logits(x))
    torch.testing.assert_close(packed.midlayer.mlp(x), plain.midlayer.mlp(x))


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_the_operator_of_compiled_forwards(dtype: torch.dtype) -> None:
    load_operator()
    packed = PackedWeight([layer(33, 50, dtype)])
    x = inputs(9, 33, dtype)
    assert torch.equal(torch.ops.eyas.packed_linear(x, packed.packed, packed.bias_N, 50), packed(x))
    assert torch.ops.eyas.packed_linear(x.view(3, 3, 33), packed.packed, None, 50).shape == (3, 3, 50)
    for wrong in (x[:, :20], x.to(torch.float64)):
        with pytest.raises(RuntimeError):
            torch.ops.eyas.packed_linear(wrong, packed.packed, None, 50)
