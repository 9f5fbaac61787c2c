"""Attention inside a compiled forward: the operator eyas::attend of cpu_operator.cpp, and how it is built.

with attending(rows): ...    this thread's compiled forwards attend by `rows`
written_down                 the attention of a forward that is exported: a call of the operator
"""

import contextlib
import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from ctypes import c_int64, c_void_p
from functools import cache

import torch
from torch import Tensor

from eyas.base.errors import EyasError, StorageError
from eyas.kernels.build import TORCH_LIB, LibrarySource, build_library
from eyas.kernels.cpu_attention import HEADER
from eyas.model.attention import AttentionParams, PackedAttentionFn

NO_FIX = "nothing: the forwards run as they are, only slower"


_thread_state = threading.local()
_libraries: list[torch.library.Library] = []  # what is registered lasts as long as the library object


class CompileError(EyasError):
    """There is no compiled forward here; the reason is in `found`."""


def _source() -> LibrarySource:
    from torch.utils.cpp_extension import include_paths  # brings setuptools, which takes a while

    headers = (f"-I{path}" for path in include_paths())
    flags = ("-std=c++20", "-O2", "-fPIC", "-shared", *headers)
    return LibrarySource(
        HEADER.with_name("cpu_operator.cpp"), (HEADER,), flags, (f"-L{TORCH_LIB}", "-ltorch_cpu", "-lc10")
    )


@cache
def load_operator() -> Callable[..., None]:
    """`eyas_enter`; with it torch knows eyas::attend. CompileError where it cannot be built."""
    try:
        library = build_library(cpp_compiler(), _source())
        torch.ops.load_library(str(library))
    except (OSError, subprocess.SubprocessError, StorageError) as error:
        raise CompileError(f"an operator for attention that does not build ({error})", "g++", NO_FIX) from error
    enter = ctypes.CDLL(str(library)).eyas_enter
    enter.argtypes, enter.restype = (c_void_p, c_void_p, c_void_p, c_int64, c_int64), None
    in_python = torch.library.Library("eyas", "IMPL")
    in_python.impl("attend_in_python", _attend, "CPU")
    torch.library.register_fake("eyas::attend", _shape, lib=in_python)
    _libraries.append(in_python)
    return enter


@contextlib.contextmanager
def attention_scope(rows: PackedAttentionFn) -> Iterator[None]:
    """Within, this thread's forwards attend by these rows: in C++ where they are `native`, else through Python."""
    enter = load_operator()
    native = getattr(rows, "native", None)
    if native is None:
        _thread_state.rows = rows
        enter(None, None, None, 0, 0)
    else:
        enter(*native)
    try:
        yield
    finally:
        enter(None, None, None, 0, 0)
        _thread_state.rows = None


@cache
def _rule(scale: float, window: int | None, chunk: int | None, softcap: float | None) -> AttentionParams:
    """The same object every time: attention prepares a rule once."""
    return AttentionParams(scale, window, chunk, softcap)


def _attend(  # noqa: PLR0913, the fields of a rule
    q_TNH: Tensor,
    k_TGH: Tensor,
    v_TGH: Tensor,
    layer: int,
    scale: float,
    window: int | None,
    chunk: int | None,
    softcap: float | None,
    sinks_N: Tensor | None,
) -> Tensor:
    """`PackedAttentionFn` with the rule's fields as numbers."""
    params = (
        _rule(scale, window, chunk, softcap)
        if sinks_N is None
        else AttentionParams(scale, window, chunk, softcap, sinks_N)
    )
    return _thread_state.rows(layer, q_TNH, k_TGH, v_TGH, params).contiguous()


def _shape(q_TNH: Tensor, *_: object) -> Tensor:
    return q_TNH.new_empty(q_TNH.shape)


def exported_attention(layer: int, q_TNH: Tensor, k_TGH: Tensor, v_TGH: Tensor, params: AttentionParams) -> Tensor:
    """The attention of a forward that is exported."""
    r = params
    return torch.ops.eyas.attend(q_TNH, k_TGH, v_TGH, layer, r.scale, r.window, r.chunk, r.softcap, r.sinks_N)


def cpp_compiler() -> str:
    """The C++ compiler: $CXX, or g++."""
    return os.environ.get("CXX") or "g++"
