"""Session windows: records of a key that are at most a gap apart are one session; aggregated, or two inputs joined.

A session is final when the watermark has reached its end, the last record's time plus the gap. Records exactly a gap
apart are in one session. A record is late when a session of its own would have been final before the epoch.

Tasks condense records of an aggregate to parts of sessions, if the aggregator's states can be merged in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ferry.contract.limits import WATERMARK_NONE
from ferry.kernels.grouping import Ints
from ferry.kernels.numbering import ordered
from ferry.kernels.sessions import joined
from ferry.process.aggregator import (
    Aggregator,
    merged_states,
    of_key,
    open_aggregator,
    results,
    taken_in,
    timed_rows,
    updated,
)
from ferry.process.api import Process, SideRows, Work
from ferry.process.condensing import Condensing
from ferry.process.groups import distinct
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

OPEN = "sessions"
"""Table of the open sessions, by key and first time."""

WINDOW = [("window_start", pa.int64()), ("window_end", pa.int64())]


class Formed(NamedTuple):
    """Sessions of touched keys after the rows of an epoch, sorted by (key, start)."""

    key: Ints
    start: Ints
    last: Ints
    timer: Ints
    """A timer that is set for it, at its end or before."""
    is_set: Any
    """Mask of sessions whose timer was set before."""
    old: Ints
    """For each session that was open before: the session that now includes it."""
    rows: Ints
    """For each row: its session."""


def formed(gap: int, watermark: int, open_: Entries, key: Ints, starts: Ints, lasts: Ints) -> Formed:
    """Sessions from open sessions and rows in any order, each row from a start to a last time."""
    before = np.zeros(0, np.int64) if open_.entry is None else open_.entry.to_numpy(zero_copy_only=False)
    ends, timers = (open_.values.column(name).to_numpy(zero_copy_only=False) for name in ("last", "timer"))
    keys, starts = np.concatenate([open_.key, key]), np.concatenate([before, starts])
    order = ordered(keys, starts)
    in_order, begin = keys[order], starts[order]
    of_each, begins, last = joined(in_order, begin, np.concatenate([ends, lasts])[order], gap, WATERMARK_NONE)
    session = np.empty(order.size, np.int64)
    session[order] = of_each
    old = session[: before.size]
    timer = last + gap
    pending = timers > watermark
    timer[old[pending]] = timers[pending]
    is_set = np.zeros(begins.size, np.bool_)
    is_set[old[pending]] = True
    return Formed(in_order[begins], begin[begins], last, timer, is_set, old, session[before.size :])


def on_time(work: Work, side: int, gap: int) -> Any:
    """Mask of the rows of an input that are not late; late ones are counted."""
    kept = work.times(side) + gap > work.low
    work.late(int(kept.size - kept.sum()))
    return kept


def keep_open(work: Work, before: Entries, now: Formed, final: Any, states: Any = None) -> None:
    """Write sessions that are not final yet, and forget the others."""
    changed = distinct(np.concatenate([now.rows, np.flatnonzero(~now.is_set)]), now.key.size)
    keep = changed[~final[changed]]
    values = {"last": now.last[keep], "timer": now.timer[keep]}
    if states is not None:
        taken = states.take(pa.array(keep))
        values |= dict(zip(taken.schema.names, taken.columns, strict=True))
    unset = keep[~now.is_set[keep]]
    work.set_timer(now.key[unset], now.timer[unset])
    if before.entry is not None and before.key.size:
        starts = before.entry.to_numpy(zero_copy_only=False)
        gone = final[now.old] | (now.start[now.old] != starts)
        work.remove(OPEN, before.key[gone], pa.array(starts[gone]))
    work.put(OPEN, now.key[keep], values, now.start[keep])


@dataclass
class SessionAggregate(Condensing):
    """Aggregates of each session. Output: the key, window_start, window_end, then what the aggregator yields.

    Parameters:
        gap_ms: records at most this far apart, in milliseconds, are of one session.
        aggregator: `ferry.process.aggregator.Functions`, or a user's own.
    """

    gap_ms: int
    aggregator: Aggregator

    def open(self, key: pa.Schema, inputs: Sequence[pa.Schema]) -> None:
        """Set the tables and the output from the key and the aggregator."""
        open_aggregator(self.aggregator, inputs[0])
        part = pa.schema([("last", pa.int64()), *self.aggregator.state])
        self.parts = part if self.aggregator.commutative else None
        own = [("last", pa.int64()), ("timer", pa.int64())]
        self.tables = {OPEN: StateTable(pa.schema(own + list(self.aggregator.state)), pa.int64())}
        self.output = pa.schema([*key, *pa.schema(WINDOW), *self.aggregator.output])

    def process(self, work: Work) -> None:
        """Merge rows into sessions, and emit the final ones."""
        kept = on_time(work, 0, self.gap_ms)
        rows, starts, before = work.rows().filter(pa.array(kept)), work.times()[kept], work.read(OPEN)
        lasts = starts if self.parts is None else rows.column("last").to_numpy()
        now = formed(self.gap_ms, work.watermark, before, work.key_of()[kept], starts, lasts)
        if not now.key.size:
            return
        with of_key(work, now.key):
            states = self._states(before, rows, starts, now)
        final = now.last + self.gap_ms <= work.watermark
        keep_open(work, before, now, final, states)
        done = np.flatnonzero(final)
        columns = [*work.keys.take(pa.array(now.key[done])).columns]
        columns += [pa.array(now.start[done]), pa.array(now.last[done] + self.gap_ms)]
        with of_key(work, now.key[done]):
            work.emit(now.key[done], results(self.aggregator, states.take(pa.array(done)), columns, self.output))

    def condense(self, rows: SideRows, low: int) -> SideRows:
        """A part is a task's part of a session; records that are already late are parts of their own."""
        _, begins, last = joined(rows.key, rows.times, rows.times, self.gap_ms, low - self.gap_ms)
        states = updated(self.aggregator, timed_rows(self.aggregator, rows.batch, rows.times), begins)
        part = pa.RecordBatch.from_arrays([pa.array(last), *states.columns], schema=self.parts)
        return SideRows(part, rows.key[begins], rows.times[begins])

    def _states(self, before: Entries, rows: pa.RecordBatch, starts: Ints, now: Formed) -> pa.RecordBatch:
        """The state of each session."""
        if self.parts is None:
            rows = timed_rows(self.aggregator, rows, starts)
            return taken_in(self.aggregator, before.values, now.old, rows, now.rows)
        group = np.concatenate([now.old, now.rows])
        order = np.argsort(group, kind="stable")
        states = pa.concat_batches([kept.select(self.aggregator.state.names) for kept in (before.values, rows)])
        return merged_states(self.aggregator, states.take(pa.array(order)), group[order])


@dataclass
class SessionJoin(Process):
    """Pairs of records of two inputs in one session of their key; sessions are formed from the records of both.

    Output: window_start, window_end, the left columns, the right columns. `how` decides whether records of a session
    with one input only are emitted.

    Parameters:
        gap_ms: records at most this far apart, in milliseconds, are of one session.
        left, right: columns that are kept of each input: {output name: column}.
        how: "inner", "left", "right" or "full": the inputs whose records are emitted without a partner, too, with nulls.
    """

    gap_ms: int
    left: dict[str, str]
    right: dict[str, str]
    how: str = "inner"

    def open(self, key: pa.Schema, inputs: Sequence[pa.Schema]) -> None:
        """Set the tables and the output from the kept columns."""
        check_how(self.how)
        session = pa.schema([("last", pa.int64()), ("timer", pa.int64())])
        sides = kept_schemas((self.left, self.right), inputs, ("window_start", "window_end"))
        stored = [StateTable(pa.schema([(TIME, pa.int64()), *side]), pa.int64()) for side in sides]
        self.tables = {OPEN: StateTable(session, pa.int64()), "left": stored[0], "right": stored[1]}
        self.output = pa.schema([*WINDOW, *sides[0], *sides[1]])

    def process(self, work: Work) -> None:
        """Keep rows, merge them into sessions, and emit the pairs of final ones."""
        kept = [on_time(work, side, self.gap_ms) for side in (0, 1)]
        for side, columns in enumerate((self.left, self.right)):
            rows = keep_rows(work, side, columns, kept[side])
            work.put(SIDES[side], rows.key, rows.values, rows.entry)
        key = np.concatenate([work.key_of(side)[kept[side]] for side in (0, 1)])
        times = np.concatenate([work.times(side)[kept[side]] for side in (0, 1)])
        before = work.read(OPEN)
        now = formed(self.gap_ms, work.watermark, before, key, times, times)
        final = now.last + self.gap_ms <= work.watermark
        keep_open(work, before, now, final)
        if final.any():
            self._fire(work, now, np.flatnonzero(final))

    def _fire(self, work: Work, now: Formed, done: Ints) -> None:
        sides, of_done = [], []
        for name in SIDES:
            rows = work.read(name, now.key[done])
            session = _session_of(now, done, rows.key, times_of(rows))
            rows, session = rows.at(session >= 0), session[session >= 0]
            work.remove(name, rows.key, rows.entry)
            order = np.argsort(session, kind="stable")
            sides.append(rows.at(order))
            of_done.append(session[order])
        lefts, rights = pairs_of(of_done[0], of_done[1], self.how, null_keys(work)[now.key[done]])
        session = group_of(of_done, lefts, rights)
        window = [pa.array(now.start[done][session]), pa.array(now.last[done][session] + self.gap_ms)]
        columns = [*window, *beside(sides[0], lefts), *beside(sides[1], rights)]
        work.emit(now.key[done][session], pa.RecordBatch.from_arrays(columns, schema=self.output))


def _session_of(now: Formed, done: Ints, key: Ints, times: Ints) -> Ints:
    """The session of each row among these; -1: none."""
    if not done.size or not key.size:
        return np.full(key.size, -1)
    keys = np.concatenate([now.key[done], key])
    points = np.concatenate([now.start[done], times])
    is_row = np.arange(keys.size) >= done.size
    order = np.lexsort((is_row, points, keys))  # sessions are already sorted: their order does not change
    at = np.empty(keys.size, np.int64)
    at[order] = np.cumsum(~is_row[order]) - 1
    found = at[done.size :]
    inside = (found >= 0) & (now.key[done][found] == key) & (times <= now.last[done][found])
    return np.where(inside, found, -1)
