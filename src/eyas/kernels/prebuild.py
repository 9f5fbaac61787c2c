"""Builds the operator for machines that have no compiler, images above all.

`python -m eyas.kernels.prebuild PATH`. For x86-64 with AVX2; the variable EYAS_CPU_OPERATOR says where it is.
What a machine builds for itself may be faster.
"""

import subprocess
import sys
from pathlib import Path

from eyas.base.errors import EyasError, InputError, StageError
from eyas.base.storage import write_atomic
from eyas.kernels.build import build_library
from eyas.kernels.cpu_attention import PORTABLE, find_compiler


def prebuild(path: Path) -> None:
    """Write the library. InputError without a compiler, StageError where it fails."""
    compiler = find_compiler()
    if compiler is None:
        raise InputError("no gcc or cc on the PATH", "a C compiler", "install gcc")
    try:
        write_atomic(path, build_library(compiler, PORTABLE).read_bytes())
    except subprocess.CalledProcessError as error:
        said = " ".join(error.stderr.split())[:300]
        raise StageError(f"{compiler} that failed: {said}", "a library", "mend what it says") from None


if __name__ == "__main__":
    try:
        prebuild(Path(sys.argv[1]))
    except EyasError as error:
        sys.exit(f"eyas: error: {error}")
