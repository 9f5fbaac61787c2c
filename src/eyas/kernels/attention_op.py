"""Attention inside compiled forwards: the operator eyas::attend of cpu_operator.cpp. aot_compile uses it.

A compiled forward contains a call of this operator. At run time the operator calls the attention function that the
current thread has set.

    with attention_scope(attention): ...    sets `attention` for the compiled forwards of this thread
    exported_attention                      is passed to a forward that is exported; it calls the operator
"""

import contextlib
import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from ctypes import c_int64, c_void_p
from functools import cache
from typing import Any

import torch
from torch import Tensor

from eyas.base.errors import EyasError, StorageError
from eyas.kernels.build import TORCH_LIB, LibrarySource, build_library
from eyas.kernels.cpu_attention import HEADERS, Unavailable
from eyas.kernels.cpu_linear import linear_library
from eyas.model.attention import AttentionParams, PackedAttentionFn

_thread_state = threading.local()
_libraries: list[torch.library.Library] = []  # a registration lasts as long as its library object


class CompileError(EyasError):
    """A failure to compile a forward on this machine. The forward then runs uncompiled, which is slower."""


def _source() -> LibrarySource:
    from torch.utils.cpp_extension import include_paths  # imports setuptools, which is slow

    flags = ("-std=c++20", "-O2", "-fPIC", "-shared", *(f"-I{path}" for path in include_paths()))
    path = HEADERS[0].with_name("cpu_operator.cpp")
    return LibrarySource(path, HEADERS, flags, (f"-L{TORCH_LIB}", "-ltorch_cpu", "-lc10"))


@cache
def load_operator() -> Callable[..., None]:
    """Builds the library with eyas::attend and registers the operator with torch, once per process.

    Returns:
        The C function `eyas_enter`, which sets the attention function of the current thread.

    Raises:
        CompileError: the operator cannot be built.
    """
    try:
        library = build_library(cpp_compiler(), _source())
        loaded = ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)  # compiled forwards call its functions by name
        torch.ops.load_library(str(library))
    except (OSError, subprocess.SubprocessError, StorageError) as error:
        raise CompileError("The attention operator cannot be built", "Install g++") from error
    cpu_library = linear_library()
    enter = loaded.eyas_enter
    enter.argtypes, enter.restype = (c_void_p, c_void_p, c_void_p, c_int64, c_int64), None
    if not isinstance(cpu_library, Unavailable):
        loaded.eyas_set_linear(ctypes.cast(cpu_library.eyas_linear, c_void_p))
    in_python = torch.library.Library("eyas", "IMPL")
    in_python.impl("attend_in_python", _attend, "CPU")
    torch.library.register_fake("eyas::attend", lambda q_TNH, *_: q_TNH.new_empty(q_TNH.shape), lib=in_python)
    torch.library.register_fake("eyas::packed_linear", lambda x, w, b, n: x.new_empty(*x.shape[:-1], n), lib=in_python)
    _libraries.append(in_python)
    return enter


@contextlib.contextmanager
def attention_scope(attention: PackedAttentionFn) -> Iterator[None]:
    """Sets the attention that compiled forwards of this thread call within the `with` block.

    C++ calls it directly if it has an attribute `native` (see `CpuAttention`); otherwise C++ calls it through Python.
    """
    enter = load_operator()
    native = getattr(attention, "native", None)
    if native is None:
        _thread_state.attention = attention
        enter(None, None, None, 0, 0)
    else:
        enter(*native)
    try:
        yield
    finally:
        enter(None, None, None, 0, 0)
        _thread_state.attention = None


def _attend(q_TNH: Tensor, k_TGH: Tensor, v_TGH: Tensor, layer: int, *settings: Any) -> Tensor:
    """Calls the Python attention that `attention_scope` has set for this thread. settings: those of AttentionParams."""
    return _thread_state.attention(layer, q_TNH, k_TGH, v_TGH, AttentionParams(*settings)).contiguous()


def exported_attention(layer: int, q_TNH: Tensor, k_TGH: Tensor, v_TGH: Tensor, params: AttentionParams) -> Tensor:
    """Calls eyas::attend. A forward that is exported gets this function as its attention."""
    r = params
    return torch.ops.eyas.attend(q_TNH, k_TGH, v_TGH, layer, r.scale, r.window, r.chunk, r.softcap, r.sinks_N)


def cpp_compiler() -> str:
    """Returns the name of the C++ compiler: the environment variable CXX, or "g++" if it is not set."""
    return os.environ.get("CXX") or "g++"
