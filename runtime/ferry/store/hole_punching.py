"""Unused byte ranges of files, given back to the file system a little at a time, on another thread (punched holes).

Punching holes takes a disk long: on a busy disk it caused half of the time in which an instance's loop stood still.
Other accesses to the file may wait meanwhile, so most of the time no hole is punched.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path

from ferry.store import mapped

PUNCH_BYTES = 1024 * 1024
"""Bytes per step: file systems first write the pages that they then free."""
PUNCHES = 4
"""Holes per step, at most."""
REST_TIMES = 9
"""Rest 9 times as long as a punch took ..."""
PLENTY_BYTES = 4 * mapped.RESERVE_BYTES
"""... unless less than this is free."""

FILES = 4
"""Files open for this at a time, over all tables of a process."""

Range = tuple[Path, int, int]
"""File, begin, end."""

_PUNCH_HOLE_KEEP_SIZE = 0x3
_LIBC = ctypes.CDLL(None, use_errno=True)
_open = 0
_lock = threading.Lock()


def is_busy() -> bool:
    """Whether no table can begin a step now."""
    return _open >= FILES


class HolePuncher:
    """The unused ranges of one table."""

    def __init__(self) -> None:
        self._ranges: deque[Range] = deque()
        self._giving: Future[None] | None = None

    def add(self, ranges: Iterable[Range]) -> None:
        """Add unused ranges. They read as zeros at some time, or as before: only whole pages are freed, of neighbours
        together."""
        for path, begin, end in ranges:
            if self._ranges and self._ranges[-1][0] == path and self._ranges[-1][2] == begin:
                begin = self._ranges.pop()[1]
            self._ranges.append((path, begin, end))

    @property
    def is_left(self) -> bool:
        """Whether ranges are left to punch."""
        return bool(self._ranges) or self._giving is not None

    def give_back(self) -> bool:
        """Begin a step; False when there is no range, or it is too soon."""
        if self._giving is not None:
            if not self._giving.done():
                return False
            self._giving.result()
            self._giving = None
        if not self._ranges or is_busy():
            return False
        while self._ranges and not _pages(*self._ranges[0][1:]):
            self._ranges.popleft()
        if not self._ranges:
            return False
        path = self._ranges[0][0]
        try:
            # Open from now on, because another file may get this name.
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # Too many open files: try again later.
            return False
        _count(1)
        self._giving = mapped.DISK.submit(_give_back, descriptor, self._next(path))
        return True

    def _next(self, path: Path) -> list[tuple[int, int]]:
        """The next ranges of this file."""
        left, ranges = PUNCH_BYTES, []
        while self._ranges and self._ranges[0][0] == path and left > 0:
            pages = _pages(*self._ranges.popleft()[1:])
            if pages is None:
                continue
            begin, end = pages
            if end - begin > left:
                self._ranges.appendleft((path, begin + left, end))
                end = begin + left
            ranges.append((begin, end))
            left -= max(end - begin, PUNCH_BYTES // PUNCHES)
        return ranges


def _pages(begin: int, end: int) -> tuple[int, int] | None:
    """The whole pages within a range."""
    begin, end = -(-begin // mapped.PAGE_BYTES) * mapped.PAGE_BYTES, end // mapped.PAGE_BYTES * mapped.PAGE_BYTES
    return (begin, end) if begin < end else None


def _count(more: int) -> None:
    global _open
    with _lock:
        _open += more


def _give_back(descriptor: int, ranges: list[tuple[int, int]]) -> None:
    try:
        for begin, end in ranges:
            begun = time.monotonic()
            punch(descriptor, begin, end)
            disk = os.fstatvfs(descriptor)
            if disk.f_bavail * disk.f_frsize >= PLENTY_BYTES:
                time.sleep(REST_TIMES * (time.monotonic() - begun))
    finally:
        os.close(descriptor)
        _count(-1)


def punch(descriptor: int, begin: int, end: int) -> None:
    """Free these bytes, if the file system supports it."""
    _LIBC.fallocate(descriptor, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_int64(begin), ctypes.c_int64(end - begin))
