"""Paged attention on a CPU: calls the operator of cpu_attention.c. Builds the library of the CPU operators.

T rows, B requests, N heads, G key-value heads, H head size, R request slots, C columns, Z KV slots.

    call                                    returns                          how often
    load_cpu_attention()                    CpuKernel, or Unavailable        once per process
    unsupported_reason(dtype, head_dim)     None, or the reason              once per forward
    kernel(kv, req_to_token_RC, metadata)   CpuAttention                     once per forward; fills one C struct
    attention(layer, q, k, v, params)       out_TNH                          once per layer

Where there is no operator, or it does not support the KV memory, callers use `paged_attention.prepare_dense`.
"""

import ctypes
import dataclasses
import os
import shutil
import subprocess
from ctypes import c_float, c_int, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from eyas.base.errors import StorageError
from eyas.kernels.build import LibrarySource, build_library, openmp
from eyas.kernels.paged_attention import AttentionMetadata
from eyas.model.attention import AttentionParams

HEADER = Path(__file__).with_name("cpu_attention.h")
LINEAR_HEADER = HEADER.with_name("cpu_linear.h")
HEADERS = (HEADER, LINEAR_HEADER, HEADER.with_name("cpu_thread_pool.h"), HEADER.with_name("cpu_vectors.h"))
# No -ffast-math: a masked score is an infinity. The two -fno-* allow vector selections and change no result.
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC", "-shared")
LINKS = ("-Wl,--as-needed", *openmp(), "-lm")
MORE = (LINEAR_HEADER.with_suffix(".c"), HEADER.with_name("cpu_thread_pool.c"))
SOURCE = LibrarySource(HEADER.with_suffix(".c"), HEADERS, FLAGS, LINKS, MORE)
# The library of prebuild.py: for any x86-64 with AVX2 instead of the building machine.
PORTABLE_FLAGS = tuple("-march=x86-64-v3" if flag == "-march=native" else flag for flag in FLAGS)
PORTABLE = dataclasses.replace(SOURCE, flags=PORTABLE_FLAGS)
PORTABLE_NEEDS = ("AVX2", "AVX512")  # torch's names of CPU capabilities
PREBUILT_VARIABLE = "EYAS_CPU_OPERATOR"  # the library's path, for machines without a compiler
TYPES = (torch.float32, torch.bfloat16)
MAX_HEAD_DIM = 1024  # ROOM of cpu_attention.c holds 16 rows of it, the longest vector
REASON_LENGTH = 300  # characters of a compiler message, on one line


@dataclass(frozen=True)
class Unavailable:
    """The result of `load_cpu_library` on a machine that has no operators. reason: why, on one line."""

    reason: str


def unsupported_reason(dtype: torch.dtype, head_dim: int) -> str | None:
    """Returns why the operator does not support KV memory of this dtype and head size; None if it supports it."""
    if dtype not in TYPES:
        return f"the operator supports {' and '.join(map(str, TYPES))}, not {dtype}"
    if head_dim > MAX_HEAD_DIM:
        return f"the operator supports head sizes up to {MAX_HEAD_DIM}, not {head_dim}"
    return None


class _Forward(ctypes.Structure):
    """The struct `forward` of cpu_attention.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("starts", "lines", "lengths", "slots", "own", "positions", "table", "visible")),
        ("own_positions", c_void_p),
        *((name, c_int64) for name in ("q_row", "q_head", "k_row", "k_head", "v_row", "v_head")),
        *((name, c_int32) for name in ("num_requests", "num_rows", "num_heads", "num_kv_heads", "head_dim", "num_own")),
        *((name, c_int32) for name in ("num_columns", "num_threads", "new_is_bf16", "memory_is_bf16")),
    )


class _Rule(ctypes.Structure):
    """The struct `rule` of cpu_attention.h: the fields of AttentionParams. 0 stands for None."""

    _fields_ = (("sinks", c_void_p), ("scale", c_float), ("softcap", c_float), ("window", c_int32), ("chunk", c_int32))


class CpuKernel:
    """The loaded operator. It implements `PrepareAttention`: a call prepares one forward."""

    def __init__(self, library: ctypes.CDLL) -> None:
        bytes_of = library.eyas_struct_bytes
        bytes_of.argtypes, bytes_of.restype = (c_int,), c_int64
        assert (bytes_of(0), bytes_of(1)) == (ctypes.sizeof(_Forward), ctypes.sizeof(_Rule)), "the structs differ"
        self.attend = library.eyas_attend
        self.attend.argtypes, self.attend.restype = (c_void_p,) * 8, c_int
        self.address = ctypes.cast(self.attend, c_void_p).value

    def __call__(self, kv: Tensor, req_to_token_RC: Tensor, metadata: AttentionMetadata) -> "CpuAttention":
        """Returns the attention of one forward.

        Args:
            kv: KV memory [layers, 2, Z, G, H], float32 or bfloat16.
            req_to_token_RC: the KV slot of each column of each request slot, int32.
            metadata: the rows of the forward.
        """
        return CpuAttention(self, kv, req_to_token_RC, metadata)


class CpuAttention:
    """The attention of one forward. It implements `PackedAttentionFn`. Requirement: one thread calls it at a time.

    It computes with torch.get_num_threads() threads, read at construction. With little work it uses one thread.
    """

    def __init__(self, kernel: CpuKernel, kv: Tensor, req_to_token_RC: Tensor, metadata: AttentionMetadata) -> None:
        assert unsupported_reason(kv.dtype, kv.shape[4]) is None, unsupported_reason(kv.dtype, kv.shape[4])
        assert kv[0, 0].is_contiguous(), kv.stride()
        assert kv.is_cpu, "the operator needs CPU tensors"
        m = metadata
        sizes = (m.starts_B1, m.req_slots_B, m.lengths_B, m.slots_T, m.block_slots_BE, m.positions_T)
        held = [_index(part) for part in (*sizes, req_to_token_RC)]
        visible_TE = None if metadata.visible_TE is None else metadata.visible_TE.contiguous()
        assert visible_TE is None or visible_TE.dtype == torch.bool, "the tree mask is bool"
        own_positions_BE = None if m.own_positions_BE is None else _index(m.own_positions_BE)
        self._held = (kv, held, visible_TE, own_positions_BE)  # keeps alive what the addresses below point to
        f = self._forward = _Forward(*(part.data_ptr() for part in held))
        f.visible = None if visible_TE is None else visible_TE.data_ptr()
        f.own_positions = None if own_positions_BE is None else own_positions_BE.data_ptr()
        f.num_columns, f.num_requests, f.num_rows = req_to_token_RC.shape[1], len(m.req_slots_B), len(m.slots_T)
        f.num_kv_heads, f.head_dim, f.num_own = kv.shape[3], kv.shape[4], metadata.block_slots_BE.shape[1]
        f.num_threads, f.memory_is_bf16 = torch.get_num_threads(), kv.dtype == torch.bfloat16
        self._attend = kernel.attend
        self._forward_at = ctypes.addressof(f)
        size, (to_layer, to_values, *_) = kv.element_size(), kv.stride()
        self.native = (kernel.address, self._forward_at, kv.data_ptr(), to_layer * size, to_values * size)
        """Arguments of `eyas_enter` in cpu_operator.cpp: the addresses of the C function, of the forward struct and of
        layer 0's keys; the bytes from one layer to the next; the bytes from keys to values."""

    def __call__(self, layer: int, q_TNH: Tensor, k_TGH: Tensor, v_TGH: Tensor, params: AttentionParams) -> Tensor:
        """Computes one layer. Writes the rows' keys and values to their KV slots before it attends to them.

        Returns:
            out_TNH, contiguous, with the dtype of q_TNH.
        """
        sinks_N = None if params.sinks_N is None else params.sinks_N.float().contiguous()
        sinks_at = None if sinks_N is None else sinks_N.data_ptr()
        rule = _Rule(sinks_at, params.scale, params.softcap or 0.0, params.window or 0, params.chunk or 0)
        q_TNH, k_TGH, v_TGH = (part if part.stride(2) == 1 else part.contiguous() for part in (q_TNH, k_TGH, v_TGH))
        self._take_operands(q_TNH, k_TGH, v_TGH)
        out_TNH = torch.empty_like(q_TNH, memory_format=torch.contiguous_format)
        _, _, keys_at, layer_bytes, keys_to_values = self.native
        keys_at += layer * layer_bytes
        failed = self._attend(
            self._forward_at,
            ctypes.addressof(rule),
            q_TNH.data_ptr(),
            k_TGH.data_ptr(),
            v_TGH.data_ptr(),
            keys_at,
            keys_at + keys_to_values,
            out_TNH.data_ptr(),
        )
        if failed:
            raise MemoryError("the CPU attention operator could not allocate memory for its partial sums")
        return out_TNH

    def _take_operands(self, q_TNH: Tensor, k_TGH: Tensor, v_TGH: Tensor) -> None:
        """Checks q, k and v, and writes their sizes and strides into the C struct."""
        f, num_heads, dtype = self._forward, q_TNH.shape[1], q_TNH.dtype
        assert q_TNH.shape == (f.num_rows, num_heads, f.head_dim), q_TNH.shape
        assert num_heads % f.num_kv_heads == 0, (num_heads, f.num_kv_heads)
        assert k_TGH.shape == v_TGH.shape == (f.num_rows, f.num_kv_heads, f.head_dim), (k_TGH.shape, v_TGH.shape)
        assert dtype in TYPES, dtype
        assert dtype == k_TGH.dtype == v_TGH.dtype, (dtype, k_TGH.dtype, v_TGH.dtype)
        f.num_heads, f.new_is_bf16 = num_heads, dtype == torch.bfloat16
        f.q_row, f.q_head, _ = q_TNH.stride()
        f.k_row, f.k_head, _ = k_TGH.stride()
        f.v_row, f.v_head, _ = v_TGH.stride()


def _index(part: Tensor) -> Tensor:
    """Asserts that an index tensor is int32 on the CPU. Returns it, copied if it is not contiguous."""
    assert part.dtype == torch.int32, part.dtype
    assert part.is_cpu, "the operator needs CPU tensors"
    return part.contiguous()


def find_compiler() -> str | None:
    """Returns the path of gcc, else of cc; None if neither is on the PATH."""
    return shutil.which("gcc") or shutil.which("cc")


def load_cpu_library() -> ctypes.CDLL | Unavailable:
    """Returns the library of the CPU operators (cpu_attention.c and cpu_linear.c), or the reason why there is none.

    With a C compiler on the PATH, the library is built on the first call and cached on disk. Without a compiler (in a
    container image, for example), the library at the path in EYAS_CPU_OPERATOR is loaded; see prebuild.py.
    """
    compiler, brought = find_compiler(), os.environ.get(PREBUILT_VARIABLE)
    if compiler is None and brought is None:
        return Unavailable("there is no gcc or cc on the PATH")
    if compiler is None and torch.backends.cpu.get_cpu_capability() not in PORTABLE_NEEDS:
        return Unavailable(f"{PREBUILT_VARIABLE} is for CPUs with AVX2, and there is no gcc or cc on the PATH")
    try:
        return ctypes.CDLL(str(build_library(compiler, SOURCE)) if compiler is not None else str(brought))
    except subprocess.CalledProcessError as error:
        return Unavailable(f"{compiler} failed: {' '.join(error.stderr.split())[:REASON_LENGTH]}")
    except (OSError, subprocess.TimeoutExpired, StorageError) as error:
        return Unavailable(f"the operators cannot be built or loaded: {error}")


def load_cpu_attention() -> CpuKernel | Unavailable:
    """Returns the attention operator, or the reason why there is none."""
    library = load_cpu_library()
    return library if isinstance(library, Unavailable) else CpuKernel(library)
