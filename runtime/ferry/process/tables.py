"""Tables of state by key, and an epoch's changes of them.

Changes are kept in the order in which they were made. A read sees them over the rows from before the epoch, and at the
end they become one after-image for each row: the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferry.kernels.columns import empty
from ferry.kernels.grouping import NO_INTS, Ints

ENTRY_TYPES = (pa.int64(), pa.string(), pa.binary())


@dataclass(frozen=True, slots=True)
class StateTable:
    """Named state of a process: at most one row a key, or many rows a key, each under an entry of its own.

    Parameters:
        values: columns of a row: integers, booleans, floats, decimals, dates, timestamps, strings or bytes; nulls are kept.
        entry: none, at most one row a key; `int64`, `string` or `binary`, many rows a key, ordered by the entry, which is
            unique within the key.
    Example:
        >>> import pyarrow as pa
        >>> best = ferry.StateTable(pa.schema([("price", pa.int64())]))
        >>> waiting = ferry.StateTable(pa.schema([("price", pa.int64())]), entry=pa.int64())
    """

    values: pa.Schema
    entry: pa.DataType | None = None


class Entries(NamedTuple):
    """Rows of a table, sorted by (key, entry): the result of `Work.read`.

    Example:
        >>> import numpy, pyarrow as pa
        >>> found = ferry.Entries(numpy.array([0, 2, 2]), pa.array([5, 1, 4]), pa.record_batch({"price": [10, 20, 30]}))
        >>> found.spans(3).tolist()
        [0, 1, 1, 3]
        >>> found.at(found.key == 2).values.column("price").to_pylist()
        [20, 30]
    """

    key: Ints
    """Index of each row's key among the touched keys."""
    entry: pa.Array | None
    """None if the table has at most one row a key."""
    values: pa.RecordBatch

    def spans(self, count: int) -> Ints:
        """int64[count + 1]: key k has rows [k] up to [k + 1]."""
        return np.searchsorted(self.key, np.arange(count + 1))

    def at(self, rows: Any) -> Entries:
        """The rows with these numbers, or selected by a mask."""
        rows = np.asarray(rows)
        if rows.dtype == np.bool_ and rows.all():
            return self
        numbers = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows.astype(np.int64)
        taken = pa.array(numbers)
        entry = None if self.entry is None else self.entry.take(taken)
        return Entries(self.key[numbers], entry, self.values.take(taken))


class TableChanges(NamedTuple):
    """After-images of a table: put rows and removed rows. No row is in both."""

    put: Entries
    removed_key: Ints
    removed_entry: pa.Array | None


def no_entries(table: StateTable) -> Entries:
    """The entries of an empty table."""
    entry = None if table.entry is None else pa.array([], table.entry)
    return Entries(NO_INTS, entry, empty(table.values))


class TableLog:
    """The changes of one epoch to one table, in order."""

    def __init__(self, table: StateTable, keys: int, read: Callable[[Ints], Entries]) -> None:
        self._table = table
        self._read = read
        self._before = no_entries(table)
        """rows before the epoch, as far as they were read"""
        self._known = np.zeros(keys, np.bool_)
        """keys whose rows were read"""
        self._keys: list[Ints] = []
        self._entries: list[pa.Array] = []
        self._values: list[pa.RecordBatch] = []
        self._rows: list[Ints] = []
        """for each change its row among all values; -1: the row was removed"""
        self._cleared: list[tuple[Ints, int]] = []
        """(keys whose rows were all removed, number of changes before that)"""
        self._put = 0
        self._changes = 0

    def put(self, key: Ints, entry: pa.Array | None, values: pa.RecordBatch) -> None:
        """Put these rows."""
        self._values.append(values)
        self._add(key, entry, np.arange(self._put, self._put + key.size))
        self._put += key.size

    def remove(self, key: Ints, entry: pa.Array | None) -> None:
        """Remove these rows."""
        self._add(key, entry, np.full(key.size, -1))

    def clear(self, key: Ints) -> None:
        """Remove all rows of these keys."""
        if self._table.entry is None:
            self.remove(key, None)
        elif key.size:
            self._cleared.append((key, self._changes))

    def _add(self, key: Ints, entry: pa.Array | None, rows: Ints) -> None:
        self._keys.append(key)
        self._rows.append(rows)
        if entry is not None:
            self._entries.append(entry)
        self._changes += key.size

    def now(self, wanted: Any) -> Entries:
        """The present rows of the keys of a mask; the result may include rows of other keys."""
        self._learn(wanted)
        return self._over(self._before).put if self._changes or self._cleared else self._before

    def changes(self) -> TableChanges:
        """The changes of the epoch."""
        for keys, _ in self._cleared:
            wanted = np.zeros(self._known.size, np.bool_)
            wanted[keys] = True
            self._learn(wanted)
        return self._over(self._before, changed=True)

    def _learn(self, wanted: Any) -> None:
        unknown = np.flatnonzero(wanted & ~self._known)
        if unknown.size:
            self._known |= wanted
            self._before = merged(self._before, self._read(unknown))

    def _over(self, before: Entries, changed: bool = False) -> TableChanges:
        """The last state of each row among these and the changes; `changed`: without unchanged rows."""
        old = before.key.size
        key = np.concatenate([before.key, *self._keys])
        rows = np.concatenate([np.arange(old), *(np.where(r < 0, -1, r + old) for r in self._rows)])
        rows[np.arange(-old, self._changes).clip(-1) < self._cleared_at(key)] = -1
        entry = None if before.entry is None else pa.concat_arrays([before.entry, *self._entries])
        order = np.lexsort((_ranks(entry, key.size), key))  # stable: equal ones stay in the order of the changes
        last = order[_last_of_each(key[order], _ranks(entry, key.size)[order])]
        there = last[rows[last] >= (old if changed else 0)]
        gone = last[rows[last] < 0]
        values = pa.concat_batches([before.values, *self._values]).take(pa.array(rows[there]))
        return TableChanges(Entries(key[there], _taken(entry, there), values), key[gone], _taken(entry, gone))

    def _cleared_at(self, key: Ints) -> Ints:
        """For each row, the number of changes before the last removal of all rows of its key; -1: never."""
        found = np.full(self._known.size, -1)
        for keys, at in self._cleared:
            found[keys] = at
        return found[key]


def merged(first: Entries, others: Entries) -> Entries:
    """Rows of some keys and of others, together."""
    if not first.key.size or not others.key.size:
        return first if first.key.size else others
    entry = None if first.entry is None else pa.concat_arrays([first.entry, others.entry])
    key = np.concatenate([first.key, others.key])
    return Entries(key, entry, pa.concat_batches([first.values, others.values])).at(np.argsort(key, kind="stable"))


def _ranks(entry: pa.Array | None, rows: int) -> Ints:
    """Integers in the order of the entries."""
    if entry is None:
        return np.zeros(rows, np.int64)
    if pa.types.is_integer(entry.type):
        return entry.to_numpy(zero_copy_only=False)
    return pc.rank(entry, tiebreaker="dense").to_numpy(zero_copy_only=False).astype(np.int64)


def _last_of_each(key: Ints, rank: Ints) -> Any:
    """Mask of the last row of each group of adjacent rows that are equal in both."""
    last = np.ones(key.size, np.bool_)
    last[:-1] = (key[1:] != key[:-1]) | (rank[1:] != rank[:-1])
    return last


def _taken(entry: pa.Array | None, rows: Ints) -> pa.Array | None:
    return None if entry is None else entry.take(pa.array(rows))
