"""Compiles forwards for a CPU ahead of time: the target's decoder and the head's step, for any number of rows.

A few rows of a small model take less time than Python takes to call their operators one by one. torch.export captures
the forward and AOTInductor compiles it to C++: operators are fused, weights are packed for the processor's matrix units
and stored in the package, and no Python runs within a call. Attention is an operator of cpu_operator.cpp, which calls
the same function as without compiling.

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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from eyas.base.environment import cache_directory, memory_bytes, remove_all_but_newest
from eyas.base.provenance import digest_bytes, digest_file, digest_json
from eyas.kernels import attention_op as native
from eyas.kernels.attention_op import (
    CompileError,
    attention_scope,
    cpp_compiler,
    exported_attention,
    load_operator,
)
from eyas.model import head as head_module
from eyas.model import hook as hook_module
from eyas.model import target as target_module
from eyas.model.attention import AttentionParams, PackedAttention, PackedAttentionFn, causal_attention
from eyas.model.head import Head, HeadConfig
from eyas.model.target import Target

MAX_ROWS = 1 << 20
MEMORY_SHARE = 0.1  # of the machine's memory, for packed copies of the weights, at most
COMPILING = ".compiling-"
MAX_PACKAGES = 16  # packages on disk
TIMEOUT_S = 1800.0
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
EXAMPLE_ROWS, CHECK_ROWS = 16, (1, 2, 7, 40)
# Relative error: bfloat16 rounds at other places when operators are fused.
TOLERANCE = {torch.bfloat16: 0.05, torch.float32: 1e-4}


# --- graphs ---------------------------------------------------------------------------------------------------------


class _TargetGraph(torch.nn.Module):
    """The target's decoder as a graph: (ids_1T, positions_1T) -> hidden_1TD, aux_1TL."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.decoder = target.decoder
        self._target = [target]  # in a list: no submodule

    def forward(self, ids_1T: Tensor, positions_1T: Tensor) -> tuple[Tensor, Tensor]:
        out = self._target[0].forward(ids_1T, positions_1T, PackedAttention(exported_attention), want_aux=True)
        assert out.aux_BTL is not None, "asked for"
        return out.hidden_BTD, out.aux_BTL


class _HeadGraph(torch.nn.Module):
    """The head's step as a graph: (embeds_1TD, hidden_1TD, positions_1T) -> feedback_1TD, logits_1TV."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head = head

    def forward(self, embeds_1TD: Tensor, hidden_1TD: Tensor, positions_1T: Tensor) -> tuple[Tensor, Tensor]:
        return self.head.step_with_logits(embeds_1TD, hidden_1TD, positions_1T, PackedAttention(exported_attention))


def target_inputs(target: Target, rows: int) -> tuple[Tensor, ...]:
    """Returns example inputs: any ids, consecutive positions."""
    positions_1T = torch.arange(rows)[None]
    return positions_1T * 7 % target.info.vocab_size, positions_1T


def head_inputs(head: Head, rows: int) -> tuple[Tensor, ...]:
    """Returns example inputs, random with a fixed seed."""
    generator = torch.Generator().manual_seed(rows)
    shape, dtype = (1, rows, head.config.hidden_size), head.lm_head.weight.dtype
    embeds_1TD, hidden_1TD = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    return embeds_1TD, hidden_1TD, torch.arange(rows)[None]


def write_package(graph: torch.nn.Module, inputs: tuple[Tensor, ...], path: Path) -> None:
    """Exports and compiles a graph, in about a minute. The rows (dimension 1 of each input) may be any number."""
    load_operator()
    rows = torch.export.Dim("rows", min=2, max=MAX_ROWS)
    with torch.no_grad():
        exported = torch.export.export(graph, inputs, dynamic_shapes=[{1: rows} for _ in inputs], strict=False)
        torch._inductor.aoti_compile_and_package(
            exported,
            package_path=str(path),
            inductor_configs={"freezing": True, "cpp.enable_concat_linear": True},
        )


# --- packages -----------------------------------------------------------------------------------------------------


class _Package:
    """A loaded package, for one thread at a time."""

    def __init__(self, path: Path) -> None:
        load_operator()
        try:
            # The inner loader: both graphs have flat inputs and outputs, and flattening takes as long as a layer.
            self._run = torch._inductor.aoti_load_package(str(path), run_single_threaded=True).loader.boxed_run
        except Exception as error:  # packages of another processor or torch fail in many ways
            raise CompileError("The compiled forward cannot be loaded") from error
        os.utime(path)  # the cache keeps the newest

    def __call__(self, attention: PackedAttentionFn, *inputs: Tensor) -> Any:
        with attention_scope(attention):
            return self._run([part.contiguous() for part in inputs])  # compiled code does not check strides


def _relative_error(found: Tensor, wanted: Tensor) -> float:
    """Returns the norm of the difference divided by the norm of `wanted`."""
    found, wanted = found.double(), wanted.double()
    return float((found - wanted).norm() / wanted.norm().clamp_min(1e-30))


def _text_only(layer: int, q_TNH: Tensor, k_TGH: Tensor, v_TGH: Tensor, params: AttentionParams) -> Tensor:
    """Computes causal attention over the rows of one text without a cache."""
    q_1NTH, k_1GTH, v_1GTH = (part.transpose(0, 1)[None] for part in (q_TNH, k_TGH, v_TGH))
    return causal_attention(q_1NTH, k_1GTH, v_1GTH, params)[0].transpose(0, 1)


def _compare(package: _Package, graph: torch.nn.Module, inputs_of: Callable[[int], tuple[Tensor, ...]]) -> None:
    """Raises CompileError if the package computes something else than the graph."""
    for rows in CHECK_ROWS:
        inputs = inputs_of(rows)
        with torch.inference_mode():
            found = package(_text_only, *inputs)
            with attention_scope(_text_only):
                wanted = graph(*inputs)
        worst = max(_relative_error(one, other) for one, other in zip(found, wanted, strict=True))
        bound = TOLERANCE[wanted[0].dtype]
        if not worst <= bound:
            raise CompileError(f"The compiled forward differs by {worst:.2g} at {rows} rows, more than {bound:g}")


# --- compiling a loaded model ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _CompileJob:
    """The job of the compiling process.

    config: None to compile a target, whose weights are in `source`; else the sizes of a head.
    """

    source: str
    config: dict[str, Any] | None
    layers: tuple[int, ...]
    dtype: str
    threads: int
    package: str


def compile_pair(target: Target, head: Head | None, *, stored_only: bool = False) -> bool:
    """Makes `target.forward` and `head.step_with_logits` run compiled; compiles what the cache does not hold.

    Both run uncompiled until then. Any thread may call it.

    Args:
        stored_only: load from the cache and compile nothing.

    Returns:
        True if both run compiled.

    Raises:
        CompileError: they keep running uncompiled.
    """
    _check_machine(target, head)
    if target.compiled_forward is None:
        key = _key(target.digest, target.model.dtype, tuple(target.aux_layer_ids))
        package = _package(f"target-{key}", None if stored_only else lambda path: _target_job(target, path))
        if package is None:
            return False
        _compare(package, _TargetGraph(target), lambda rows: target_inputs(target, rows))
        target.compiled_forward = package
    if head is not None and head.compiled_forward is None:
        with tempfile.TemporaryDirectory() as directory:
            weights = Path(directory) / "head.safetensors"
            save_file({name: weight.clone().contiguous() for name, weight in head.state_dict().items()}, str(weights))
            key = _key(digest_file(weights), head.lm_head.weight.dtype, dataclasses.asdict(head.config))
            package = _package(f"head-{key}", None if stored_only else lambda path: _head_job(head, weights, path))
        if package is None:
            return False
        _compare(package, _HeadGraph(head), lambda rows: head_inputs(head, rows))
        head.compiled_forward = package
    return True


def _check_machine(target: Target, head: Head | None) -> None:
    weights = [*target.model.parameters(), *(head.parameters() if head is not None else ())]
    for weight in weights:
        if weight.device.type != "cpu" or weight.dtype not in TOLERANCE:
            dtype = str(weight.dtype).removeprefix("torch.")
            problem = f"Weights of {dtype} on {weight.device.type} cannot be compiled"
            raise CompileError(problem, "Use --dtype bfloat16 or float32 on a CPU")
    if shutil.which(cpp_compiler()) is None:
        raise CompileError(f"There is no {cpp_compiler()} on the PATH", "Install g++, or set CXX")
    held = sum(weight.nbytes for weight in weights)
    room = int(MEMORY_SHARE * memory_bytes())
    if held > room:
        raise CompileError(
            f"A compiled forward needs a second copy of the weights ({held / 1e9:.1f} GB); this machine allows "
            f"{room / 1e9:.1f} GB"
        )


def _key(digest: str, dtype: torch.dtype, form: object) -> str:
    """Returns a digest of everything that decides the content of a package."""
    done = subprocess.run([cpp_compiler(), "--version"], capture_output=True, text=True, check=False)
    source = digest_bytes(b"".join(path.read_bytes() for path in SOURCES))
    versions = [torch.__version__, transformers.__version__, done.stdout.partition("\n")[0], source]
    parts = [digest, str(dtype), form, torch.get_num_threads(), _processor(), *versions]
    return digest_json(parts).rpartition(":")[2][:20]


SOURCES = tuple(
    Path(str(module.__file__)) for module in (sys.modules[__name__], native, target_module, head_module, hook_module)
)


def _processor() -> str:
    """Returns the instruction sets of the processor. The compiled code depends on them."""
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {_flags()}"


def _flags() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _target_job(target: Target, package: Path) -> _CompileJob:
    layers = tuple(int(layer) for layer in target.aux_layer_ids)
    return _CompileJob(
        str(target.directory), None, layers, _name(target.model.dtype), torch.get_num_threads(), str(package)
    )


def _head_job(head: Head, weights: Path, package: Path) -> _CompileJob:
    config, dtype = dataclasses.asdict(head.config), _name(head.lm_head.weight.dtype)
    return _CompileJob(str(weights), config, (), dtype, torch.get_num_threads(), str(package))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _package(name: str, job_of: Callable[[Path], _CompileJob] | None) -> _Package | None:
    """Loads the cached package of this name. If there is none, compiles it; returns None if job_of is None."""
    directory = cache_directory()
    path = directory / f"forward-{name}.pt2"
    if path.is_file():
        with contextlib.suppress(CompileError):
            return _Package(path)
    if job_of is None:
        return None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for left in directory.glob(f"{COMPILING}*"):  # left by a killed process
            if time.time() - left.stat().st_mtime > TIMEOUT_S:
                shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=COMPILING) as work_directory:
            built = Path(work_directory) / path.name
            _compile_in_subprocess(job_of(built), Path(work_directory))
            os.replace(built, path)
    except OSError as error:
        raise CompileError("The compiled forward cannot be written", "Free space in the cache directory") from error
    remove_all_but_newest(directory, "forward-*.pt2", MAX_PACKAGES)
    return _Package(path)


def _compile_in_subprocess(job: _CompileJob, directory: Path) -> None:
    """Compiles in a process at the lowest priority, because a minute of Python would hold this process's GIL."""
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
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"Compiling took longer than {TIMEOUT_S:.0f} s") from error
    if done.returncode < 0:  # Ctrl-C stops the server and this process alike
        raise CompileError(f"Compiling was stopped by {signal.Signals(-done.returncode).name}")
    if done.returncode or not Path(job.package).is_file():
        reason = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:300]
        raise CompileError(f"The forward does not compile ({reason})")


def _main(spec: str) -> None:
    """Runs in the subprocess and compiles. If it fails, the last line of stderr is the reason."""
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
    return _TargetGraph(target), target_inputs(target, EXAMPLE_ROWS)


def _head_graph(job: _CompileJob) -> tuple[torch.nn.Module, tuple[Tensor, ...]]:
    assert job.config is not None, "a head has a configuration"
    fields: dict[str, Any] = job.config | {"aux_layer_ids": tuple(job.config["aux_layer_ids"])}
    head = Head(HeadConfig(**fields))
    head.load_state_dict(load_file(job.source), assign=True)
    return _HeadGraph(head.pack_projections()), head_inputs(head, EXAMPLE_ROWS)


if __name__ == "__main__":
    _main(sys.argv[1])
