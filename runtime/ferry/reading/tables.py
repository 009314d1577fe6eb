"""Rows of state for users: keys as columns, results of aggregates, decoded entries of processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import numpy as np
import pyarrow as pa

from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.errors import DataRefused, SpecRefused
from ferry.kernels import aggregates, columns, keys, panes, places, row_codec, schemas
from ferry.kernels.changes import EVENT_TIMERS, PROCESSING_TIMERS, PUT
from ferry.kernels.grouping import NO_INTS, Ints
from ferry.kernels.kinds import kind_of, type_of
from ferry.kernels.values import Beyond

TIMERS = "timers"
"""The table of a process's timers, unless the process has its own table of this name."""

CLOCKS = ("event", "processing")
"""Clocks of timers."""

SIDES = ("left", "right")
"""Sides of a join."""


@dataclass(frozen=True, slots=True)
class StateRows:
    """The rows to read of an operator."""

    schema: pa.Schema
    numbers: tuple[int, ...] = ()
    """Numbers of a process's tables in the places of entries."""
    values: pa.Schema | None = None
    """Value columns of a process's table. None for timers."""
    entry: pa.DataType | None = None
    """Type of the entries in a process's table. None for a table with a single entry per key."""


def table_of(descriptor: OperatorDescriptor, table: str | None) -> StateRows:
    """The rows to read. Raises SpecRefused if the table does not exist, or `table` is None for a process with several."""
    key = [pa.field(name, type_of(kind)) for name, kind in descriptor.key]
    if table is not None and descriptor.kind != "process":
        raise SpecRefused(f"operator {descriptor.name!r} is not a process and has no tables: leave out table={table!r}")
    pane = [pa.field("slice", pa.int64())] if descriptor.windowed else []
    match descriptor.kind:
        case "aggregate":
            results = [pa.field(a.name, aggregates.result_type(a)) for a in descriptor.aggregates]
            return StateRows(pa.schema([*key, *pane, *results]))
        case "join":
            fields = schemas.rows_schema(descriptor)
            named = [pa.field(_side_column(f.name), f.type) for f in list(fields)[4:]]
            return StateRows(pa.schema([*key, *pane, pa.field("side", pa.string()), *named]))
        case "process":
            return _process_table(descriptor, key, table)
        case _:
            assert_never(descriptor.kind)


def _process_table(descriptor: OperatorDescriptor, key: list[pa.Field], table: str | None) -> StateRows:
    tables = descriptor.shape.tables
    if table is None and len(tables) == 1:
        table = tables[0][0]
    for number, (name, values, entry) in enumerate(tables):
        if name == table:
            schema, of_entry = schemas.from_text(values), None if entry is None else pa.type_for_alias(entry)
            entries = [] if of_entry is None else [pa.field("entry", of_entry)]
            return StateRows(pa.schema([*key, *entries, *schema]), (number,), schema, of_entry)
    if table == TIMERS:
        fields = [pa.field("clock", pa.string()), pa.field("time", pa.int64())]
        return StateRows(pa.schema([*key, *fields]), (EVENT_TIMERS, PROCESSING_TIMERS), None, pa.int64())
    there = ", ".join(repr(name) for name in [*(name for name, _, _ in tables), TIMERS])
    raise SpecRefused(f"operator {descriptor.name!r} is a process with several tables: choose with table=: {there}")


def rows_of(descriptor: OperatorDescriptor, chunk: pa.RecordBatch, chosen: StateRows, watermark: int) -> pa.RecordBatch:
    """The rows of a snapshot for users, without slices and keys that have ended at this watermark."""
    match descriptor.kind:
        case "aggregate":
            arrays = _aggregated(descriptor, _living(descriptor, chunk, watermark))
        case "join":
            arrays = _joined(descriptor, _living(descriptor, chunk, watermark))
        case "process":
            arrays = _entries(descriptor, chunk, chosen)
        case _:
            assert_never(descriptor.kind)
    cast = [array.cast(field.type) for array, field in zip(arrays, chosen.schema, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=chosen.schema)


def _living(descriptor: OperatorDescriptor, chunk: pa.RecordBatch, watermark: int) -> pa.RecordBatch:
    """The rows without forgotten keys and without slices whose windows have all fired."""
    if descriptor.ttl_ms is not None:
        newest = columns.integers(chunk.column(4 + len(aggregates.value_columns(descriptor))))
        return chunk.filter(pa.array(newest > watermark - descriptor.ttl_ms))
    if not descriptor.windowed:
        return chunk
    ends = panes.last_ends(descriptor.window, columns.integers(chunk.column("slice")))
    return chunk.filter(pa.array(ends > watermark))


def _keys(descriptor: OperatorDescriptor, rows: pa.RecordBatch) -> list[pa.Array]:
    return keys.elements_of(descriptor, rows.column("hash").to_numpy(zero_copy_only=True), rows.column("key"))


def _aggregated(descriptor: OperatorDescriptor, rows: pa.RecordBatch) -> list[pa.Array]:
    cells = rows.columns[4:]
    flags = columns.integers(cells[-1]) if aggregates.flagged(descriptor) else NO_INTS
    results = []
    for place in aggregates.places(descriptor):
        try:
            results.append(place.results(cells[place.state], rows.column("n"), flags))
        except Beyond as beyond:
            a, key = place.aggregate, keys.text_of(_keys(descriptor, rows), beyond.row)
            raise DataRefused(
                f"operator {descriptor.name}, {a.name}={a.function}({a.column!r}): the sum of key {key} is {beyond}"
            ) from beyond
    pane = [rows.column("slice")] if descriptor.windowed else []
    return [*_keys(descriptor, rows), *pane, *results]


def _joined(descriptor: OperatorDescriptor, rows: pa.RecordBatch) -> list[pa.Array]:
    sides = pa.array(SIDES).take(rows.column("side").cast(pa.int64()))
    pane = [rows.column("slice")] if descriptor.windowed else []
    return [*_keys(descriptor, rows), *pane, sides, *rows.columns[4:]]


def _side_column(name: str) -> str:
    return f"{SIDES[name[0] == 'r']}_{name[2:]}"


def _entries(descriptor: OperatorDescriptor, chunk: pa.RecordBatch, chosen: StateRows) -> list[pa.Array]:
    """The entries that rows of CHANGES put into the table. A row's place has its key and entry, unless they are long."""
    rows = chunk.filter(pa.array(chunk.column("change").to_numpy(zero_copy_only=True) == PUT))
    _, tables, lengths = places.parsed(*columns.binary(rows.column("place")))
    mine = np.flatnonzero(np.isin(tables, chosen.numbers))
    rows = rows.take(pa.array(mine))
    stored_keys: list[bytes] = []
    entries: list[bytes] = []
    values: list[bytes] = []
    integer = chosen.entry is not None and pa.types.is_integer(chosen.entry)
    named = zip(rows.column("place").to_pylist(), rows.column("value").to_pylist(), lengths[mine].tolist(), strict=True)
    for place, value, length in named:
        key, entry = place[10 : 10 + length], place[11 + length :]
        if len(key) >= places.CUT_BYTES:
            key, value = places.split_whole(value)
        if len(entry) >= places.CUT_BYTES and not integer:
            entry, value = places.split_whole(value)
        stored_keys.append(key)
        entries.append(entry)
        values.append(value)
    stored = rows.column("hash").to_numpy(zero_copy_only=True)
    elements = keys.elements_of(descriptor, stored, _stored_keys(descriptor, stored_keys))
    if chosen.values is None:
        clocks = pa.array(CLOCKS).take(pa.array(tables[mine].astype(np.int64) - EVENT_TIMERS))
        return [*elements, clocks, pa.array(places.ints_of(entries))]
    of_entry = [] if chosen.entry is None else [_entry_column(entries, chosen.entry)]
    kinds = [kind_of(field.type) for field in chosen.values]
    return [*elements, *of_entry, *row_codec.decode_rows(*places.texts(values), [kind for kind in kinds if kind])]


def _stored_keys(descriptor: OperatorDescriptor, texts: list[bytes]) -> pa.Array:
    if descriptor.int_key:
        stored: Ints = np.frombuffer(b"".join(texts), "<i8").astype(np.int64)
        return pa.array(stored)
    return pa.array(texts, pa.binary())


def _entry_column(entries: list[bytes], kind: pa.DataType) -> pa.Array:
    return pa.array(places.ints_of(entries)) if pa.types.is_integer(kind) else pa.array(entries, pa.binary()).cast(kind)
