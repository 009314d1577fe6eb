"""An aggregator by key: in windows of event time, or over all records of the key so far.

Windows are unions of panes, as in the built-in aggregates (`ferry.contract.descriptors`): each pane of a key has one
state, shared by its windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ferry.contract.descriptors import Window
from ferry.contract.errors import SpecRefused
from ferry.contract.limits import WATERMARK_END
from ferry.kernels.columns import indices
from ferry.kernels.grouping import Ints
from ferry.kernels.panes import last_ends
from ferry.process.aggregator import Aggregator, merged_states, of_key, open_aggregator, results, rows_of, taken_in
from ferry.process.api import Process, Work
from ferry.process.groups import at_once, distinct, distinct_pairs
from ferry.process.tables import Entries, StateTable

PANES = "panes"
"""Table of the panes of each key, by their start."""

STATE = "state"
"""Table of the one state of each key."""

STATES_AT_ONCE = 1 << 18
"""Panes of windows that are merged at a time."""


def next_ends(window: Window, panes: Ints, watermark: int) -> Ints:
    """The earliest end of a window of each pane that the watermark has not reached."""
    size, slide = window.size_ms, window.slide_ms
    first = -(-(panes + window.pane_ms - size) // slide) * slide + size
    return np.maximum(first, (watermark - size) // slide * slide + slide + size)


def fired_windows(window: Window, panes: Ints, low: int, high: int) -> tuple[Ints, Ints]:
    """Every window of each pane with low < end <= high: (number of the pane, end of the window)."""
    first, last = next_ends(window, panes, low), np.minimum(last_ends(window, panes), high)
    fired = np.maximum((last - first) // window.slide_ms + 1, 0)
    member = np.repeat(np.arange(panes.size), fired)
    return member, first[member] + indices(np.zeros(panes.size, np.int64), fired) * window.slide_ms


@dataclass
class WindowAggregate(Process):
    """Aggregates of each window. Output: the key, window_start, window_end, then what the aggregator yields.

    Parameters:
        size_ms, slide_ms: windows [start, start + size), whose starts are multiples of the slide, in milliseconds.
        aggregator: keeps the state of a pane, and computes the result of a window.
    """

    size_ms: int
    slide_ms: int
    aggregator: Aggregator

    def open(self, key: pa.Schema, inputs: Sequence[pa.Schema]) -> None:
        """Set the tables and the output from the key and the aggregator."""
        open_aggregator(self.aggregator, inputs[0])
        self.window = Window(self.size_ms, self.slide_ms)
        self.tables = {PANES: StateTable(self.aggregator.state, pa.int64())}
        window = pa.schema([("window_start", pa.int64()), ("window_end", pa.int64())])
        self.output = pa.schema([*key, *window, *self.aggregator.output])

    def process(self, work: Work) -> None:
        """Put rows into panes, and emit the windows that are final now."""
        pane = self.window.pane_ms
        starts = work.times() // pane * pane
        timely = last_ends(self.window, starts) > work.low
        work.late(int(timely.size - timely.sum()))
        kept = work.read(PANES)
        key = np.concatenate([kept.key, work.key_of()[timely]])
        start = np.concatenate([_starts(kept), starts[timely]])
        keys, panes, group = distinct_pairs(key, start)
        if not keys.size:
            return
        old, new = group[: kept.key.size], group[kept.key.size :]
        rows = rows_of(self.aggregator, work).filter(pa.array(timely))
        with of_key(work, keys):
            states = taken_in(self.aggregator, kept.values, old, rows, new)
        self._emit(work, keys, panes, states)
        over = last_ends(self.window, panes) <= work.watermark
        changed = np.zeros(keys.size, np.bool_)
        changed[new] = True
        stays, gone = np.flatnonzero(changed & ~over), old[over[old]]
        work.put(PANES, keys[stays], states.take(pa.array(stays)), panes[stays])
        work.remove(PANES, keys[gone], panes[gone])
        work.set_timer(keys[~over], next_ends(self.window, panes[~over], work.watermark))

    def _emit(self, work: Work, keys: Ints, panes: Ints, states: pa.RecordBatch) -> None:
        """Every window with low < end <= watermark."""
        member, ends = fired_windows(self.window, panes, work.low, work.watermark)
        if not member.size:
            return
        key, end, group = distinct_pairs(keys[member], ends)
        order = np.argsort(group, kind="stable")  # panes stay in order
        panes_until = np.searchsorted(group[order], np.arange(key.size), "right")
        begin, taken, step = 0, 0, at_once(states, STATES_AT_ONCE)
        while begin < key.size:
            stop = max(begin + 1, int(np.searchsorted(panes_until, taken + step, "right")))
            keys_now, of = slice(begin, stop), order[taken : panes_until[stop - 1]]
            with of_key(work, key):
                merged = merged_states(self.aggregator, states.take(pa.array(member[of])), group[of])
            columns = [
                *work.keys.take(pa.array(key[keys_now])).columns,
                pa.array(end[keys_now] - self.size_ms),
                pa.array(end[keys_now]),
            ]
            with of_key(work, key[keys_now]):
                work.emit(key[keys_now], results(self.aggregator, merged, columns, self.output))
            begin, taken = stop, int(panes_until[stop - 1])


@dataclass
class KeyAggregate(Process):
    """Aggregates of all records of a key. Output: the key, then what the aggregator yields.

    Parameters:
        aggregator: keeps the state of a key, and computes its result.
        emit: "changes": a row for each key that an epoch has changed; "end": one for each key when the input is over.
    """

    aggregator: Aggregator
    emit: str = "changes"

    def open(self, key: pa.Schema, inputs: Sequence[pa.Schema]) -> None:
        """Set the tables and the output from the key and the aggregator."""
        if self.emit not in ("changes", "end"):
            raise SpecRefused(
                f"emit={self.emit!r}: an aggregate of all records is emitted by 'changes' or at the 'end'"
            )
        open_aggregator(self.aggregator, inputs[0])
        self.tables = {STATE: StateTable(self.aggregator.state)}
        self.output = pa.schema([*key, *self.aggregator.output])

    def process(self, work: Work) -> None:
        """Merge rows into the states of their keys."""
        kept = work.read(STATE)
        all_keys = np.concatenate([kept.key, work.key_of()])
        keys = distinct(all_keys, work.count)
        if not keys.size:
            return
        group = np.searchsorted(keys, all_keys)
        old, new = group[: kept.key.size], group[kept.key.size :]
        with of_key(work, keys):
            states = taken_in(self.aggregator, kept.values, old, rows_of(self.aggregator, work), new)
        changed = distinct(new, keys.size)
        work.put(STATE, keys[changed], states.take(pa.array(changed)))
        if self.emit == "end" and work.watermark < WATERMARK_END:
            work.set_timer(keys[changed], WATERMARK_END)
            return
        shown = changed if self.emit == "changes" else np.arange(keys.size)
        columns = work.keys.take(pa.array(keys[shown])).columns
        with of_key(work, keys[shown]):
            work.emit(keys[shown], results(self.aggregator, states.take(pa.array(shown)), columns, self.output))


def _starts(panes: Entries) -> Ints:
    assert panes.entry is not None
    return panes.entry.to_numpy(zero_copy_only=False)
