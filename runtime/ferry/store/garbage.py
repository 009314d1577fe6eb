"""Bytes inside files that are never looked at again: given back to the file system a little at a time, on another thread.

It takes a disk long to forget: with one that was busy, half of the time that an instance's loop stood went there. Who looks
at the file meanwhile may have to wait, so most of the time nothing is given back.
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
"""Are given back at a time: file systems write first what they then forget."""
PUNCHES = 4
"""At a time, at most."""
REST_TIMES = 9
"""So many times as long as one took, nothing is given back,"""
PLENTY_BYTES = 4 * mapped.RESERVE_BYTES
"""as long as so much is free."""

FILES = 4
"""Of all tables of a process are open for that at a time."""

Range = tuple[Path, int, int]
"""File, begin, end."""

_PUNCH_HOLE_KEEP_SIZE = 0x3
_LIBC = ctypes.CDLL(None, use_errno=True)
_open = 0
_lock = threading.Lock()


def is_busy() -> bool:
    """Whether no table can begin to give something back now."""
    return _open >= FILES


class Garbage:
    """Of one table."""

    def __init__(self) -> None:
        self._ranges: deque[Range] = deque()
        self._giving: Future[None] | None = None

    def add(self, ranges: Iterable[Range]) -> None:
        """They read as zeros from some time on, or as before: only whole pages are given back, of neighbours together."""
        for path, begin, end in ranges:
            if self._ranges and self._ranges[-1][0] == path and self._ranges[-1][2] == begin:
                begin = self._ranges.pop()[1]
            self._ranges.append((path, begin, end))

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
        if not self._ranges or is_busy():
            return False
        while self._ranges and not _pages(*self._ranges[0][1:]):
            self._ranges.popleft()
        if not self._ranges:
            return False
        path = self._ranges[0][0]
        try:
            # Open from now on: another file may get its name.
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # Too many files are open: it can wait.
            return False
        _count(1)
        self._giving = mapped.DISK.submit(_give_back, descriptor, self._next(path))
        return True

    def _next(self, path: Path) -> list[tuple[int, int]]:
        """Some ranges of this file."""
        left, some = PUNCH_BYTES, []
        while self._ranges and self._ranges[0][0] == path and left > 0:
            pages = _pages(*self._ranges.popleft()[1:])
            if pages is None:
                continue
            begin, end = pages
            if end - begin > left:
                self._ranges.appendleft((path, begin + left, end))
                end = begin + left
            some.append((begin, end))
            left -= max(end - begin, PUNCH_BYTES // PUNCHES)
        return some


def _pages(begin: int, end: int) -> tuple[int, int] | None:
    """Those that are in between as a whole."""
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
    """Give these bytes back, where the file system can."""
    _LIBC.fallocate(descriptor, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_int64(begin), ctypes.c_int64(end - begin))
