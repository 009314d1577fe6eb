"""A mapped file cut into blocks, which are written once and do not change as long as a buffer refers to them.

A block is free again when the last buffer over it is gone: readers and senders hold such a buffer. The arena must never
reuse bytes that are still read. One thread takes blocks; they may end on any thread.
"""

from __future__ import annotations

import weakref
from collections import deque
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ferry.store import mapped

ALIGN_BYTES = 64


class Block(NamedTuple):
    """Bytes of the file. The block ends with its buffer, and with every slice of that buffer."""

    offset: int
    buffer: pa.Buffer


class Arena:
    """The blocks of one file, whose whole space on disk is allocated at the start."""

    def __init__(self, path: Path, size: int) -> None:
        """`size`: bytes, whole pages. Raises Exhausted without room."""
        self.mapping = mapped.reserved(path, size)
        self._free = [(0, size)]
        self._ended: deque[tuple[int, int]] = deque()
        """Blocks whose last buffer is gone. No lock: a buffer may end anywhere, also within this class."""

    def take(self, size: int) -> Block | None:
        """A free block of this many bytes; None if no free block is large enough."""
        self._reclaim()
        offset = next((low for low, high in self._free if high - low >= size), None)
        return None if offset is None else self.claim(offset, size)

    def claim(self, offset: int, size: int) -> Block | None:
        """The block at this place, with its content; None unless all of it is free."""
        end = offset + -(-size // ALIGN_BYTES) * ALIGN_BYTES
        for i, (low, high) in enumerate(self._free):
            if low <= offset and end <= high:
                self._free[i : i + 1] = [part for part in ((low, offset), (end, high)) if part[0] < part[1]]
                view = np.frombuffer(self.mapping, np.uint8, size, offset)
                weakref.finalize(view, self._ended.append, (offset, end)).atexit = False
                return Block(offset, pa.py_buffer(view))
        return None

    def _reclaim(self) -> None:
        """Make ended blocks free, and merge neighbours."""
        if not self._ended:
            return
        while self._ended:
            self._free.append(self._ended.popleft())
        parts = sorted(self._free)
        self._free = parts[:1]
        for low, high in parts[1:]:
            if low == self._free[-1][1]:
                self._free[-1] = (self._free[-1][0], high)
            else:
                self._free.append((low, high))
