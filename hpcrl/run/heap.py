"""How the C library keeps memory between updates."""

from __future__ import annotations

import ctypes
import os

# Parameters of mallopt (malloc.h of glibc), and the bytes for them: the largest that it accepts, and twice as many.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_LARGEST = 32 * 2**20


def keep_freed_memory() -> None:
    """Let glibc keep what arrays leave behind, up to 64 MiB, for the next ones.

    By its own thresholds it may give some hundred KiB back to the kernel at the end of each update and fault them in again in the next. Whether it
    does depends on what else is on the heap, so that one update of Rainbow takes 1.6 or 2.4 ms in NumPy (`python -m benchmarks.freed_memory`). Where a
    variable sets glibc's allocator (``MALLOC_...``, ``GLIBC_TUNABLES``), and with another C library, nothing changes.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST)
        mallopt(_TRIM_THRESHOLD, 2 * _LARGEST)
