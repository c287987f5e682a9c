"""What happens to memory that is freed: by default glibc gives large pieces back at once.

The next update then fetches them again, page by page: on a CPU that is up to half of its time.
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
    """Ask glibc to keep it, for the whole process; False where there is no glibc to ask.

    It cannot be undone, so that a program has to ask for it itself: the command line does. In a
    program of your own that trains on a CPU, call it once at the start.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(MMAP_MAX, 0) == 1 and mallopt(TRIM_THRESHOLD, MOST) == 1)
