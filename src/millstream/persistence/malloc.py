"""The C library's heap: return free memory to the system, and keep large pieces out of the heap.

A copy of all state is written, then dropped, and tables double as they grow: the freed memory lies scattered among
memory in use. glibc returns the end of its heap by itself, but pages in the middle only on request; and once a large
piece was freed, it takes the next one of that size from the heap, too. So the used memory stays the same and the
process grows. On other C libraries these functions do nothing.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any, Final

_TRIM_THRESHOLD: Final = -1, 4 << 20  # free bytes at the end of the heap that are returned at once
_MMAP_THRESHOLD: Final = -3, 256 << 10  # larger pieces are mapped separately and returned when they are freed


def give_back() -> bool:
    """Return free pages to the system. Returns whether there were any. Other threads run meanwhile."""
    libc = _glibc()
    return libc is not None and bool(libc.malloc_trim(0))


def keep_large_apart() -> bool:
    """Allocate large pieces outside of the heap, for the whole process. Returns whether the C library supports it."""
    libc = _glibc()
    return libc is not None and all(libc.mallopt(*setting) for setting in (_TRIM_THRESHOLD, _MMAP_THRESHOLD))


@cache
def _glibc() -> Any:
    """Return the C library of this process if it is glibc, else None."""
    if sys.platform != "linux":
        return None
    try:
        import ctypes  # not every Python has ctypes

        libc = ctypes.CDLL(None)
        _ = libc.malloc_trim, libc.gnu_get_libc_version
    except (ImportError, OSError, AttributeError):
        return None
    return libc
