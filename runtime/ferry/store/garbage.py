"""Bytes inside files that are never looked at again: given back to the file system a little at a time, on another thread.

It takes a disk long to forget: with one that was busy, half of the time that an instance's loop stood went there. Who looks
at the file meanwhile may have to wait, so most of the time nothing is given back.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path

from ferry.store import mapped

PUNCH_BYTES = 1024 * 1024
"""Are given back at a time: file systems write first what they then forget."""
PUNCHES = 4
"""At a time, at most."""
REST_TIMES = 9
"""So many times as long as one took, nothing is given back."""

Range = tuple[Path, int, int]
"""File, begin, end."""

_PUNCH_HOLE_KEEP_SIZE = 0x3
_LIBC = ctypes.CDLL(None, use_errno=True)


class Garbage:
    """Of one table."""

    def __init__(self) -> None:
        self._ranges: deque[Range] = deque()
        self._giving: Future[None] | None = None

    def add(self, ranges: Iterable[Range]) -> None:
        """They read as zeros from some time on, or as before where the file system cannot do that."""
        self._ranges.extend(ranges)

    @property
    def is_left(self) -> bool:
        """Whether something will be given back."""
        return bool(self._ranges) or self._giving is not None

    def give_back(self) -> bool:
        """Begin with a little of it; False when there is nothing, or it is too soon."""
        if self._giving is not None:
            if not self._giving.done():
                return False
            self._giving.result()
            self._giving = None
        if not self._ranges:
            return False
        path, some = self._next()
        # Open from now on: another file may get its name.
        self._giving = mapped.DISK.submit(punch, os.open(path, os.O_RDWR | os.O_CLOEXEC), some)
        return True

    def _next(self) -> tuple[Path, list[tuple[int, int]]]:
        """Some ranges of one file."""
        path, left, some = self._ranges[0][0], PUNCH_BYTES, []
        while self._ranges and self._ranges[0][0] == path and left > 0:
            _, begin, end = self._ranges.popleft()
            if end - begin > left:
                self._ranges.appendleft((path, begin + left, end))
                end = begin + left
            some.append((begin, end))
            left -= max(end - begin, PUNCH_BYTES // PUNCHES)
        return path, some


def punch(descriptor: int, ranges: list[tuple[int, int]]) -> None:
    """Give them back, with a rest after each, and close the file."""
    try:
        for begin, end in ranges:
            begun = time.monotonic()
            _LIBC.fallocate(descriptor, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_int64(begin), ctypes.c_int64(end - begin))
            time.sleep(REST_TIMES * (time.monotonic() - begun))
    finally:
        os.close(descriptor)
