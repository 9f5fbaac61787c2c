"""Compiles forwards for a CPU ahead of time: the target's decoder and the head's step, for any number of rows.

For a few rows (tokens) of a small model, Python takes longer to call the operators than the operators take to compute.
torch.export captures the forward, and AOTInductor compiles it to C++. Operators are fused, and no Python runs within a
call. The package, a .pt2 file, has no weights: it computes with those of the loaded model. Attention and linear layers
are operators of cpu_operator.cpp; they call the same C functions as an uncompiled forward.

    compile_pair(target, head)                  about a minute, in another process; cached on disk for later starts
    target.forward, head.step_with_logits       use the loaded packages, for one row or for a prompt of thousands

A package is compared with the uncompiled forward before it is used.
"""

import contextlib
import ctypes
import dataclasses
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from eyas.base.environment import cache_directory, remove_all_but_newest
from eyas.base.provenance import digest_bytes, digest_json
from eyas.kernels import attention_op as native
from eyas.kernels import cpu_linear
from eyas.kernels.attention_op import CompileError, cpp_compiler, exported_attention, load_operator
from eyas.kernels.compiled_package import TOLERANCE, CompiledPackage, compare_with_graph, head_inputs, target_inputs
from eyas.kernels.cpu_attention import LINEAR_HEADER
from eyas.kernels.dispatch import pack_head, pack_target
from eyas.model import head as head_module
from eyas.model import hook as hook_module
from eyas.model import target as target_module
from eyas.model.attention import PackedAttention
from eyas.model.head import DraftHead, Head, HeadConfig
from eyas.model.target import Target

MAX_ROWS = 1 << 20
COMPILING = ".compiling-"
MAX_PACKAGES = 16  # packages on disk
TIMEOUT_S = 1800.0
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
EXAMPLE_ROWS = 16
# Declarations of the functions of cpu_operator.cpp that compiled forwards call.
_T, _INT = "AtenTensorHandle", "int64_t"
ATTEND = (
    f"AOTITorchError aoti_torch_cpu_attend({_T}, {_T}, {_T}, {_INT}, double, {_INT}*, {_INT}*, double*, {_T}*, {_T}*)"
)
LINEAR = f"AOTITorchError aoti_torch_cpu_packed_linear({_T}, {_T}, {_T}*, {_INT}, {_T}*)"


# --- graphs ---------------------------------------------------------------------------------------------------------


class _TargetGraph(torch.nn.Module):
    """The target's decoder as a module for torch.export: (ids_1T, positions_1T) -> hidden_1TD, aux_1TL."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.decoder = target.decoder
        self._target = [target]  # in a list: no submodule

    def forward(self, ids_1T: Tensor, positions_1T: Tensor) -> tuple[Tensor, Tensor]:
        out = self._target[0].forward(ids_1T, positions_1T, PackedAttention(exported_attention), want_aux=True)
        assert out.aux_BTL is not None, "asked for"
        return out.hidden_BTD, out.aux_BTL


class _HeadGraph(torch.nn.Module):
    """The head's step for torch.export: (embeds_1TD, hidden_1TD, positions_1T) -> feedback_1TD, logits_1TV."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head = head

    def forward(self, embeds_1TD: Tensor, hidden_1TD: Tensor, positions_1T: Tensor) -> tuple[Tensor, Tensor]:
        return self.head.step_with_logits(embeds_1TD, hidden_1TD, positions_1T, PackedAttention(exported_attention))


def write_package(graph: torch.nn.Module, inputs: tuple[Tensor, ...], path: Path) -> None:
    """Exports and compiles a graph, in about a minute, and writes the package.

    Args:
        graph: a `_TargetGraph` or `_HeadGraph`.
        inputs: example inputs. The package later accepts any number of rows (dimension 1 of each input).
        path: the .pt2 file to write.
    """
    load_operator()
    rows = torch.export.Dim("rows", min=2, max=MAX_ROWS)
    with torch.no_grad():
        exported = torch.export.export(graph, inputs, dynamic_shapes=[{1: rows} for _ in inputs], strict=False)
        # Each job has its own cache of the compiler, so a precompiled header would be used only once.
        functions = {torch.ops.eyas.attend.default: [ATTEND], torch.ops.eyas.packed_linear.default: [LINEAR]}
        configs: dict[str, Any] = {
            "aot_inductor.precompile_headers": False,
            "aot_inductor.custom_ops_to_c_shims": functions,
            "aot_inductor.package_constants_in_so": False,
        }
        torch._inductor.aoti_compile_and_package(exported, package_path=str(path), inductor_configs=configs)


# --- compiling a loaded model ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _CompileJob:
    """The job of the subprocess that compiles one forward, written to job.json.

    Attributes:
        source: The target's directory; empty for a head.
        config: The fields of the head's HeadConfig; None to compile a target.
        layers: The target's layers whose features are captured; empty for a head.
        dtype: The torch dtype of the weights, for example "bfloat16".
        window: The head's attention window; None for none.
        package: The .pt2 file to write. `_package` sets it.
        threads: The number of threads that the compiled forward uses.
    """

    source: str
    config: dict[str, Any] | None
    layers: tuple[int, ...]
    dtype: str
    window: int | None = None
    package: str = ""
    threads: int = dataclasses.field(default_factory=torch.get_num_threads)


def compile_pair(target: Target, any_head: DraftHead | None, *, stored_only: bool = False) -> bool:
    """Loads the compiled forwards of a target and a head from the cache, and compiles those that are missing there.

    On CUDA it compiles their layers, which takes seconds (see `layer_compile`), and no other thread may use them.

    Afterwards `target.forward` and `head.step_with_logits` call the compiled forwards. Until then they run uncompiled.
    Any thread may call this function.

    Args:
        target: the target; nothing happens to a target that already runs compiled.
        any_head: a head of any kind, which stays uncompiled if it is not `compilable`; None for no head.
        stored_only: True to load from the cache and compile nothing.

    Returns:
        True if target and head run compiled; False if `stored_only` is True and the cache lacks one of them.

    Raises:
        CompileError: a forward cannot be compiled or loaded; it keeps running uncompiled.
    """
    head = None if any_head is None else any_head.compilable
    if target.model.device.type == "cuda":
        from eyas.kernels.layer_compile import compile_layers  # imports torch.export, which is slow

        compile_layers(target, head)
        return True
    _check_machine(target, head)
    pack_target(target)
    if head is not None:
        pack_head(head)
    if target.compiled_forward is None:
        layers, graph = tuple(int(layer) for layer in target.aux_layer_ids), _TargetGraph(target)
        key = _key(target.digest, target.model.dtype, layers)
        job = _CompileJob(str(target.directory), None, layers, _name(target.model.dtype))
        package = _package(f"target-{key}", graph, None if stored_only else job)
        if package is None:
            return False
        compare_with_graph(package, graph, lambda rows: target_inputs(target, rows))
        target.compiled_forward = package
    if head is not None and head.compiled_forward is None:
        config, graph = dataclasses.asdict(head.config), _HeadGraph(head)
        key = _key("none", head.norm.weight.dtype, [config, head.window])
        job = _CompileJob("", config, (), _name(head.norm.weight.dtype), head.window)
        package = _package(f"head-{key}", graph, None if stored_only else job)
        if package is None:
            return False
        compare_with_graph(package, graph, lambda rows: head_inputs(head, rows))
        head.compiled_forward = package
    return True


def _check_machine(target: Target, head: Head | None) -> None:
    parts = [target.model] if head is None else [target.model, head]
    for weight in [weight for part in parts for weight in part.parameters()]:
        if weight.device.type != "cpu" or weight.dtype not in TOLERANCE:
            problem = f"Weights of {_name(weight.dtype)} on {weight.device.type} cannot be compiled"
            raise CompileError(problem, "Use --dtype bfloat16 or float32 on a CPU")
    if shutil.which(cpp_compiler()) is None:
        raise CompileError(f"There is no {cpp_compiler()} on the PATH", "Install g++, or set CXX")


def _key(digest: str, dtype: torch.dtype, form: object) -> str:
    """Returns the cache key of a package: a digest of everything that changes the compiled code.

    Args:
        digest: of the target; "none" for a head.
        dtype: of the weights.
        form: the captured layers of a target, or the configuration of a head.
    """
    done = subprocess.run([cpp_compiler(), "--version"], capture_output=True, text=True, check=False)
    source = digest_bytes(b"".join(path.read_bytes() for path in SOURCES))
    versions = [torch.__version__, transformers.__version__, done.stdout.partition("\n")[0], source]
    parts = [digest, str(dtype), form, torch.get_num_threads(), _processor(), *versions]
    return digest_json(parts).rpartition(":")[2][:20]


_MODULES = (sys.modules[__name__], native, cpu_linear, target_module, head_module, hook_module)
SOURCES = (LINEAR_HEADER.with_suffix(".c"), *(Path(str(module.__file__)) for module in _MODULES))


def _processor() -> str:
    """Returns the instruction sets of the processor. The compiled code depends on them."""
    flags = platform.processor()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {flags}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _package(name: str, graph: torch.nn.Module, job: _CompileJob | None) -> CompiledPackage | None:
    """Loads a package from the cache, and compiles it first if the cache does not have it.

    Args:
        name: the name of the file in the cache, without "forward-" and ".pt2".
        graph: the same forward, uncompiled.
        job: the job that writes the package; None to compile nothing.

    Returns:
        The package; None if the cache does not have it and `job` is None.
    """
    directory = cache_directory()
    path = directory / f"forward-{name}.pt2"
    if path.is_file():
        with contextlib.suppress(CompileError):
            return CompiledPackage(path, graph)
    if job is None:
        return None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for left in directory.glob(f"{COMPILING}*"):  # left by a killed process
            if time.time() - left.stat().st_mtime > TIMEOUT_S:
                shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=COMPILING) as work_directory:
            built = Path(work_directory) / path.name
            _compile_in_subprocess(dataclasses.replace(job, package=str(built)), Path(work_directory))
            os.replace(built, path)
    except OSError as error:
        raise CompileError("The compiled forward cannot be written", "Free space in the cache directory") from error
    remove_all_but_newest(directory, "forward-*.pt2", MAX_PACKAGES)
    return CompiledPackage(path, graph)


def _compile_in_subprocess(job: _CompileJob, directory: Path) -> None:
    """Compiles in a subprocess at the lowest priority. A thread would hold this process's GIL for about a minute.

    Args:
        job: what to compile.
        directory: a temporary directory for the job file and the compiler's caches.
    """
    spec = directory / "job.json"
    spec.write_text(json.dumps(dataclasses.asdict(job)))
    environment = os.environ | {
        "OMP_NUM_THREADS": str(job.threads),
        "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor"),
        "TRITON_CACHE_DIR": str(directory / "triton"),
    }
    command = [sys.executable, "-m", "eyas.kernels.aot_compile", str(spec)]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"Compiling took longer than {TIMEOUT_S:.0f} s") from error
    if done.returncode < 0:  # Ctrl-C stops the server and this process alike
        raise CompileError(f"Compiling was stopped by {signal.Signals(-done.returncode).name}")
    if done.returncode or not Path(job.package).is_file():
        reason = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:300]
        raise CompileError(f"The forward does not compile ({reason})")


def _main(spec: str) -> None:
    """Compiles, in the subprocess, the job in the file `spec`. If it fails, the last line of stderr is the reason."""
    os.nice(19)
    with contextlib.suppress(OSError, AttributeError):  # Linux only: end with the parent process
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    stored: dict[str, Any] = json.loads(Path(spec).read_text())
    stored["layers"] = tuple(stored["layers"])
    job = _CompileJob(**stored)
    torch.set_num_threads(job.threads)
    graph, inputs = _target_graph(job) if job.config is None else _head_graph(job)
    try:
        write_package(graph, inputs, Path(job.package))
    except Exception as error:  # export and compiler raise many classes for a forward that they cannot take
        sys.exit(f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no reason given'])[0]}")


def _target_graph(job: _CompileJob) -> tuple[torch.nn.Module, tuple[Tensor, ...]]:
    target = Target.load(job.source, getattr(torch, job.dtype), job.layers)
    pack_target(target)
    return _TargetGraph(target), target_inputs(target, EXAMPLE_ROWS)


def _head_graph(job: _CompileJob) -> tuple[torch.nn.Module, tuple[Tensor, ...]]:
    assert job.config is not None, "a head has a configuration"
    fields: dict[str, Any] = job.config | {"aux_layer_ids": tuple(job.config["aux_layer_ids"])}
    head = Head(HeadConfig(**fields))
    head.limit_attention(job.window)
    head = head.to_empty(device="cpu").to(getattr(torch, job.dtype))  # the package has no weights
    pack_head(head)
    return _HeadGraph(head), head_inputs(head, EXAMPLE_ROWS)


if __name__ == "__main__":
    _main(sys.argv[1])
