"""The C library's heap: free memory goes back to the system, and large pieces stay out of it.

A copy of everything is written, then dropped; tables double as they grow: what they took lies scattered among what is
still in use. glibc gives back the end of its heap by itself, and pages in the middle only when it is asked to; and once
a large piece was freed it takes the next of that size from the heap, too. So memory that is in use stays the same, and
that of the process grows. Elsewhere there is nothing to ask, and nothing is done.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any, Final

_TRIM_THRESHOLD: Final = -1, 4 << 20  # free bytes at the end of the heap that are given back at once
_MMAP_THRESHOLD: Final = -3, 256 << 10  # pieces from this size on are of their own, and go back when they are freed


def give_back() -> bool:
    """Give free pages back; whether there were any. Other threads run meanwhile."""
    libc = _glibc()
    return libc is not None and bool(libc.malloc_trim(0))


def keep_large_apart() -> bool:
    """Have large pieces outside of the heap from now on, for the whole process; whether that can be had."""
    libc = _glibc()
    return libc is not None and all(libc.mallopt(*setting) for setting in (_TRIM_THRESHOLD, _MMAP_THRESHOLD))


@cache
def _glibc() -> Any:
    """This process's C library if it is glibc, else None: others have no such settings."""
    if sys.platform != "linux":
        return None
    try:
        import ctypes  # which not every Python has

        libc = ctypes.CDLL(None)
        _ = libc.malloc_trim, libc.gnu_get_libc_version
    except (ImportError, OSError, AttributeError):
        return None
    return libc
