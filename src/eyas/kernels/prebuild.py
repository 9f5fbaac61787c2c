"""Builds the CPU operator for machines without a compiler, such as containers: `python -m eyas.kernels.prebuild PATH`.

The library runs on x86-64 with AVX2. To use it, set the environment variable EYAS_CPU_OPERATOR to PATH when eyas runs.
On a machine with a compiler eyas ignores it and builds a library for its own processor, which may be faster.
"""

import subprocess
import sys
from pathlib import Path

from eyas.base.errors import EyasError, InputError, StageError
from eyas.base.storage import write_atomic
from eyas.kernels.build import build_library
from eyas.kernels.cpu_attention import PORTABLE, find_compiler


def prebuild(path: Path) -> None:
    """Builds the library and writes it to `path`.

    Raises:
        InputError: there is no compiler.
        StageError: the compiler fails.
    """
    compiler = find_compiler()
    if compiler is None:
        raise InputError("There is no C compiler (gcc or cc) on the PATH", "Install gcc")
    try:
        write_atomic(path, build_library(compiler, PORTABLE).read_bytes())
    except subprocess.CalledProcessError as error:
        output = " ".join(error.stderr.split())[:200]
        raise StageError(f"{compiler} could not build the CPU operator: {output}", "Install a newer gcc") from None


if __name__ == "__main__":
    try:
        prebuild(Path(sys.argv[1]))
    except EyasError as error:
        sys.exit(f"eyas: error: {error}")
