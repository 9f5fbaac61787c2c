"""Compiled forwards for a CPU: the target's decoder and the head's step, a C++ function each, for any number of rows.

A few rows of a small model take less time than Python takes to call their operators one by one. torch.export writes the
forward down, AOTInductor compiles it: operators are fused, the weights are packed for the processor's matrix units and
lie in the package, and nothing of a call runs in Python: attention is an operator of cpu_operator.cpp, which calls the
same function as without compiling.

    compile_pair(target, head)     in another process, about a minute; kept on disk, later starts load it in a moment
    target.forward, head.step_with_logits  use what is loaded, for one row as for a prompt of thousands

A package is compared with the forward that it stands for before it is used.
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

from eyas.base.environment import cache_directory, remove_all_but_newest
from eyas.base.provenance import digest_bytes, digest_file, digest_json
from eyas.kernels import attention_op as native
from eyas.kernels.attention_op import (
    NO_FIX,
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
MEMORY_SHARE = 0.1  # of the machine's memory, for the packed copies of the weights, at most
COMPILING = ".compiling-"
MAX_PACKAGES = 16  # packages on disk
TIMEOUT_S = 1800.0
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
EXAMPLE_ROWS, CHECK_ROWS = 16, (1, 2, 7, 40)
# Norm of the difference over the norm: bfloat16 rounds at other places when operators are fused.
TOLERANCE = {torch.bfloat16: 0.05, torch.float32: 1e-4}


# --- what is compiled -------------------------------------------------------------------------------------------------


class _TargetGraph(torch.nn.Module):
    """(ids_1T, positions_1T) -> hidden_1TD, aux_1TL."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.decoder = target.decoder
        self._target = [target]  # in a list: no submodule

    def forward(self, ids_1T: Tensor, positions_1T: Tensor) -> tuple[Tensor, Tensor]:
        out = self._target[0].forward(ids_1T, positions_1T, PackedAttention(exported_attention), want_aux=True)
        assert out.aux_BTL is not None, "asked for"
        return out.hidden_BTD, out.aux_BTL


class _HeadGraph(torch.nn.Module):
    """(embeds_1TD, hidden_1TD, positions_1T) -> feedback_1TD, logits_1TV."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head = head

    def forward(self, embeds_1TD: Tensor, hidden_1TD: Tensor, positions_1T: Tensor) -> tuple[Tensor, Tensor]:
        return self.head.step_with_logits(embeds_1TD, hidden_1TD, positions_1T, PackedAttention(exported_attention))


def target_inputs(target: Target, rows: int) -> tuple[Tensor, ...]:
    """Example inputs: any ids, consecutive positions."""
    positions_1T = torch.arange(rows)[None]
    return positions_1T * 7 % target.info.vocab_size, positions_1T


def head_inputs(head: Head, rows: int) -> tuple[Tensor, ...]:
    """Example inputs, random but always the same."""
    generator = torch.Generator().manual_seed(rows)
    shape, dtype = (1, rows, head.config.hidden_size), head.lm_head.weight.dtype
    embeds_1TD, hidden_1TD = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    return embeds_1TD, hidden_1TD, torch.arange(rows)[None]


def write_package(graph: torch.nn.Module, inputs: tuple[Tensor, ...], path: Path) -> None:
    """Export and compile; the rows, dimension 1 of every input, may be any number. Takes about a minute."""
    load_operator()
    rows = torch.export.Dim("rows", min=2, max=MAX_ROWS)
    with torch.no_grad():
        exported = torch.export.export(graph, inputs, dynamic_shapes=[{1: rows} for _ in inputs], strict=False)
        torch._inductor.aoti_compile_and_package(
            exported,
            package_path=str(path),
            inductor_configs={"freezing": True, "cpp.enable_concat_linear": True},
        )


# --- loading and comparing --------------------------------------------------------------------------------------------


class _Package:
    """A loaded package. One thread at a time."""

    def __init__(self, path: Path) -> None:
        load_operator()
        try:
            # The loader itself: both graphs take and give flat tensors, and flattening them takes as long as a layer.
            self._run = torch._inductor.aoti_load_package(str(path), run_single_threaded=True).loader.boxed_run
        except Exception as error:  # a package of another processor or torch fails in many ways
            raise CompileError(f"a compiled forward that does not load ({error})", "one that does", NO_FIX) from error
        os.utime(path)  # the newest are kept

    def __call__(self, rows: PackedAttentionFn, *inputs: Tensor) -> Any:
        with attention_scope(rows):
            return self._run([part.contiguous() for part in inputs])  # compiled code reads them without looking


def _relative_error(found: Tensor, wanted: Tensor) -> float:
    """Norm of the difference over the norm."""
    found, wanted = found.double(), wanted.double()
    return float((found - wanted).norm() / wanted.norm().clamp_min(1e-30))


def _text_only(layer: int, q_TNH: Tensor, k_TGH: Tensor, v_TGH: Tensor, params: AttentionParams) -> Tensor:
    """Causal attention over the rows themselves."""
    q_1NTH, k_1GTH, v_1GTH = (part.transpose(0, 1)[None] for part in (q_TNH, k_TGH, v_TGH))
    return causal_attention(q_1NTH, k_1GTH, v_1GTH, params)[0].transpose(0, 1)


def _compare(package: _Package, graph: torch.nn.Module, inputs_of: Callable[[int], tuple[Tensor, ...]]) -> None:
    """CompileError where the package computes something else than the forward."""
    for rows in CHECK_ROWS:
        inputs = inputs_of(rows)
        with torch.inference_mode():
            found = package(_text_only, *inputs)
            with attention_scope(_text_only):
                wanted = graph(*inputs)
        worst = max(_relative_error(one, other) for one, other in zip(found, wanted, strict=True))
        bound = TOLERANCE[wanted[0].dtype]
        if not worst <= bound:
            raise CompileError(
                f"a compiled forward that differs by {worst:.2g} at {rows} rows", f"at most {bound:g}", NO_FIX
            )


# --- the road from a loaded model to a compiled one -------------------------------------------------------------------


@dataclass(frozen=True)
class _CompileJob:
    """What one process compiles. config None: a target, whose weights are read from `source`; else a head."""

    source: str
    config: dict[str, Any] | None
    layers: tuple[int, ...]
    dtype: str
    threads: int
    package: str


def compile_pair(target: Target, head: Head | None, *, stored_only: bool = False) -> bool:
    """Let `target.forward` and `head.step_with_logits` run compiled from now on; compiles what the cache lacks.

    Both run as they are until then, and for good if it fails: CompileError, with the reason. Call it from any thread.
    stored_only: compile nothing; whether all was there.
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
        with tempfile.TemporaryDirectory() as place:
            weights = Path(place) / "head.safetensors"
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
    kinds = {(weight.device.type, weight.dtype) for weight in weights}
    if any(device != "cpu" or dtype not in TOLERANCE for device, dtype in kinds):
        raise CompileError(f"weights of {sorted(map(str, kinds))}", "bfloat16 or float32 on a CPU", NO_FIX)
    if shutil.which(cpp_compiler()) is None:
        raise CompileError(f"no {cpp_compiler()} on the PATH", "a C++ compiler", "install g++, or set CXX")
    held = sum(weight.nbytes for weight in weights)
    room = int(MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if held > room:
        raise CompileError(
            f"{held / 1e9:.1f} GB of weights, which a compiled forward holds once more",
            f"at most {room / 1e9:.1f} GB here",
            NO_FIX,
        )


def _key(digest: str, dtype: torch.dtype, form: object) -> str:
    """Everything that decides what a package holds."""
    done = subprocess.run([cpp_compiler(), "--version"], capture_output=True, text=True, check=False)
    source = digest_bytes(b"".join(path.read_bytes() for path in SOURCES))
    versions = [torch.__version__, transformers.__version__, done.stdout.partition("\n")[0], source]
    parts = [digest, str(dtype), form, torch.get_num_threads(), _processor(), *versions]
    return digest_json(parts).rpartition(":")[2][:20]


SOURCES = tuple(
    Path(str(module.__file__)) for module in (sys.modules[__name__], native, target_module, head_module, hook_module)
)


def _processor() -> str:
    """Its instruction sets, for which the code is compiled."""
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
    """The stored package of this name; compiled if there is none that loads, or None where there is no job for it."""
    directory = cache_directory()
    path = directory / f"forward-{name}.pt2"
    if path.is_file():
        with contextlib.suppress(CompileError):
            return _Package(path)
    if job_of is None:
        return None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for left in directory.glob(f"{COMPILING}*"):  # by a process that was killed
            if time.time() - left.stat().st_mtime > TIMEOUT_S:
                shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=COMPILING) as place:
            built = Path(place) / path.name
            _compile_in_subprocess(job_of(built), Path(place))
            os.replace(built, path)
    except OSError as error:
        raise CompileError(f"no compiled forward ({error})", "room for it on disk", NO_FIX) from error
    remove_all_but_newest(directory, "forward-*.pt2", MAX_PACKAGES)
    return _Package(path)


def _compile_in_subprocess(job: _CompileJob, place: Path) -> None:
    """In a process of its own at the lowest priority: compiling takes a minute of Python, which would hold our lock."""
    spec = place / "job.json"
    spec.write_text(json.dumps(dataclasses.asdict(job)))
    environment = os.environ | {
        "OMP_NUM_THREADS": str(job.threads),
        "TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"),
        "TRITON_CACHE_DIR": str(place / "triton"),
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
        raise CompileError(f"a compiler that ran longer than {TIMEOUT_S:.0f} s", "an end", NO_FIX) from error
    if done.returncode or not Path(job.package).is_file():
        reason = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:300]
        raise CompileError(f"a forward that does not compile ({reason})", "one that does", NO_FIX)


def _main(spec: str) -> None:
    """The process that compiles. Its last words say why it could not."""
    os.nice(19)
    with contextlib.suppress(OSError, AttributeError):  # Linux alone knows it: do not outlive who waits for this
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
