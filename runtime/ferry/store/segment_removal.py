"""Removal of obsolete segment files, one at a time, on a thread: the loop has other work.

An unlink waits for the file system's journal, a tenth of a second on a busy disk; freeing an unlinked file takes time
by its size. Files are removed in the order in which they became obsolete: a segment names the segments that it replaces
as long as it exists. Files left at the end of a process are removed by the next one.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, wait
from pathlib import Path

import pyarrow as pa

from ferry.store import mapped
from ferry.store.segments import Segment

LOOK_AT_ONCE = 256

WAIT_SECONDS = 0.001
"""Wait for a file removal when there is no other work."""


def unlink(path: Path) -> None:
    """Remove a file that may not exist."""
    path.unlink(missing_ok=True)


def finish() -> None:
    """Wait for removals of other states in this process: a state that is opened lists all of its files."""
    mapped.DISK.submit(lambda: None).result()


class SegmentRemoval:
    """The obsolete segments of one state."""

    def __init__(self) -> None:
        self._given_up: deque[Segment] = deque()
        self._read: deque[Segment] = deque()
        """Segments of finished readers. The last reference to a removed one frees its bytes: they are dropped one at a
        time."""
        self._under_way: Future[None] | None = None

    def add(self, segment: Segment) -> None:
        """Remove the file of this segment; readers may go on."""
        self._given_up.append(segment)

    def keep(self, segments: list[Segment], reader: Iterator[pa.RecordBatch]) -> None:
        """Keep the segments until the reader has ended, however it ends, and a later `step` has dropped each."""
        weakref.finalize(reader, self._read.extend, segments).atexit = False

    def step(self, used: set[int]) -> bool:
        """Begin to remove a file, or drop a segment; False when there was none. `used`: sequences of the state's
        segments."""
        for _ in range(min(LOOK_AT_ONCE, len(self._read))):
            if self._read.popleft().sequence not in used:
                return True
        if not self._given_up or (self._under_way is not None and not self._under_way.done()):
            return bool(self._read)
        self._end()
        self._under_way = mapped.DISK.submit(unlink, self._given_up.popleft().path)
        return True

    def _end(self) -> None:
        if self._under_way is not None:
            self._under_way.result()  # raises the thread's error
            self._under_way = None

    def wait(self) -> bool:
        """Wait a moment for the file that is being removed; False when there is none."""
        if self._under_way is None:
            return False
        if not wait([self._under_way], WAIT_SECONDS).not_done:
            self._end()
        return True
