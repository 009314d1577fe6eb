"""The slices of an aggregate on disk: which there are, which are open, and the return of their unneeded space.

A job may have more slices than a process may open files, so some are open. Forgotten entries are left out at once, and
leave the disk later, in pieces (`work`).
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import deque
from itertools import islice
from pathlib import Path

import numpy as np

from ferry.kernels.grouping import Ints
from ferry.store import hole_punching, mapped
from ferry.store.dropped_vnodes import DroppedVnodes
from ferry.store.inventory import Inventory
from ferry.store.slice_files import CUT_BYTES
from ferry.store.slice_table import RowArrays, SliceTable

OPEN_MAX = 512
"""Largest number of open slices, each with at most two files: epochs write few, and a limit of 1,024 files is usual."""

EXPIRE_AT_ONCE = 64
TIDY_AT_ONCE = 64


class Slices:
    """One `SliceTable` per slice, in `directory`. `width`: words of a row."""

    def __init__(self, directory: Path, virtual_nodes: int, width: int, by_bytes: bool, memory_bytes: int) -> None:
        """Open the slices that are there; files of unfinished growth are removed. Raises StateUnavailable if damaged."""
        self._directory = directory
        self._width = width
        self._by_bytes = by_bytes
        self._memory_bytes = memory_bytes
        self._drops = DroppedVnodes(directory / "drops", virtual_nodes)
        self._inventory = Inventory(directory)
        self.starts = sorted(self._inventory.digests)
        """of the slices that have not expired, in order"""
        self._open: dict[int, SliceTable] = {}
        """by slice; least recently used first"""
        self._opening = threading.Lock()
        """Other threads read fired rows while a delta is computed, or a snapshot made."""
        self._over: deque[SliceTable | int] = deque()
        """Expired slices that are still on disk."""
        self._untidy: dict[int, None] = dict.fromkeys(self.starts)
        """Slices that may have space to give back."""
        self._littered = set(self.starts)
        """Closed slices that still have space to give back."""
        self.entries = np.zeros(virtual_nodes, np.int64)
        self.bytes = np.zeros(virtual_nodes, np.int64)
        for kind in ("table", "heap"):
            for stray in self._inventory.require_known(int(path.stem) for path in directory.glob(f"*.{kind}")):
                (directory / f"{stray}.{kind}").unlink()
        for start in self.starts:
            self._open[start] = self._opened(start, verify=True)
            self.count(self.table(start).totals(), 1)
            self.trim_memory(0)

    def has(self, start: int) -> bool:
        """Whether there is such a slice, which has not expired."""
        at = bisect_left(self.starts, start)
        return at < len(self.starts) and self.starts[at] == start

    def table(self, start: int) -> SliceTable:
        """The open table of a slice, without dropped virtual nodes; moved to the end of the LRU order."""
        with self._opening:
            table = self._open.pop(start, None) or self._opened(start)
            self._open[start] = table
            table.settle()
            return table

    def _opened(self, start: int, verify: bool = False) -> SliceTable:
        if len(self._open) >= OPEN_MAX:
            self._close(1)
        while True:
            try:
                table = SliceTable(self._directory, start, self._width, self._by_bytes, self._drops, verify)
                if start in self._littered:
                    self._littered.remove(start)
                    table.find_garbage()
                return table
            except mapped.TooManyFiles:
                if not self._open:
                    raise
                self._close(-(-len(self._open) // 2))

    def _close(self, count: int) -> None:
        for start in list(self._open)[:count]:
            if self._open.pop(start).is_littered:
                self._littered.add(start)
                self._untidy[start] = None

    def count(self, totals: tuple[Ints, Ints], sign: int) -> None:
        """Add rows and bytes by virtual node to the sums, or take them away."""
        self.entries += sign * totals[0]
        self.bytes += sign * totals[1]

    # -- changing ---------------------------------------------------------------------------------------------------

    def put(self, start: int, rows: RowArrays, order: Ints, absent: bool, hints: Ints | None = None) -> None:
        """Upsert rows[order] into a slice, which is made if it is not there. Raises Exhausted before any write without
        room."""
        if not self.has(start):
            self._inventory.begins(start)
        table = self.table(start)
        mapped.require_room(self._directory, table.room_for(order.size) + rows.data.size)
        if not self.has(start):
            # The last slice may be filling up, the one before it is full. A closed table is not opened for this.
            newest = [self._open[each] for each in self.starts[-2:] if each in self._open]
            if newest:
                table.expect(max(newest, key=lambda each: int(each.counts.sum())))
            self._inventory.add(start)
            insort(self.starts, start)
        before = table.totals()
        table.put(rows, order, absent, hints)
        self.count(before, -1)
        self.count(table.totals(), 1)
        self.may_be_tidied(start)

    def may_be_tidied(self, start: int) -> None:
        """A slice may have space to give back."""
        self._untidy[start] = None

    def trim_memory(self, hot: int) -> None:
        """Page out tables beyond the memory, but for the last `hot` ones: the next epoch writes them again."""
        excess = sum(table.mapped_bytes for table in self._open.values()) - self._memory_bytes
        for table in list(self._open.values())[: max(0, len(self._open) - hot)]:
            if excess <= 0:
                return
            table.page_out()
            excess -= table.mapped_bytes

    def expire(self, count: int) -> None:
        """Forget the first slices; they never come back."""
        self._over.extend(self.starts[:count])
        del self.starts[:count]
        swept = 0
        for _ in range(min(count, EXPIRE_AT_ONCE)):
            if swept < CUT_BYTES:
                swept += self._sweep()

    def _sweep(self) -> int:
        """Remove a piece of an expired slice; returns approximately the freed bytes."""
        table = self._over.popleft()
        if isinstance(table, int):
            self._inventory.remove([table])
            self._untidy.pop(table, None)
            self._littered.discard(table)
            table = self._open.pop(table, None) or self._opened(table)
            self.count(table.totals(), -1)
        if table.shrink():
            self._over.append(table)
        return min(table.mapped_bytes, CUT_BYTES)

    def drop(self, vnodes: Ints) -> None:
        """Forget these virtual nodes. After an interruption, repeat it."""
        if not self.entries[vnodes].any():
            return
        self._drops.drop(vnodes, self._drops.last + 1, {})
        self.entries[vnodes] = self.bytes[vnodes] = 0
        self._untidy.update(dict.fromkeys(self.starts))

    def work(self) -> bool:
        """Free a little of the unneeded space; False when there was none, or not yet (`is_tidy`)."""
        if self._over:
            self._sweep()
            return True
        if hole_punching.is_busy():
            return False
        for start in list(islice(self._untidy, TIDY_AT_ONCE)):
            table = self.table(start) if self.has(start) else None
            if table is not None and table.tidy():
                return True
            del self._untidy[start]
            if table is not None and table.is_littered:
                self._untidy[start] = None  # Another slice is next: this one rests.
        return len(self._untidy) > TIDY_AT_ONCE

    @property
    def is_tidy(self) -> bool:
        """Whether no space is left to give back, now or later."""
        return not self._over and not self._untidy
