"""Converts between a process's view (keys by index, Arrow columns) and stored entries (places and bytes)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ferry.contract.descriptors import OperatorDescriptor
from ferry.kernels import columns, places
from ferry.kernels.changes import CHANGES, PUT, REMOVE
from ferry.kernels.grouping import Bytes, Hashes, Ints, order_by_hash
from ferry.kernels.hashing import hash_ints
from ferry.kernels.kinds import kind_of, type_of
from ferry.kernels.places import CUT_BYTES, split_whole, with_wholes
from ferry.kernels.row_codec import decode_rows, encode_rows
from ferry.process.tables import Entries, StateTable, TableChanges, no_entries
from ferry.process.timers import TimerChanges
from ferry.store.entries import Due


class _Stored(NamedTuple):
    """Keys in their stored form."""

    hashes: Hashes
    keys: pa.Array
    """int64 or binary"""


@dataclass(frozen=True, slots=True)
class TouchedKeys:
    """The keys that an epoch touches, each once, in the order of their hashes."""

    descriptor: OperatorDescriptor
    hashes: Hashes
    keys: pa.Array
    """in their stored form: int64 or binary"""
    cut: pa.Array
    """the same, cut as in places"""
    wholes: dict[int, bytes]
    """full bytes of the keys that are cut there, by index"""
    of_rows: Ints
    """index of each row's key"""
    of_timers: Ints
    of_processing: Ints

    @staticmethod
    def of(descriptor: OperatorDescriptor, rows: pa.RecordBatch, due: list[Due]) -> TouchedKeys:
        """The keys of these rows, and of timers of event time and processing time."""
        hashes = np.require(rows.column("hash").to_numpy(zero_copy_only=True), np.uint64, ["C", "W"])
        stored = [_Stored(hashes, rows.column("key")), *(_of_timers(descriptor, d) for d in due)]
        hashes = np.concatenate([f.hashes for f in stored])
        keys = pa.concat_arrays([f.keys for f in stored])
        numbers, firsts = _numbered(hashes, keys)
        taken = keys.take(pa.array(firsts))
        offsets, data, long = places.cut(*places.bytes_of(taken))
        wholes = {i: taken[i].as_py() for i in long.tolist()}
        cut = columns.binary_array(offsets, data, pa.binary())
        ends = np.cumsum([f.hashes.size for f in stored])[:-1]
        return TouchedKeys(descriptor, hashes[firsts], taken, cut, wholes, *np.split(numbers, ends))

    def columns(self) -> pa.RecordBatch:
        """The key's columns."""
        return _columns_of(self.descriptor, self.hashes, self.keys)

    def prefixes(self, table: int, numbers: Ints) -> list[bytes]:
        """Place prefixes of these keys' entries in the table."""
        return places.lists(*self._places(numbers, table, None))

    def _places(self, numbers: Ints, table: int, entry: pa.Array | None) -> tuple[Ints, Bytes]:
        offsets, data = places.entry_bytes(entry, numbers.size)
        offsets, data, _ = places.cut(offsets, data)
        tables = np.full(numbers.size, table, np.uint8)
        keys = columns.binary(self.cut.take(pa.array(numbers)))
        return places.places(self.hashes[numbers], keys, tables, (offsets, data))

    def changes(
        self, change: int, table: int, numbers: Ints, entry: pa.Array | None, values: tuple[Ints, Bytes] | None
    ) -> pa.RecordBatch:
        """Entries of these keys, as rows of CHANGES."""
        offsets, data = values or (np.zeros(numbers.size + 1, np.int64), np.empty(0, np.uint8))
        offsets, data = self._with_wholes(numbers, entry, offsets, data)
        arrays = [
            pa.array(self.hashes[numbers]),
            pa.array(np.full(numbers.size, change, np.int8)),
            columns.binary_array(*self._places(numbers, table, entry), pa.binary()),
            columns.binary_array(offsets, data, pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=CHANGES)

    def _with_wholes(self, numbers: Ints, entry: pa.Array | None, offsets: Ints, data: Bytes) -> tuple[Ints, Bytes]:
        long = np.zeros(numbers.size, np.bool_)
        if entry is not None and not pa.types.is_integer(entry.type):
            long = np.diff(columns.binary(entry)[0]) >= CUT_BYTES
        if not self.wholes and not long.any():
            return offsets, data
        values = places.lists(offsets, data)
        for i in range(numbers.size):
            whole = entry[i].cast(pa.binary()).as_py() if entry is not None and long[i] else None
            values[i] = with_wholes(values[i], self.wholes.get(int(numbers[i])), whole)
        return places.texts(values)

    def timers_changed(self, table: int, timers: TimerChanges) -> list[pa.RecordBatch]:
        """Timers as rows of CHANGES."""
        kinds = ((PUT, timers.set), (REMOVE, timers.removed))
        return [self.changes(change, table, t.key, pa.array(t.time), None) for change, t in kinds]


def _of_timers(descriptor: OperatorDescriptor, due: Due) -> _Stored:
    return _of_places(descriptor, due.keys, due.values)


def _of_places(descriptor: OperatorDescriptor, begins: list[bytes], values: list[bytes]) -> _Stored:
    """Keys from places up to the key. A key that is cut there stands in full before the value."""
    hashes, _, _ = places.parsed(*places.texts([begin + b"\0" for begin in begins]))
    if descriptor.int_key:
        return _Stored(hashes, pa.array(np.frombuffer(b"".join(b[10:] for b in begins), "<i8").astype(np.int64)))
    keys = [b[10:] if len(b) < 10 + CUT_BYTES else split_whole(v)[0] for b, v in zip(begins, values, strict=True)]
    return _Stored(hashes, pa.array(keys, pa.binary()))


def key_columns(descriptor: OperatorDescriptor, begins: list[bytes], values: list[bytes]) -> pa.RecordBatch:
    """The key's columns of stored rows, from the beginnings of their places up to the key, and from their values."""
    return _columns_of(descriptor, *_of_places(descriptor, begins, values))


def _columns_of(descriptor: OperatorDescriptor, hashes: Hashes, keys: pa.Array) -> pa.RecordBatch:
    schema = pa.schema([(name, type_of(kind)) for name, kind in descriptor.key])
    if not descriptor.int_key:
        arrays = decode_rows(*columns.binary(keys), [kind for _, kind in descriptor.key])
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    # A null is stored as another integer, under a hash that differs from this integer's hash.
    null = hash_ints(columns.integers(keys)) != hashes
    return pa.RecordBatch.from_arrays([pa.array(columns.integers(keys), mask=null)], schema=schema)


def _numbered(hashes: Hashes, keys: pa.Array) -> tuple[Ints, Ints]:
    """The index of each key among the distinct ones, in the order of their hashes; and the first position of each."""
    codes = columns.integers(keys if pa.types.is_integer(keys.type) else _codes(keys))
    order = order_by_hash(hashes)
    begins = _changes(hashes[order])
    if (_changes(codes[order]) & ~begins).any():
        # Keys with the same hash: put equal keys side by side.
        order = np.lexsort((codes, hashes))
        begins = _changes(hashes[order]) | _changes(codes[order])
    numbers = np.empty(order.size, np.int64)
    numbers[order] = np.cumsum(begins) - 1
    return numbers, order[begins]


def _changes(values: Ints | Hashes) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which values differ from the previous one."""
    found = np.ones(values.size, np.bool_)
    found[1:] = values[1:] != values[:-1]
    return found


def _codes(keys: pa.Array) -> pa.Array:
    return keys.dictionary_encode().indices.cast(pa.int64())


def changed(keys: TouchedKeys, number: int, table: StateTable, changes: TableChanges) -> pa.RecordBatch:
    """Changes of a table as rows of CHANGES."""
    put, removed_key, removed_entry = changes
    values = encode_rows(put.values.columns, [kind_name(field) for field in table.values])
    return pa.concat_batches(
        [
            keys.changes(PUT, number, put.key, put.entry, values),
            keys.changes(REMOVE, number, removed_key, removed_entry, None),
        ]
    )


def decoded(
    keys: TouchedKeys, table: StateTable, numbers: Ints, rests: list[bytes] | None, values: list[bytes]
) -> Entries:
    """Stored entries of these keys as a process sees them; `rests` are the entries' parts of their places."""
    if not numbers.size:
        return no_entries(table)
    if keys.wholes:
        values = [split_whole(v)[1] if n in keys.wholes else v for n, v in zip(numbers.tolist(), values, strict=True)]
    long = [i for i, rest in enumerate(rests or ()) if len(rest) >= CUT_BYTES]
    for i in long:
        assert rests is not None
        rests[i], values[i] = split_whole(values[i])
    found = Entries(numbers, None if rests is None else entry_column(table, rests), row_columns(table, values))
    if not long:
        return found
    assert rests is not None
    return found.at(np.array(sorted(range(len(rests)), key=lambda i: (numbers[i], rests[i])), np.int64))


def row_columns(table: StateTable, values: list[bytes]) -> pa.RecordBatch:
    """Stored values as rows of the table."""
    arrays = decode_rows(*places.texts(values), [kind_name(field) for field in table.values])
    cast = [array.cast(field.type) for array, field in zip(arrays, table.values, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=table.values)


def entry_column(table: StateTable, rests: list[bytes]) -> pa.Array | None:
    """Entries, from the ends of their places; None: the table has none."""
    if table.entry is None:
        return None
    if pa.types.is_integer(table.entry):
        return pa.array(places.ints_of(rests))
    return pa.array(rests, pa.binary()).cast(table.entry)


def kind_name(field: pa.Field) -> str:
    """The kind of a column's values (`kernels.kinds`)."""
    kind = kind_of(field.type)
    assert kind is not None, field
    return kind
