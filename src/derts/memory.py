"""Memory that is freed stays with the process, to be used again without asking the system for it.

An update on a CPU takes and frees the same large activations again and again. By default glibc maps
each of them anew, and every page of it has to be cleared by the system first: half of the time of
an update, where we measured.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

# mallopt's names for what it sets (malloc.h)
TRIM_THRESHOLD, MMAP_MAX = -1, -4
MOST = 2**31 - 1  # bytes that stay free at the end of the heap


@cache
def keep_freed_memory() -> bool:
    """Ask glibc for it, for the whole process; False where there is no glibc to ask."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(MMAP_MAX, 0) == 1 and mallopt(TRIM_THRESHOLD, MOST) == 1)
