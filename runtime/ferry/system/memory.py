"""The C library's use of memory: an array of some MB that is given back after each epoch costs a fault for each of its pages
in the next epoch."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3

ARRAY_BYTES = 32 * 1024 * 1024
"""Larger blocks are mapped and given back alone; glibc allows no more."""

PAD_BYTES = 8 * 1024 * 1024
"""Added to each growth of the heap."""


def keep_freed(at_most: int) -> None:
    """Have the C library keep this many bytes of freed memory. Without effect where it has no `mallopt`."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    for option, value in ((_MMAP_THRESHOLD, ARRAY_BYTES), (_TRIM_THRESHOLD, at_most), (_TOP_PAD, PAD_BYTES)):
        mallopt(option, value)
