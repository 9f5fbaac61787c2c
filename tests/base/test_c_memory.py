"""Tests whether the C library keeps freed memory."""

import platform
import subprocess
import sys

import pytest

MEASURE = """
import ctypes
import sys
from eyas.base.c_memory import keep_freed_memory

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

if sys.argv[1] == "keep":
    keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
size = 100 << 20
block = libc.malloc(ctypes.c_size_t(size))
ctypes.memset(block, 1, size)
used = resident_bytes()
libc.free(block)
print((used - resident_bytes()) / size)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these options")
@pytest.mark.parametrize(("mode", "least", "most"), [("keep", -0.1, 0.1), ("return", 0.9, 1.1)])
def test_freed_memory_stays_with_the_process_only_when_asked(mode, least, most):
    words = [sys.executable, "-c", MEASURE, mode]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    assert least <= float(done.stdout) <= most
