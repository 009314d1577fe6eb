"""The state of an altered operator, from the state before: the same function for snapshots and deltas.

Both are after-images (`schemas.state_schema`), so a row of the altered state depends on one row of the state before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ferry.contract.descriptors import OperatorDescriptor
from ferry.kernels.aggregates import KEPT, flagged, places, state_columns, value_columns
from ferry.kernels.columns import projected
from ferry.kernels.grouping import OVERFLOWED, Ints
from ferry.kernels.kept import StateColumn
from ferry.kernels.schemas import state_schema

FIXED = 4
"""Columns of every aggregate's rows: slice, hash, key, number of records."""

Derive = Callable[[pa.RecordBatch], pa.RecordBatch]


def deriving(before: OperatorDescriptor, after: OperatorDescriptor) -> Derive:
    """The function that derives rows: columns of both operators are kept, columns of `after` alone are empty.

    Example:
        >>> from ferry.contract.descriptors import Aggregate, Window
        >>> counts = OperatorDescriptor("a", 0, "aggregate", (("k", "int"),), Window(1, 1), (Aggregate("n", "count"),))
        >>> wider = replace(counts, aggregates=(*counts.aggregates, Aggregate("m", "max", "x")))
        >>> row = {"slice": [0], "hash": [7], "key": [1], "n": [5]}
        >>> deriving(counts, wider)(pa.RecordBatch.from_pydict(row, state_schema(counts))).to_pydict()["n"]
        [5]
    """
    if after.kind == "process":
        return lambda rows: rows
    if after.kind == "join":
        return lambda rows: projected(rows, state_schema(after))
    return lambda rows: _aggregates(rows, before, after)


def _aggregates(rows: pa.RecordBatch, before: OperatorDescriptor, after: OperatorDescriptor) -> pa.RecordBatch:
    old = {replace(place.aggregate, name=""): place for place in places(before)}
    state, columns = rows.columns[FIXED:], [_neutral(column, rows.num_rows) for column in value_columns(after)]
    were = state[-1].to_numpy() if flagged(before) else np.zeros(rows.num_rows, np.int64)
    flags = np.zeros(rows.num_rows, np.int64)
    for place in places(after):
        if (same := old.get(replace(place.aggregate, name=""))) is None:
            continue
        columns[place.state] = state[same.state]
        for to, of in zip(range(*place.state.indices(OVERFLOWED)), range(*same.state.indices(OVERFLOWED)), strict=True):
            flags |= (were >> of & 1) << to | (were >> OVERFLOWED + of & 1) << OVERFLOWED + to
    # The newest event time and the epoch of the last change stand between values and flags.
    rest = state[len(value_columns(before)) : len(state_columns(before)) - flagged(before)]
    if after.ttl_ms is not None:
        columns.append(_newest(None if before.ttl_ms is None else rest.pop(0), rows.num_rows, before, after.ttl_ms))
    columns += rest
    columns += [pa.array(flags)] * flagged(after)
    return pa.RecordBatch.from_arrays([*rows.columns[:FIXED], *columns], schema=state_schema(after))


def _newest(newest: pa.Array | None, rows: int, before: OperatorDescriptor, ttl_ms: int) -> pa.Array:
    """The newest event times of keys under another time to live: such that a key is forgotten at the earlier of both times.

    So a key that is forgotten before the switch stays forgotten, whether its row is still there or not.
    """
    if newest is None or before.ttl_ms is None:
        return pa.array(np.full(rows, KEPT))
    times = newest.to_numpy()
    return pa.array(np.where(times == KEPT, KEPT, times + min(0, before.ttl_ms - ttl_ms)))


def _neutral(column: StateColumn, rows: int) -> pa.Array:
    """The column of groups without a record."""
    cells: Ints = np.zeros((rows, column.words), np.int64)
    if column.words == 1:
        cells[:] = np.float64(column.neutral).view(np.int64) if column.number == "float" else np.int64(column.neutral)
    return column.array(cells)
