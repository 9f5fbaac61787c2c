"""Tells the C library how to treat freed memory."""

import contextlib
import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
MOST = 2**31 - 1


def keep_freed_memory() -> None:
    """Makes the C library keep freed memory for later allocations, if it is glibc.

    By default it returns tensors of more than 32 MB to Linux, which must then clear new pages for the next ones: with
    logits of a large vocabulary, in every update of a training. The process keeps the memory of its peak instead.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(MMAP_THRESHOLD, MOST)
        mallopt(TRIM_THRESHOLD, MOST)
