"""State in the interface of PySpark's StatefulProcessor: value, list and map state of the current key.

A variable is a table of the process. The rows of all touched keys are read at once at the first access, and the changes
are written at once at the end. Names and meanings of methods are PySpark's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from ferry.contract.errors import SpecRefused
from ferry.kernels.columns import binary_array
from ferry.kernels.grouping import Ints
from ferry.kernels.kinds import kind_of
from ferry.kernels.row_codec import encode_rows
from ferry.process.api import Work
from ferry.process.tables import StateTable

Kind = Literal["value", "list", "map"]
Convert = Callable[[Any], Any]
KEY, VALUE = "key_", "value_"
DIGITS = Context(prec=38)
"""Precision of decimals; Python's default is lower."""

"""What names of a map's columns begin with."""
EXPIRES = "expires_at_ms"
"""Column: the processing time at which a row expires."""
ENTRIES: dict[Kind, pa.DataType | None] = {"value": None, "list": pa.int64(), "map": pa.binary()}
CLEANUPS = 8
"""Expired rows of otherwise untouched keys are removed at most an eighth of their time to live late."""
CLEANUP_MS = 1_000
"""Shortest interval of such removals."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A declared state variable."""

    name: str
    kind: Kind
    values: pa.Schema
    keys: pa.Schema = field(default_factory=lambda: pa.schema([]))
    """Columns of a map's keys."""
    ttl_ms: int | None = None

    @property
    def table(self) -> str:
        """Name of its table: lower case."""
        return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", self.name).lower()).strip("_")

    @property
    def state(self) -> StateTable:
        """Its table."""
        own = [*self.keys, *self.values]
        if self.kind == "map":
            own = [f.with_name(KEY + f.name) for f in self.keys] + [f.with_name(VALUE + f.name) for f in self.values]
        lasting = [] if self.ttl_ms is None else [pa.field(EXPIRES, pa.int64())]
        return StateTable(pa.schema([*own, *lasting]), ENTRIES[self.kind])


class KeyedRows:
    """Rows of a variable: the rows of every touched key, by entry, and their changes.

    An entry is None for a value, the position in a list, the key in a map.
    """

    def __init__(self, variable: Variable, work: Work | None) -> None:
        self.variable = variable
        self._given = work
        self._spans: Ints | None = None
        self._entries: list[Any] = []
        self._values: list[Any] = []
        self._expires: list[int] = []
        self._of: dict[int, dict[Any, tuple[Any, ...]]] = {}
        self._changed: dict[tuple[int, Any], tuple[Any, ...] | None] = {}
        self._key_kept = [kept(field.type) for field in variable.keys]
        self._value_kept = [kept(field.type) for field in variable.values]

    @property
    def _work(self) -> Work:
        assert self._given is not None
        return self._given

    def of(self, key: int) -> dict[Any, tuple[Any, ...]]:
        """The present rows of a key."""
        if key < 0:
            raise SpecRefused(f"state {self.variable.name!r}: there is no key in init() and close()")
        found = self._of.get(key)
        if found is None:
            found = self._of[key] = self._found(key)
        return found

    def put(self, key: int, entry: Any, values: Sequence[Any]) -> None:
        """Set a row."""
        row = self._row(values, self._value_kept, self.variable.values)
        self.of(key)[entry] = self._changed[key, entry] = row

    def remove(self, key: int, entry: Any) -> None:
        """Remove a row, if it exists."""
        if self.of(key).pop(entry, None) is not None:
            self._changed[key, entry] = None

    def clear(self, key: int) -> None:
        """Remove all rows of a key."""
        for entry in [*self.of(key)]:
            self.remove(key, entry)

    def entry(self, key: Sequence[Any]) -> tuple[Any, ...]:
        """A map's key as an entry."""
        return self._row(key, self._key_kept, self.variable.keys)

    def write(self) -> None:
        """Write all changes to the process's table."""
        table, ttl, changes = self.variable.table, self.variable.ttl_ms, self._changed.items()
        gone = [at for at, row in changes if row is None]
        there = [(at, row) for at, row in changes if row is not None]
        if gone:
            self._work.remove(table, [key for key, _ in gone], self._written([entry for _, entry in gone]))
        if not there:
            return
        keys = np.array([key for (key, _), _ in there], np.int64)
        entries = [entry for (_, entry), _ in there]
        rows = [row for _, row in there]
        if self.variable.kind == "map":
            rows = [(*entry, *row) for entry, row in zip(entries, rows, strict=True)]
        columns = [*map(list, zip(*rows, strict=True))]
        if ttl is not None:
            columns.append([self._work.now + ttl] * len(rows))
            step = max(ttl // CLEANUPS, CLEANUP_MS)
            self._work.set_processing_timer(np.unique(keys), (self._work.now + ttl) // step * step + step)
        schema = self.variable.state.values
        arrays = [self._array(column, field) for column, field in zip(columns, schema, strict=True)]
        self._work.put(table, keys, pa.RecordBatch.from_arrays(arrays, schema=schema), self._written(entries))

    def _found(self, key: int) -> dict[Any, tuple[Any, ...]]:
        if self._spans is None:
            self._spans = self._read()
        rows: dict[Any, tuple[Any, ...]] = {}
        for at in range(self._spans[key], self._spans[key + 1]):
            if self._expires and self._expires[at] <= self._work.now:
                self._changed[key, self._entries[at]] = None
            else:
                rows[self._entries[at]] = self._values[at]
        return rows

    def _read(self) -> Ints:
        stored, variable = self._work.read(self.variable.table), self.variable
        columns = [_shown(column) for column in stored.values.columns]
        if variable.ttl_ms is not None:
            self._expires = columns.pop()
        entries, values = columns[: len(variable.keys)], columns[len(variable.keys) :]
        self._values = [*zip(*values, strict=True)]
        if variable.kind == "map":
            self._entries = [*zip(*entries, strict=True)]
        else:
            self._entries = [None] * stored.key.size if stored.entry is None else stored.entry.to_pylist()
        return stored.spans(self._work.count)

    def _written(self, entries: list[Any]) -> pa.Array | None:
        if self.variable.kind != "map":
            return None if self.variable.kind == "value" else pa.array(entries, pa.int64())
        columns = [*map(list, zip(*entries, strict=True))]
        arrays = [self._array(column, field) for column, field in zip(columns, self.variable.keys, strict=True)]
        kinds = [str(kind_of(array.type)) for array in arrays]
        return binary_array(*encode_rows(arrays, kinds), pa.binary())

    def _row(self, row: Sequence[Any], converts: list[Convert], schema: pa.Schema) -> tuple[Any, ...]:
        if not isinstance(row, list | tuple) or len(row) != len(converts):
            raise SpecRefused(
                f"state {self.variable.name!r}: {row!r} is not a tuple of {len(converts)}: {', '.join(schema.names)}"
            )
        return tuple(convert(value) for convert, value in zip(converts, row, strict=True))

    def _array(self, column: list[Any], field: pa.Field) -> pa.Array:
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            column = [None if value is None else value.astimezone() for value in column]
        try:
            return pa.array(column, field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise SpecRefused(
                f"state {self.variable.name!r}: {field.name!r} cannot be {field.type}: {error}"
            ) from error


@dataclass(slots=True)
class Cursor:
    """The index of the current key among the touched ones."""

    at: int = -1


class ValueState:
    """One value of the current key."""

    def __init__(self, cursor: Cursor, rows: KeyedRows) -> None:
        self._cursor = cursor
        self._rows = rows

    def exists(self) -> bool:
        """Whether there is a value."""
        return None in self._rows.of(self._cursor.at)

    def get(self) -> tuple[Any, ...] | None:
        """The value, or None."""
        return self._rows.of(self._cursor.at).get(None)

    def update(self, newValue: Sequence[Any]) -> None:
        """Set it."""
        self._rows.put(self._cursor.at, None, newValue)

    def clear(self) -> None:
        """Remove it."""
        self._rows.clear(self._cursor.at)


class ListState:
    """A list of the current key. Elements are kept by their position."""

    def __init__(self, cursor: Cursor, rows: KeyedRows) -> None:
        self._cursor = cursor
        self._rows = rows

    def exists(self) -> bool:
        """Whether there is an element."""
        return bool(self._rows.of(self._cursor.at))

    def get(self) -> Iterator[tuple[Any, ...]]:
        """All elements, in their order."""
        return iter([*self._rows.of(self._cursor.at).values()])

    def put(self, newState: Sequence[Sequence[Any]]) -> None:
        """Replace all elements."""
        self.clear()
        self.appendList(newState)

    def appendValue(self, newState: Sequence[Any]) -> None:
        """Append an element."""
        now = self._rows.of(self._cursor.at)
        self._rows.put(self._cursor.at, next(reversed(now), -1) + 1, newState)

    def appendList(self, newState: Sequence[Sequence[Any]]) -> None:
        """Append elements."""
        for element in newState:
            self.appendValue(element)

    def clear(self) -> None:
        """Remove all."""
        self._rows.clear(self._cursor.at)


class MapState:
    """A map of the current key, in no particular order."""

    def __init__(self, cursor: Cursor, rows: KeyedRows) -> None:
        self._cursor = cursor
        self._rows = rows

    def exists(self) -> bool:
        """Whether it has a key."""
        return bool(self._rows.of(self._cursor.at))

    def getValue(self, key: Sequence[Any]) -> tuple[Any, ...] | None:
        """The value of a key of the map, or None."""
        return self._rows.of(self._cursor.at).get(self._rows.entry(key))

    def containsKey(self, key: Sequence[Any]) -> bool:
        """Whether the map has this key."""
        return self._rows.entry(key) in self._rows.of(self._cursor.at)

    def updateValue(self, key: Sequence[Any], value: Sequence[Any]) -> None:
        """Set the value of a key."""
        self._rows.put(self._cursor.at, self._rows.entry(key), value)

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """Pairs of key and value."""
        return iter([*self._rows.of(self._cursor.at).items()])

    def keys(self) -> Iterator[tuple[Any, ...]]:
        """All keys."""
        return iter([*self._rows.of(self._cursor.at)])

    def values(self) -> Iterator[tuple[Any, ...]]:
        """All values."""
        return iter([*self._rows.of(self._cursor.at).values()])

    def removeKey(self, key: Sequence[Any]) -> None:
        """Remove a key, if it exists."""
        self._rows.remove(self._cursor.at, self._rows.entry(key))

    def clear(self) -> None:
        """Remove all."""
        self._rows.clear(self._cursor.at)


def kept(kind: pa.DataType) -> Convert:
    """The form in which a value of this type is read back: it has this form at once, before the epoch ends."""
    if pa.types.is_floating(kind):
        width = np.float32 if kind.bit_width == 32 else np.float64
        return lambda value: None if value is None else float(width(value)) + 0.0
    if pa.types.is_decimal(kind):
        return lambda value: (
            None if value is None else Decimal(value).quantize(Decimal(1).scaleb(-kind.scale), context=DIGITS)
        )
    if pa.types.is_timestamp(kind):
        return _timestamp if kind.tz is None else _local
    return _plain


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _timestamp(value: Any) -> Any:
    """A plain datetime, also from pandas' type."""
    return value.to_pydatetime() if hasattr(value, "to_pydatetime") else value


def _local(value: Any) -> Any:
    """PySpark's datetimes without a zone are in the machine's zone."""
    value = _timestamp(value)
    return value if value is None or value.tzinfo is None else value.astimezone().replace(tzinfo=None)


def _shown(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        return [_local(value) for value in values]
    return values
