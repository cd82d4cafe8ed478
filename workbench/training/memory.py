"""Settings of the memory allocator for training: memory that one training step frees is reused by the next one.

By default glibc maps memory for each large tensor and unmaps it when the tensor is freed, so the kernel clears the
pages again in every step. In a training process, this took a third of the time.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameters of glibc's `mallopt`: free bytes to keep at the heap's end, and maximum number of separate mappings."""
MOST = (1 << 31) - 1


def keep_memory() -> bool:
    """Make this process reuse the memory that it frees from now on; return whether this works, which needs glibc."""
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another system, or another C library
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, MOST))
