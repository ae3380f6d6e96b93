"""Freed memory of a CPU stays with the process, as a GPU's stays with torch's caching allocator.

By default glibc returns large blocks to the kernel when they are freed, so a pass whose tensors take megabytes
page-faults on each 4 KiB of them every time.
"""

from __future__ import annotations

import ctypes
import sys

# From malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD = 32 * 2**20  # bytes; glibc takes no more on 64 bits
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """From now on freed blocks of up to 32 MiB are reused. Returns whether this could be set: glibc only."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        adjust = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return bool(adjust(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)) and bool(adjust(_TRIM_THRESHOLD, _NEVER))
