"""The C library's use of memory, for processes whose arrays are freed and allocated in each epoch, or by many threads."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8

ARRAY_BYTES = 32 * 1024 * 1024
"""Larger blocks are mapped and given back alone; glibc allows no more."""

PAD_BYTES = 8 * 1024 * 1024
"""Added to each growth of the heap."""


def keep_freed(at_most: int) -> None:
    """Have the C library keep this many bytes of freed memory: memory that it gives back costs a fault for each page in the
    next epoch."""
    _set({_MMAP_THRESHOLD: ARRAY_BYTES, _TRIM_THRESHOLD: at_most, _TOP_PAD: PAD_BYTES})


def share_freed(arenas: int) -> None:
    """Have threads share this many heaps: each heap keeps the memory that its threads have freed."""
    _set({_ARENA_MAX: arenas})


def _set(options: dict[int, int]) -> None:
    """Without effect where the C library has no `mallopt`."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    for option, value in options.items():
        mallopt(option, value)
