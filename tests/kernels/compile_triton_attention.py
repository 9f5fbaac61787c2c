"""Compile the kernels of `triton_attention` and `triton_linear` for a CUDA device that is not here; print their needs.

    PYTHONPATH=. python tests/kernels/compile_triton_attention.py 90 [all]

90 is the compute capability. Spills are counted where they hurt: in the loops over columns, in machine code. Rules and
wide heads in float32 spill a little.
"""

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
from tests.kernels.paged_cases import Shape, forward
from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingImports]
from triton.runtime import driver  # pyright: ignore[reportMissingImports]

from eyas.kernels import triton_attention, triton_linear
from eyas.kernels.triton_attention import TritonAttention
from eyas.model.attention import AttentionParams

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
VERIFY = Shape((300, 40), (16, 16), heads=(32, 8), head_dim=128)
PREFILL = replace(VERIFY, num_rows=(200, 100), own="causal", num_own=200)
DECODE = replace(VERIFY, num_rows=(1, 1), own="causal", num_own=1)
PLAIN, RULED = AttentionParams(0.1), AttentionParams(0.1, window=100, softcap=5.0, sinks_N=torch.zeros(32))
QUICK = {
    "verify": (VERIFY, PLAIN, torch.bfloat16),
    "verify, window, softcap, sinks": (VERIFY, RULED, torch.bfloat16),
    "decode, float32": (DECODE, PLAIN, torch.float32),
    "verify, memory of fp8": (VERIFY, PLAIN, torch.bfloat16),
}
MORE = {
    "prefill": (PREFILL, PLAIN, torch.bfloat16),
    "verify, float32": (VERIFY, PLAIN, torch.float32),
    "verify, window, softcap, sinks, float32": (VERIFY, RULED, torch.float32),
    "prefill, float32": (PREFILL, PLAIN, torch.float32),
    "decode, float16": (DECODE, PLAIN, torch.float16),
    "head size 80": (replace(VERIFY, head_dim=80), PLAIN, torch.bfloat16),
    "head size 64, groups of 7": (replace(VERIFY, head_dim=64, heads=(14, 2)), PLAIN, torch.bfloat16),
    "head size 256": (replace(VERIFY, head_dim=256, heads=(8, 4)), PLAIN, torch.bfloat16),
    "prefill, head size 256": (replace(PREFILL, head_dim=256, heads=(8, 4)), PLAIN, torch.bfloat16),
    "head size 256, float32": (replace(VERIFY, head_dim=256, heads=(8, 4)), PLAIN, torch.float32),
    "head size 16": (replace(VERIFY, head_dim=16, heads=(4, 4)), PLAIN, torch.bfloat16),
}


class Absent:
    """A CUDA device for the compiler alone."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


class Compiled:
    """Stands where a kernel is launched: compiles it for these operands and reports."""

    def __init__(self, kernel: Any, name: str) -> None:
        self.kernel, self.name, self.case = kernel, name, ""

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def report(*operands: Any, **choices: Any) -> None:
            done = self.kernel.warmup(*operands, grid=grid, **choices)
            registers, spills = machine_code(done.asm["cubin"])
            row = {"kernel": self.name, "case": self.case, "num_warps": done.metadata.num_warps}
            row |= {"shared_bytes": done.metadata.shared, "registers": registers, "spills_in_loops": spills}
            print(json.dumps(row), flush=True)

        return report


def machine_code(cubin: bytes) -> tuple[int, int]:
    """Registers a thread, and loads and stores of spilled registers inside loops."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage, code = (
            subprocess.run([TOOLS / tool, option, file.name], capture_output=True, text=True, check=True).stdout
            for tool, option in (("cuobjdump", "--dump-resource-usage"), ("nvdisasm", "-c"))
        )
    registers = re.search(r"REG:(\d+)", usage)
    assert registers is not None, usage
    lines, labels, spills = [], {}, 0
    for line in code.splitlines():
        if label := re.match(r"(\.L_\w+):", line):
            labels[label[1]] = len(lines)
        elif operation := re.search(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            lines.append(operation[1])
    for at, line in enumerate(lines):
        jump = re.search(r"BRA.*?(\.L_\w+)", line)
        begin = labels.get(jump[1], at) if jump else at
        body = lines[begin:at]  # empty where the jump is forward
        # Code that ptxas moved out of the way jumps back too: a loop runs straight through its products.
        if any("MMA" in op for op in body) and not any("EXIT" in op for op in body):
            spills += sum("LDL" in op or "STL" in op for op in body)
    return int(registers[1]), spills


def main() -> None:
    capability, cases = int(sys.argv[1]), QUICK | MORE if "all" in sys.argv else QUICK
    absent: Any = Absent(capability)
    driver.set_active(absent)
    kernels = []
    for module, names in ((triton_attention, ("_write", "_parts", "_merge")), (triton_linear, ("_one_row",))):
        vars(module)["dependent_launch"] = lambda _: {"DEPENDENT": capability >= 90}
        for name in names:
            kernels.append(Compiled(getattr(module, name), name))
            setattr(module, name, kernels[-1])
    triton_linear.linear(torch.zeros(1, 4096).bfloat16(), torch.zeros(96, 4096).bfloat16())
    for name, (shape, params, dtype) in cases.items():
        if "fp8" in name and capability < 89:
            continue
        for kernel in kernels:
            kernel.case = name
        case = forward(shape).on("cpu", dtype)
        kv = case.kv.to(torch.float8_e4m3fn) if "fp8" in name else case.kv
        attention = TritonAttention(kv, case.req_to_token_RC, case.rows, num_processors=132)
        attention(0, case.q_TNH, case.k_TGH, case.v_TGH, params)


if __name__ == "__main__":
    main()
