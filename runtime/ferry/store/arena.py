"""A mapped file cut into blocks, which are written once and stay as they are for as long as anybody looks at them.

A block is free again when the last buffer over it is gone: whoever reads it, or sends from it, holds such a buffer.
It must never give out bytes that somebody still looks at. One thread takes blocks; they may end on any.
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
    """Bytes of the file. The block ends with its buffer, and with all that was cut from that."""

    offset: int
    buffer: pa.Buffer


class Arena:
    """The blocks of one file, which has all its room on the disk from the start."""

    def __init__(self, path: Path, size: int) -> None:
        """`size`: bytes, whole pages. Raises Exhausted when there is no room."""
        self.mapping = mapped.reserved(path, size)
        self._free = [(0, size)]
        self._ended: deque[tuple[int, int]] = deque()
        """Blocks whose last buffer is gone. No lock: that may happen inside of anything, also inside of this class."""

    def take(self, size: int) -> Block | None:
        """A free block of that many bytes; None when there is none so large."""
        self._reclaim()
        offset = next((low for low, high in self._free if high - low >= size), None)
        return None if offset is None else self.claim(offset, size)

    def claim(self, offset: int, size: int) -> Block | None:
        """The block at that place, with what it holds; None when not all of it is free."""
        end = offset + -(-size // ALIGN_BYTES) * ALIGN_BYTES
        for i, (low, high) in enumerate(self._free):
            if low <= offset and end <= high:
                self._free[i : i + 1] = [part for part in ((low, offset), (end, high)) if part[0] < part[1]]
                view = np.frombuffer(self.mapping, np.uint8, size, offset)
                weakref.finalize(view, self._ended.append, (offset, end)).atexit = False
                return Block(offset, pa.py_buffer(view))
        return None

    def _reclaim(self) -> None:
        """Ended blocks are free, and neighbours one."""
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
