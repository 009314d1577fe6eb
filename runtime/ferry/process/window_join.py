"""Joins of two inputs in windows of event time that also emit records without a partner: left, right and full outer
joins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ferry.contract.descriptors import Window
from ferry.kernels.grouping import Ints
from ferry.kernels.panes import last_ends
from ferry.process.api import Process, Work
from ferry.process.groups import distinct_pairs
from ferry.process.joins import (
    SIDES,
    TIME,
    beside,
    check_how,
    group_of,
    keep_rows,
    kept_schemas,
    null_keys,
    pairs_of,
    times_of,
)
from ferry.process.tables import Entries, StateTable
from ferry.process.windowed import fired_windows, next_ends


@dataclass
class WindowJoin(Process):
    """Pairs of records with the same key in the same window. Output: window_start, window_end, left and right columns.

    Parameters:
        size_ms, slide_ms: windows [start, start + size), whose starts are multiples of the slide, in milliseconds.
        left, right: columns that are kept of each input: {output name: column}.
        how: "inner", "left", "right" or "full": the inputs whose records are emitted without a partner, too, with nulls.
    """

    size_ms: int
    slide_ms: int
    left: dict[str, str]
    right: dict[str, str]
    how: str = "inner"

    def open(self, key: pa.Schema, inputs: Sequence[pa.Schema]) -> None:
        """Set the tables and the output from the kept columns."""
        check_how(self.how)
        self.window = Window(self.size_ms, self.slide_ms)
        window = pa.schema([("window_start", pa.int64()), ("window_end", pa.int64())])
        sides = kept_schemas((self.left, self.right), inputs, window.names)
        stored = [StateTable(pa.schema([(TIME, pa.int64()), *side]), pa.int64()) for side in sides]
        self.tables = dict(zip(SIDES, stored, strict=True))
        self.output = pa.schema([*window, *sides[0], *sides[1]])

    def process(self, work: Work) -> None:
        """Keep rows; when windows of a key are final, read its rows and emit them."""
        due = work.timers().key
        for side, columns in enumerate((self.left, self.right)):
            timely = last_ends(self.window, self._panes(work.times(side))) > work.low
            work.late(int(timely.size - timely.sum()))
            rows = keep_rows(work, side, columns, timely)
            work.put(SIDES[side], rows.key, rows.values, rows.entry)
            self._wait(work, rows)
            fires = next_ends(self.window, self._panes(times_of(rows)), work.low) <= work.watermark
            due = np.append(due, rows.key[fires])
        if due.size:
            self._fire(work, due)

    def _panes(self, times: Ints) -> Ints:
        return times // self.window.pane_ms * self.window.pane_ms

    def _wait(self, work: Work, rows: Entries) -> None:
        """Set a timer for the next end of a window of these rows, if there is one."""
        panes = self._panes(times_of(rows))
        open_ = last_ends(self.window, panes) > work.watermark
        ends = next_ends(self.window, panes[open_], work.watermark)
        keys, times, _ = distinct_pairs(rows.key[open_], ends)
        work.set_timer(keys, times)

    def _fire(self, work: Work, due: Ints) -> None:
        """Emit windows of these keys with low < end <= watermark; remove rows whose windows are all final."""
        sides, keys, ends = [], [], []
        for name in SIDES:
            rows = work.read(name, due)
            member, end = fired_windows(self.window, self._panes(times_of(rows)), work.low, work.watermark)
            sides.append(rows.at(member))
            keys.append(rows.key[member])
            ends.append(end)
            over = rows.at(last_ends(self.window, self._panes(times_of(rows))) <= work.watermark)
            work.remove(name, over.key, over.entry)
            self._wait(work, rows)
        key, end, group = distinct_pairs(np.concatenate(keys), np.concatenate(ends))
        groups = [group[: keys[0].size], group[keys[0].size :]]
        orders = [np.argsort(side, kind="stable") for side in groups]
        sides = [rows.at(order) for rows, order in zip(sides, orders, strict=True)]
        groups = [side[order] for side, order in zip(groups, orders, strict=True)]
        lefts, rights = pairs_of(groups[0], groups[1], self.how, null_keys(work)[key])
        of = group_of(groups, lefts, rights)
        columns = [
            pa.array(end[of] - self.size_ms),
            pa.array(end[of]),
            *beside(sides[0], lefts),
            *beside(sides[1], rights),
        ]
        work.emit(key[of], pa.RecordBatch.from_arrays(columns, schema=self.output))
