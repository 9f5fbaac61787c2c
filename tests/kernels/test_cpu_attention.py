"""The operator of cpu_attention.c against `paged.dense`: every form of a forward, every type, every vector length.

T rows, N heads, G key-value heads, H head size, Z slots.
"""

import errno
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.kernels.paged_cases import CASES, PLAIN, Forward, Shape, forward
from torch import Tensor

from eyas.base.errors import InputError
from eyas.kernels import build
from eyas.kernels import cpu_attention as cpu
from eyas.kernels.cpu_attention import CpuKernel, Unavailable, load_cpu_attention
from eyas.kernels.dispatch import attention_for_device, fallback_reason
from eyas.kernels.paged_attention import dense_paged_attention, prepare_dense
from eyas.kernels.prebuild import prebuild
from eyas.model.attention import AttentionParams

F32, BF16 = torch.float32, torch.bfloat16
LAYER = 1
ATOL = 1e-5  # sums of up to a thousand float32 products of size 1
MOST_NODES = 64  # of cpu_attention.c
SINKS_N = torch.tensor([0.5, -2.0, 30.0, 1.0])

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None and shutil.which("cc") is None, reason="no C compiler on the PATH"
)

# Where the cases of every implementation do not reach: many blocks of keys, many tiles of rows, keys in parts.
LONG: dict[str, tuple[Shape, AttentionParams]] = {
    "16 nodes behind 300": (Shape((300,), (16,), head_dim=64), PLAIN),
    "a row behind 1001": (Shape((1001,), (1,), head_dim=64), PLAIN),
    "three rows behind 1100, two heads": (Shape((1100,), (3,), heads=(2, 1), head_dim=64), PLAIN),
    "a row behind 1100, everything": (
        Shape((1100,), (1,), heads=(4, 1), head_dim=64),
        AttentionParams(0.5, window=700, softcap=9.0, sinks_N=SINKS_N),
    ),
    "some of each": (Shape((300, 0, 129, 517, 64, 1), (1, 8, 0, 16, 3, 2), head_dim=64), PLAIN),
    "70 rows of text": (Shape((65,), (70,), "causal", 70, head_dim=64), PLAIN),
    "prompts": (Shape((0, 30), (130, 70), "causal", 130, head_dim=80), PLAIN),
    "prompts, window": (Shape((0, 230), (130, 70), "causal", 130, head_dim=64), AttentionParams(0.2, window=90)),
    "prompts, groups of 3": (Shape((33,), (129,), "causal", 140, heads=(6, 2), head_dim=128), PLAIN),
    "prompts, everything": (
        Shape((300, 5), (130, 70), "causal", 130, heads=(4, 1), head_dim=64),
        AttentionParams(0.5, window=200, softcap=9.0, sinks_N=SINKS_N),
    ),
    "100 requests": (Shape((7, 0, 20, 3) * 25, (1, 2, 0, 3) * 25, num_own=4), PLAIN),
    "head size 8": (Shape((40,), (7,), head_dim=8), PLAIN),
    "head size 7": (Shape((40,), (7,), head_dim=7), PLAIN),
    "head size 320": (Shape((140,), (30,), num_own=30, heads=(2, 1), head_dim=320), AttentionParams(0.1)),
    "head size 1024": (Shape((40,), (20,), num_own=20, heads=(2, 1), head_dim=1024), AttentionParams(0.05)),
    "scores of hundreds": (Shape((200,), (16,), head_dim=64), AttentionParams(20.0)),
    "scores of thousands, softcap": (Shape((200,), (16,), head_dim=64), AttentionParams(200.0, softcap=30.0)),
}
ALL = CASES | LONG


@pytest.fixture(scope="session")
def kernel() -> CpuKernel:
    """A machine with a compiler has the operator: nothing is skipped because it does not build."""
    loaded = load_cpu_attention()
    assert isinstance(loaded, CpuKernel), loaded
    return loaded


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(kernel: CpuKernel, case: Forward, params: AttentionParams) -> tuple[Tensor, Tensor]:
    """What one layer returns, and memory afterwards."""
    memory = case.kv.clone()
    return kernel(memory, case.req_to_token_RC, case.rows)(LAYER, case.q_TNH, case.k_TGH, case.v_TGH, params), memory


def expect(case: Forward, params: AttentionParams) -> tuple[Tensor, Tensor]:
    """The same from the reference in float32: its numbers are those of the types, none is rounded on the way."""
    memory = case.kv.to(F32, copy=True)
    q, k, v = case.q_TNH.float(), case.k_TGH.to(case.kv.dtype).float(), case.v_TGH.to(case.kv.dtype).float()
    return dense_paged_attention(
        q, k, v, memory[LAYER, 0], memory[LAYER, 1], case.req_to_token_RC, case.rows, params
    ), memory


def weight_rounding(case: Forward) -> float:
    """Returns how far an output may be off where matrix units round the weights of prompts to bfloat16; 0 elsewhere."""
    library = cpu.load_cpu_library()
    assert not isinstance(library, Unavailable)
    is_prompt = int(case.rows.starts_B1.diff().max()) > MOST_NODES and case.q_TNH.shape[2] % 32 == 0
    return 2**-9 * float(case.kv.abs().max()) if library.eyas_linear_units() and is_prompt else 0.0


def assert_equals_dense(kernel: CpuKernel, case: Forward, params: AttentionParams, atol: float = ATOL) -> None:
    (out_TNH, memory), (expected_TNH, expected_memory) = run(kernel, case, params), expect(case, params)
    assert (out_TNH.dtype, out_TNH.is_contiguous()) == (case.q_TNH.dtype, True)
    rounding = 2**-8 if out_TNH.dtype == BF16 else 0.0
    torch.testing.assert_close(out_TNH.float(), expected_TNH, atol=atol, rtol=rounding)
    assert torch.equal(memory.float(), expected_memory)


def typed(case: Forward, new: torch.dtype, memory: torch.dtype) -> Forward:
    """q, k and v of one type, memory of another."""
    return replace(case.on("cpu", new), kv=case.kv.to(memory))


def tolerance(params: AttentionParams) -> float:
    """A score of size s has an error of s * 6e-8 in either implementation, and so have the weights."""
    return 5e-4 if params.scale > 1 else ATOL


@pytest.mark.parametrize("name", ALL)
def test_equals_dense(kernel: CpuKernel, name: str) -> None:
    shape, params = ALL[name]
    assert_equals_dense(kernel, forward(shape, seed=len(name)), params, tolerance(params))


@pytest.mark.parametrize("name", LONG)
def test_two_threads(kernel: CpuKernel, name: str) -> None:
    """Smaller forwards are not worth a second thread."""
    shape, params = LONG[name]
    torch.set_num_threads(2)
    assert_equals_dense(kernel, forward(shape, seed=len(name)), params, tolerance(params))


@pytest.mark.parametrize("name", ALL)
def test_bfloat16(kernel: CpuKernel, name: str) -> None:
    shape, params = ALL[name]
    case = typed(forward(shape, seed=len(name)), BF16, BF16)
    assert_equals_dense(kernel, case, params, tolerance(params) + weight_rounding(case))


def test_matrix_units_leave_trees_and_short_prompts_alone(kernel: CpuKernel) -> None:
    """With up to 64 rows of a request the weights are not rounded: a tree has the numbers of plain decoding."""
    shape = Shape((300,), (MOST_NODES,), "causal", MOST_NODES, head_dim=64)
    assert_equals_dense(kernel, typed(forward(shape), BF16, BF16), PLAIN)


@pytest.mark.parametrize(("new", "memory"), [(F32, BF16), (BF16, F32)], ids=["bfloat16 memory", "float32 memory"])
@pytest.mark.parametrize("name", LONG)
def test_memory_of_another_type(kernel: CpuKernel, name: str, new: torch.dtype, memory: torch.dtype) -> None:
    shape, params = LONG[name]
    assert_equals_dense(kernel, typed(forward(shape, seed=len(name)), new, memory), params, tolerance(params))


@pytest.mark.parametrize(
    ("dtype", "head_dim", "reason"),
    [
        (torch.float16, 16, "not torch.float16"),
        (torch.float64, 16, "not torch.float64"),
        (F32, 1026, "not 1026"),
        (F32, 1024, None),
        (BF16, 16, None),
    ],
)
def test_a_memory_that_the_operator_does_not_take_is_read_by_the_reference(
    kernel: CpuKernel, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, head_dim: int, reason: str | None
) -> None:
    """Of one engine: the memory of a head may be for the operator where that of its target is not."""
    asked: list[torch.dtype] = []
    real = CpuKernel.__call__
    monkeypatch.setattr(CpuKernel, "__call__", lambda self, kv, *rest: asked.append(kv.dtype) or real(self, kv, *rest))
    said = fallback_reason(dtype, head_dim)
    assert said is None if reason is None else said is not None and reason in said
    case = forward(Shape((40,), (7,), heads=(2, 1), head_dim=head_dim)).on("cpu", dtype)
    memory, expected_memory = case.kv.clone(), case.kv.clone()
    attention = attention_for_device(torch.device("cpu"))(memory, case.req_to_token_RC, case.rows)
    out_TNH = attention(0, case.q_TNH, case.k_TGH, case.v_TGH, AttentionParams(0.05))
    expected = prepare_dense(expected_memory, case.req_to_token_RC, case.rows)
    expected_TNH = expected(0, case.q_TNH, case.k_TGH, case.v_TGH, AttentionParams(0.05))
    torch.testing.assert_close(out_TNH, expected_TNH, atol=ATOL, rtol=2**-8 if dtype == BF16 else 0.0)
    assert torch.equal(memory, expected_memory)
    assert asked == ([] if reason else [dtype])


@pytest.mark.parametrize("seed", range(12))
def test_random_forwards(kernel: CpuKernel, seed: int) -> None:
    """Ragged requests of random sizes, requests without rows among them, on one thread and on three."""
    random = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int, count: int) -> tuple[int, ...]:
        return tuple(torch.randint(low, high, (count,), generator=random).tolist())

    (num_requests,) = draw(1, 7, 1)
    num_own = (1, 5, 16, 33, 64, 65)[seed % 6]
    heads, head_dim = ((4, 4), (4, 2), (4, 1), (6, 2))[seed % 4], (16, 64, 80, 128, 24)[seed % 5]
    lengths, num_rows = draw(0, 400, num_requests), draw(0, num_own + 1, num_requests)
    shape = Shape((*lengths, 7), (*num_rows, 1), ("tree", "causal", "levels")[seed % 3], num_own, heads, head_dim)
    sinks_N = torch.randn(heads[0], generator=random)
    rules = (
        PLAIN,
        AttentionParams(0.2, softcap=3.0),
        AttentionParams(0.4, sinks_N=sinks_N),
        AttentionParams(0.3, 50),
        AttentionParams(0.3, chunk=50),
    )
    params = rules[seed % 3 if shape.own == "levels" else seed % 5]
    new, memory = ((F32, F32), (BF16, BF16))[seed // 6]
    torch.set_num_threads((1, 3)[seed % 2])
    assert_equals_dense(kernel, typed(forward(shape, seed), new, memory), params)


@pytest.mark.parametrize("num_threads", [2, 5])
def test_parts_of_keys_and_threads_change_nothing_but_rounding(kernel: CpuKernel, num_threads: int) -> None:
    """One tile for several threads: its keys are shared out. The last row sees the prefix up to column 100 alone."""
    case = forward(Shape((2000,), (4,), "causal", 4, (1, 1), 64))
    visible_TE = torch.ones(4, 4, dtype=torch.bool).tril()
    positions_T = torch.tensor([2000, 2001, 2002, 3999], dtype=torch.int32)
    case = replace(case, rows=replace(case.rows, visible_TE=visible_TE, positions_T=positions_T))
    torch.set_num_threads(num_threads)
    for params in (
        PLAIN,
        AttentionParams(0.3, window=1999),
        AttentionParams(0.3, softcap=4.0, sinks_N=torch.tensor([3.0])),
    ):
        assert_equals_dense(kernel, case, params)


@pytest.mark.parametrize("num_rows", [1, 3, 20, 64])
def test_weights_are_those_of_float32(kernel: CpuKernel, num_rows: int) -> None:
    """A key that scores x beside one that scores 0 has the weight e^x / (1 + e^x)."""
    scores_T = torch.linspace(-4, 4, num_rows)
    q_TNH, k_TGH = torch.zeros(num_rows, 1, 16), torch.zeros(num_rows, 1, 16)
    q_TNH[:, 0, 3] = scores_T
    case = forward(Shape((2,), (num_rows,), num_own=num_rows, heads=(1, 1)))
    rows = replace(case.rows, visible_TE=torch.zeros(num_rows, num_rows, dtype=torch.bool))
    zero, one = case.req_to_token_RC[rows.req_slots_B[0], :2].tolist()
    case.kv[:, :, [zero, one]] = 0
    case.kv[LAYER, 0, one, 0, 3] = case.kv[LAYER, 1, one, 0] = 1
    out_TNH = kernel(case.kv, case.req_to_token_RC, rows)(LAYER, q_TNH, k_TGH, k_TGH, AttentionParams(1.0))
    expected_TNH = scores_T.double().sigmoid()[:, None, None].expand(-1, 1, 16)
    torch.testing.assert_close(out_TNH.double(), expected_TNH, atol=0, rtol=7e-7)


def test_own_columns_without_a_row_have_positions(kernel: CpuKernel) -> None:
    """A mask may show them, as for the levels of a draft. Where a rule counts positions, they are given."""
    case = forward(Shape((20, 30), (4, 3), num_own=9))
    own_positions_BE = torch.tensor([[20], [30]]) + torch.arange(9)[None] % 5
    rows = replace(case.rows, visible_TE=torch.ones(7, 9, dtype=torch.bool), own_positions_BE=own_positions_BE.int())
    case = replace(case, rows=rows)
    for window in (1, 2, 3, 7, 40):
        assert_equals_dense(kernel, case, AttentionParams(0.3, window=window))
    for params in (
        PLAIN,
        AttentionParams(0.3, chunk=100),
        AttentionParams(0.3, chunk=21),
        AttentionParams(0.3, chunk=4),
    ):
        assert_equals_dense(kernel, case, params)


@pytest.mark.parametrize("name", CASES)
def test_nothing_unseen_is_read(kernel: CpuKernel, name: str) -> None:
    """NaN in every slot that no row sees gives the same answer, bit by bit."""
    shape, params = CASES[name]
    case = forward(shape)
    assert torch.equal(run(kernel, case.poisoned(), params)[0], run(kernel, case, params)[0])


@pytest.mark.parametrize("name", ["trees", "causal", "draft levels"])
@pytest.mark.parametrize("memory", [F32, BF16], ids=str)
def test_writes_its_slots_and_nothing_else(kernel: CpuKernel, name: str, memory: torch.dtype) -> None:
    case = typed(forward(CASES[name][0]), F32, memory)
    slots_T = case.rows.slots_T.long()
    after = run(kernel, case, PLAIN)[1]
    assert torch.equal(after[LAYER, 0, slots_T], case.k_TGH.to(memory))
    assert torch.equal(after[LAYER, 1, slots_T], case.v_TGH.to(memory))
    after[LAYER, :, slots_T] = case.kv[LAYER, :, slots_T]
    assert torch.equal(after, case.kv)


def test_rows_that_mean_nothing_go_to_slot_0(kernel: CpuKernel) -> None:
    """Several rows of slot 0, in both requests; what the others see and write is as without them.

    Those of the second request, which has no prefix, see nothing at all.
    """
    case = forward(Shape((20, 0), (6, 5)))
    slots_T, padding = case.rows.slots_T.clone(), [4, 5, 9, 10]
    slots_T[padding] = 0
    assert case.rows.visible_TE is not None
    visible_TE = case.rows.visible_TE.clone()
    visible_TE[padding] = False
    padded = replace(case, rows=replace(case.rows, slots_T=slots_T, visible_TE=visible_TE))
    torch.set_num_threads(2)
    out_TNH, memory = run(kernel, padded, PLAIN)
    meant = [row for row in range(11) if row not in padding]
    torch.testing.assert_close(out_TNH[meant], expect(case, PLAIN)[0][meant], atol=ATOL, rtol=0)
    untouched_Z = torch.ones(case.kv.shape[2], dtype=torch.bool)
    untouched_Z[[0, *slots_T[meant].tolist()]] = False
    assert torch.equal(memory[:, :, untouched_Z], case.kv[:, :, untouched_Z])
    assert out_TNH[padding].isfinite().all()


def test_operands_that_are_parts_of_others(kernel: CpuKernel) -> None:
    """q, k and v as a model hands them over: cut from one projection, heads before rows; or a head not in one piece."""
    case = forward(Shape((70, 4), (16, 9), head_dim=64))
    whole_TNH = torch.cat((case.q_TNH, case.k_TGH, case.v_TGH), 1)
    cut = whole_TNH.split((4, 2, 2), 1)
    heads_first = [part.transpose(0, 1).contiguous().transpose(0, 1) for part in cut]
    strided = [part.transpose(1, 2).contiguous().transpose(1, 2) for part in cut]
    expected_TNH, expected_memory = run(kernel, case, PLAIN)
    attention = kernel(memory := case.kv.clone(), case.req_to_token_RC, case.rows)
    for q, k, v in (cut, heads_first, strided, cut):  # one after the other through one object, as layers would
        memory.copy_(case.kv)
        out_TNH = attention(LAYER, q, k, v, PLAIN)
        assert out_TNH.is_contiguous()
        assert torch.equal(out_TNH, expected_TNH)
        assert torch.equal(memory, expected_memory)


def test_each_layer_has_its_memory_and_its_rule(kernel: CpuKernel) -> None:
    case = forward(Shape((40,), (9,)))
    attention = kernel(case.kv, case.req_to_token_RC, case.rows)
    rules = PLAIN, AttentionParams(0.3, window=9), AttentionParams(0.5, sinks_N=SINKS_N)
    for layer, params in enumerate(rules):
        keys_ZGH, values_ZGH = case.kv[layer].clone()
        operands = case.q_TNH + layer, case.k_TGH - layer, case.v_TGH * (layer + 1)
        expected_TNH = dense_paged_attention(*operands, keys_ZGH, values_ZGH, case.req_to_token_RC, case.rows, params)
        torch.testing.assert_close(attention(layer, *operands, params), expected_TNH, atol=ATOL, rtol=0)
        assert torch.equal(case.kv[layer], torch.stack((keys_ZGH, values_ZGH)))


def test_a_forward_without_rows(kernel: CpuKernel) -> None:
    case = forward(Shape((20, 9), (0, 0)))
    out_TNH, memory = run(kernel, case, PLAIN)
    assert out_TNH.shape == (0, 4, 16)
    assert torch.equal(memory, case.kv)


def test_what_does_not_fit_is_not_read(kernel: CpuKernel) -> None:
    """Addresses go to C without a shape: operands are looked at in every layer."""
    case = forward(Shape((20,), (4,)))
    attention = kernel(case.kv, case.req_to_token_RC, case.rows)
    q, k, v = case.q_TNH, case.k_TGH, case.v_TGH
    attention(0, q, k, v, PLAIN)
    of_shape = (q[:3], k, v), (q, k[:3], v), (q, k, v[:, :1]), (q[..., :8], k, v)
    for operands in (*of_shape, (q.double(), k, v), (q, k.bfloat16(), v)):
        with pytest.raises(AssertionError):
            attention(0, *operands, PLAIN)
    with pytest.raises(AssertionError):
        kernel(case.kv.double(), case.req_to_token_RC, case.rows)
    with pytest.raises(AssertionError):
        kernel(case.kv, case.req_to_token_RC.long(), case.rows)


# --- other CPUs ------------------------------------------------------------------------------------------------------

# Flags that stand for -march=native, and what the CPU must have for them: 4, 8 and 16 lanes, no product of pairs.
NARROWER = {"-march=x86-64": "sse2", "-march=haswell": "avx2", "-march=skylake-avx512": "avx512vl"}


@pytest.fixture(scope="module", params=NARROWER)
def narrower(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CpuKernel:
    known = Path("/proc/cpuinfo").read_text().split() if platform.machine() == "x86_64" else []
    if NARROWER[request.param] not in known:
        pytest.skip(f"this CPU has no {NARROWER[request.param]}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        flags = tuple(request.param if flag == "-march=native" else flag for flag in cpu.FLAGS)
        patch.setattr(cpu, "SOURCE", replace(cpu.SOURCE, flags=flags))
        loaded = load_cpu_attention()
    assert isinstance(loaded, CpuKernel), loaded
    return loaded


@pytest.mark.parametrize("name", ALL)
def test_narrower_vectors(narrower: CpuKernel, name: str) -> None:
    shape, params = ALL[name]
    case = forward(shape, seed=len(name))
    assert_equals_dense(narrower, case, params, tolerance(params))
    assert_equals_dense(narrower, typed(case, BF16, BF16), params, tolerance(params))


# --- building --------------------------------------------------------------------------------------------------------

LOAD_AND_RUN = """
import json, os
import torch
from tests.kernels.paged_cases import PLAIN, Shape, forward
from eyas.kernels.cpu_attention import load_cpu_attention

def threads(): return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0
torch.set_num_threads(1)
case = forward(Shape((900,), (16,), head_dim=64))
kernel = load_cpu_attention()
before = threads()
out_TNH = kernel(case.kv, case.req_to_token_RC, case.rows)(0, case.q_TNH, case.k_TGH, case.v_TGH, PLAIN)
print(json.dumps({"sum": out_TNH.double().sum().item(), "more_threads": threads() - before}))
"""


# A compiler that takes no time: it copies the library that is there. Before that, it waits until all processes build.
COPYING_COMPILER = """#!/bin/sh
for word; do [ "$word" = "-###" ] && exec {compiler} "$@"; done
touch {building}/$$
for turn in $(seq 1200); do [ $(ls {building} | wc -l) -ge {processes} ] && break; sleep 0.05; done
while [ "$1" != -o ]; do shift; done
exec cp {library} "$2"
"""


def copying_compiler(place: Path, processes: int) -> str:
    """Writes the compiler to a new directory, and returns a PATH that begins with it."""
    compiler = cpu.find_compiler()
    assert compiler is not None
    library, building, binaries = build.library_path(compiler, cpu.SOURCE), place / "building", place / "bin"
    building.mkdir()
    binaries.mkdir()
    names = {"compiler": compiler, "building": building, "processes": processes, "library": library}
    (binaries / "gcc").write_text(COPYING_COMPILER.format(**names))
    (binaries / "gcc").chmod(0o755)
    return f"{binaries}:{os.environ['PATH']}"


def start(cache: Path, path: str) -> subprocess.Popen[str]:
    environment = os.environ | {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(Path(__file__).parents[2])}
    environment["PATH"] = path
    return subprocess.Popen([sys.executable, "-c", LOAD_AND_RUN], env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.usefixtures("kernel")
def test_two_processes_build_at_once(tmp_path: Path) -> None:
    """Both work, and one file is left. With one thread neither starts another."""
    cache, path = tmp_path / "cache", copying_compiler(tmp_path, processes=2)
    told = [json.loads(process.communicate()[0]) for process in [start(cache, path), start(cache, path)]]
    assert len(list((tmp_path / "building").iterdir())) == 2
    assert told[0] == told[1]
    assert told[0]["more_threads"] == 0
    assert [path.suffix for path in (cache / "eyas").iterdir()] == [".so"]


@pytest.mark.usefixtures("kernel")
def test_is_published_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped at its last step, a build has left nothing that another process could load."""

    def stop(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setenv("PATH", copying_compiler(tmp_path, processes=1))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "replace", stop)
    found = load_cpu_attention()
    assert isinstance(found, Unavailable)
    assert "No space left" in found.reason
    assert list((tmp_path / "cache" / "eyas").iterdir()) == []


def test_is_built_once(kernel: CpuKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found again by its name; another source, compiler or CPU has another name."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiler = shutil.which("gcc") or shutil.which("cc") or ""
    path = build.library_path(compiler, cpu.SOURCE)
    path.parent.mkdir()
    path.symlink_to(next(Path(line.split()[-1]) for line in maps() if "/cpu_attention-" in line))
    with monkeypatch.context() as patch:
        patch.setattr(build, "write_atomic", lambda *_: pytest.fail("built again"))
        assert isinstance(load_cpu_attention(), CpuKernel)
    for which in ("path", "headers"):
        other = tmp_path / f"cpu_attention{cpu.SOURCE.path.suffix}"
        text = cpu.SOURCE.path if which == "path" else cpu.HEADER
        other.write_text(text.read_text() + "\n")
        changed = other if which == "path" else (other,)
        assert build.library_path(compiler, replace(cpu.SOURCE, **{which: changed})) != path


def maps() -> list[str]:
    """What is mapped into this process."""
    path = Path("/proc/self/maps")
    if not path.exists():
        pytest.skip("no /proc here")
    return path.read_text().splitlines()


def test_one_openmp_runtime(kernel: CpuKernel) -> None:
    """Two of them would keep a team of threads each, and get into each other's way.

    In a process of its own: other tests load scikit-learn, which has one too.
    """
    maps()
    code = """
from pathlib import Path
from eyas.kernels.cpu_attention import load_cpu_attention
load_cpu_attention()
print(len({line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libgomp" in line}))
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.strip() == "1"


@pytest.mark.parametrize("damage", ["none", "fails", "says nothing of use", "no place"])
def test_without_a_compiler_there_is_a_reason(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if damage == "no place":
        (tmp_path / "cache").write_text("a file, where a directory should be")
    else:
        monkeypatch.setenv("PATH", str(tmp_path))
    scripts = {"fails": "echo 'no target here' >&2; exit 1", "says nothing of use": "exit 0"}
    if damage in scripts:
        (tmp_path / "gcc").write_text(f"#!/bin/sh\n{scripts[damage]}\n")
        (tmp_path / "gcc").chmod(0o755)
    reasons = {"none": "no gcc or cc", "fails": "no target here", "says nothing of use": ".so", "no place": "cache"}
    found = load_cpu_attention()
    assert isinstance(found, Unavailable)
    assert reasons[damage] in found.reason


def test_an_image_brings_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built for any CPU with AVX2 where there is a compiler, loaded where there is none: the same sums."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library = tmp_path / "brought" / "operator.so"
    prebuild(library)
    monkeypatch.setattr(cpu, "find_compiler", lambda: None)
    assert isinstance(load_cpu_attention(), Unavailable)
    monkeypatch.setenv(cpu.PREBUILT_VARIABLE, str(library))
    brought = load_cpu_attention()
    assert isinstance(brought, CpuKernel), brought
    for name in ("some of each", "prompts, window", "a row behind 1100, everything"):
        shape, params = LONG[name]
        assert_equals_dense(brought, forward(shape, seed=len(name)), params, tolerance(params))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    found = load_cpu_attention()
    assert isinstance(found, Unavailable), "an older CPU would die of it"
    assert "AVX2" in found.reason
    monkeypatch.undo()
    monkeypatch.setattr("eyas.kernels.prebuild.find_compiler", lambda: None)
    with pytest.raises(InputError, match="gcc or cc"):
        prebuild(library)
