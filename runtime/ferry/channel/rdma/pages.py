"""Memory in huge pages for the rings of links, as far as the system gives some.

One huge page replaces 512 small ones, so a device needs fewer entries for a ring. It must never end the process: pages are
populated by a request that fails, because a first write to a page that the container may not have ends it with SIGBUS.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import threading
from collections import deque
from collections.abc import Callable

from ferry.channel.rdma.memory import PAGE_BYTES

log = logging.getLogger(__name__)

HUGE_BYTES = 2 << 20

_HUGETLB, _HUGE_2MB = 0x40000, 21 << 26
_POPULATE_WRITE = 23
"""Of <linux/mman.h>; Python has no names for them."""

Block = tuple[mmap.mmap, int, int]
"""(mapping, offset, bytes)"""


def map_huge(size: int) -> mmap.mmap:
    """A populated shared mapping of huge pages. Raises OSError when the system gives none."""
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _HUGETLB | _HUGE_2MB)
    try:
        mapping.madvise(_POPULATE_WRITE)
    except OSError:
        mapping.close()
        raise
    return mapping


class HugePages:
    """Blocks of at most `maximum` bytes of huge pages in total. Thread-safe."""

    def __init__(self, maximum: int = 0, map_pages: Callable[[int], mmap.mmap] = map_huge) -> None:
        self.maximum = maximum
        """no more than this; lower when the system gave less"""
        self._map_pages = map_pages
        self._lock = threading.Lock()
        self._free: list[Block] = []
        self._returned = deque[Block]()
        self._mapped = 0
        self._used = 0
        self.refusal = ""
        """why some blocks are in small pages, else empty"""

    @property
    def used(self) -> int:
        """Bytes of blocks in use."""
        with self._lock:
            self._take_back()
            return self._used

    def take(self, size: int) -> Block | None:
        """A block, zeroed; None: use small pages. The log has the reason, once."""
        if not self.maximum:
            return None
        size = -(-size // PAGE_BYTES) * PAGE_BYTES
        with self._lock:
            self._take_back()
            block = self._fitting(size) or self._more(size)
            if block is None:
                return None
            mapping, offset, length = block
            if length > size:
                self._free.append((mapping, offset + size, length - size))
            self._used += size
        mapping[offset : offset + size] = bytes(size)
        return mapping, offset, size

    def give(self, block: Block) -> None:
        """The block is not in use any more. Takes no lock: the garbage collector may call it at any time."""
        self._returned.append(block)

    def _take_back(self) -> None:
        """Returned blocks become free; neighbours become one block."""
        while self._returned:
            mapping, offset, size = self._returned.popleft()
            self._used -= size
            for other in [free for free in self._free if free[0] is mapping]:
                if other[1] + other[2] == offset or offset + size == other[1]:
                    self._free.remove(other)
                    offset, size = min(offset, other[1]), size + other[2]
            self._free.append((mapping, offset, size))

    def close(self) -> None:
        """Unmap every mapping without a view."""
        with self._lock:
            self._take_back()
            for mapping in {id(block[0]): block[0] for block in self._free}.values():
                with contextlib.suppress(BufferError):
                    mapping.close()
            self._free = []
            self.maximum = 0

    def _fitting(self, size: int) -> Block | None:
        """The smallest free block that suffices, taken from the free ones."""
        block = min((free for free in self._free if free[2] >= size), key=lambda free: free[2], default=None)
        if block is not None:
            self._free.remove(block)
        return block

    def _more(self, size: int) -> Block | None:
        length = -(-size // HUGE_BYTES) * HUGE_BYTES
        if self._mapped + length > self.maximum:
            self._report(f"{self._mapped + length} bytes would be more than the {self.maximum} that the job asks for")
            return None
        try:
            mapping = self._map_pages(length)
        except (OSError, ValueError) as error:
            self._report(str(error))
            self.maximum = self._mapped
            return None
        self._mapped += length
        return mapping, 0, length

    def _report(self, reason: str) -> None:
        if not self.refusal:
            self.refusal = reason
            log.warning("rings of links are in pages of %d bytes and not in huge pages: %s", PAGE_BYTES, reason)
