"""Files of segments that are not needed any more, removed one at a time: by a thread, for the loop has other things to do.

To unlink a file waits for the file system's journal, a tenth of a second on a busy disk; to let go of one that is unlinked
already takes as long as it is large. The order is that in which they were given up: a segment replaces those it was made of,
and says so, as long as it is there. What is left when a process ends is removed by the next.
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
"""For a file to go when there is nothing else to do."""


def unlink(path: Path) -> None:
    """Remove a file that may be gone."""
    path.unlink(missing_ok=True)


def finish() -> None:
    """Wait for what other states of this process have begun to remove: whoever opens their files looks at all of them."""
    mapped.DISK.submit(lambda: None).result()


class Removals:
    """What one state has given up."""

    def __init__(self) -> None:
        self._given_up: deque[Segment] = deque()
        self._read: deque[Segment] = deque()
        """By readers that are done. The last reference to a removed one frees its bytes: they are let go one at a time."""
        self._under_way: Future[None] | None = None

    def add(self, segment: Segment) -> None:
        """Its file has to go; whoever looks into it may go on."""
        self._given_up.append(segment)

    def keep(self, segments: list[Segment], reader: Iterator[pa.RecordBatch]) -> None:
        """Until the reader is gone, however it ends, and until a later `step` has let go of each."""
        weakref.finalize(reader, self._read.extend, segments).atexit = False

    def step(self, used: set[int]) -> bool:
        """Begin to remove a file, or let go of one; False when there was none. `used`: sequences of the state's segments."""
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
            self._under_way.result()  # raises what the thread could not do
            self._under_way = None

    def wait(self) -> bool:
        """A moment for the file that is being removed; False when there is nothing to remove."""
        if self._under_way is None:
            return False
        if not wait([self._under_way], WAIT_SECONDS).not_done:
            self._end()
        return True
