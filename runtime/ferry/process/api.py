"""The interface of a process, and what one call of it can read and do.

A process is called once an epoch with all keys that the epoch touches in one instance, as arrays and Arrow batches; it
is written without a loop over records. Its changes are collected here, and applied by the caller
(`ferry.process.rounds`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ferry.contract.errors import SpecRefused
from ferry.kernels.grouping import Ints
from ferry.kernels.numbering import ordered
from ferry.process.tables import Entries, StateTable, TableChanges, TableLog
from ferry.process.timers import TimerLog, Timers

Keys = npt.ArrayLike
"""Indices of touched keys, one for each row; one integer if all rows are of one key."""

Values: TypeAlias = "pa.RecordBatch | pa.Table | Mapping[str, Any]"
"""Rows: a batch, or arrays by column name."""


class Process(ABC):
    """A function over all touched keys of one instance and epoch, with state by key and with timers.

    A subclass is a dataclass whose fields have JSON types (texts, numbers, booleans, nulls, lists and maps of them):
    instances construct it from them. It keeps nothing in itself from one call to the next; lasting state is in
    `tables`.

    Attributes:
        tables: state, by name.
        output: columns of the rows that it emits. The key is not included automatically.
    Example:
        >>> import dataclasses, numpy, pyarrow as pa
        >>> @dataclasses.dataclass
        ... class Latest(ferry.Process):
        ...     column: str
        ...     tables = {"latest": ferry.StateTable(pa.schema([("value", pa.int64())]))}
        ...     output = pa.schema([("value", pa.int64())])
        ...     def process(self, work):
        ...         key, last = numpy.flatnonzero(numpy.diff(work.spans())), work.spans()[1:] - 1
        ...         value = work.rows().column(self.column).take(pa.array(last[key]))
        ...         work.put("latest", key, {"value": value})
        ...         work.emit(key, {"value": value})
        >>> schema = pa.schema([(name, pa.int64()) for name in bids.columns])
        >>> harness = ferry.ProcessHarness(Latest("price"), schema, key="auction")
        >>> rows = [{"auction": 7, "price": 100, "ts": 5}, {"auction": 7, "price": 90, "ts": 8}]
        >>> harness.epoch(rows, watermark=5).to_pylist()
        [{'value': 90}]
    """

    tables: Mapping[str, StateTable] = MappingProxyType({})
    output: pa.Schema

    def open(self, key: pa.Schema, inputs: Sequence[pa.Schema]) -> None:  # noqa: B027
        """Read the columns of the key and of the inputs, and set fields that depend on them: `tables`, `output`.

        Called where the pipeline is built and in every instance, before `process`.

        Raises: SpecRefused, for invalid columns: name the column, and what to do.
        """

    @abstractmethod
    def process(self, work: Work) -> None:
        """Handle the rows of an epoch and the timers that are due: change state, set timers, emit rows."""

    def upgrade(self, table: str, rows: pa.RecordBatch) -> Mapping[str, Values]:
        """Rows of this class's tables, from rows of a table of the program before, for a deploy while the job runs.

        Without it a deploy with other tables is refused. It is called again and again, with some rows of all keys, also
        with rows that change meanwhile, and once without rows: the result must follow from the given rows alone.

        Parameters:
            table: a table of the class before, whose declaration is not in this class.
            rows: the key's columns, `entry` if the table has entries, and its values.
        Returns: by name of a table with another declaration: a row for each of `rows`, in the same order and under the same
            key and entry. Tables that get no rows begin empty, and a table may get rows of a single table only. {}: the
            rows are dropped.
        Example:
            >>> import dataclasses, pyarrow as pa
            >>> @dataclasses.dataclass
            ... class Mean(ferry.Process):
            ...     tables = {"mean": ferry.StateTable(pa.schema([("total", pa.float64()), ("n", pa.int64())]))}
            ...     output = pa.schema([("mean", pa.float64())])
            ...     def process(self, work):
            ...         pass
            ...     def upgrade(self, table, rows):
            ...         return {"mean": {"total": rows["cents"].cast(pa.float64()), "n": rows["n"]}}
            >>> Mean().upgrade("sum", pa.record_batch({"shop": ["a"], "cents": [30], "n": [2]}))["mean"]["total"].to_pylist()
            [30.0]
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class SideRows:
    """Rows of one input, sorted by key, and within a key in processing order."""

    batch: pa.RecordBatch
    key: Ints
    """Index of each row's key, ascending."""
    times: Ints
    """Event time of each row."""

    @staticmethod
    def arranged(batch: pa.RecordBatch, key: Ints, times: Ints, order: Ints | None = None) -> SideRows:
        """Rows in the order of arrival, sorted: by key, then `order`, else event time; ties as they arrived."""
        rows = ordered(key, times if order is None else order)
        return SideRows(batch.take(pa.array(rows)), key[rows], times[rows])


@dataclass(frozen=True, slots=True)
class Clocks:
    """The times of an epoch."""

    epoch: int
    low: int
    """The operator's watermark before the epoch."""
    watermark: int
    """The operator's watermark after the epoch."""
    now: int
    """Processing time of the attempt, in milliseconds."""


class Work:
    """What one call of a process can read and do.

    Keys are indices, 0 up to `count`, of the touched keys: keys with rows in this epoch, or with a timer that is due.
    Everything is by array: one key index and one value for each row.

    Parameters:
        clocks, keys, numbers, sides, timers, processing_timers, collected: set by the runner of the process.
    Attributes:
        epoch: its number.
        low, watermark: the operator's watermark before the epoch, and after it.
        now: processing time, in milliseconds.
        keys: the key's columns, one row a touched key.
        count: how many keys are touched.
    Example:
        >>> import dataclasses, pyarrow as pa
        >>> @dataclasses.dataclass
        ... class Echo(ferry.Process):
        ...     output = pa.schema([("auction", pa.int64()), ("price", pa.int64())])
        ...     def process(self, work):
        ...         auction = work.keys.column("auction").take(pa.array(work.key_of()))
        ...         work.emit(work.key_of(), {"auction": auction, "price": work.rows().column("price")})
        >>> schema = pa.schema([(name, pa.int64()) for name in bids.columns])
        >>> harness = ferry.ProcessHarness(Echo(), schema, key="auction")
        >>> harness.epoch([{"auction": 7, "price": 100, "ts": 5}]).to_pylist()
        [{'auction': 7, 'price': 100}]
    """

    def __init__(
        self,
        clocks: Clocks,
        keys: pa.RecordBatch,
        numbers: Ints,
        sides: Sequence[SideRows],
        timers: Timers,
        processing_timers: Timers,
        collected: EpochLog,
    ) -> None:
        self.epoch = clocks.epoch
        self.low = clocks.low
        self.watermark = clocks.watermark
        self.now = clocks.now
        self.keys = keys
        self.count = numbers.size
        self._numbers = numbers
        """index of each key among all that the epoch touches: a later round has fewer keys"""
        self._sides = sides
        self._timers = timers
        self._processing_timers = processing_timers
        self._collected = collected

    def rows(self, side: int = 0) -> pa.RecordBatch:
        """Columns of an input, sorted by key, within a key by the declared order, else by event time."""
        return self._sides[side].batch

    def key_of(self, side: int = 0) -> Ints:
        """The key index of each row of an input, ascending."""
        return self._sides[side].key

    def times(self, side: int = 0) -> Ints:
        """The event time of each row of an input."""
        return self._sides[side].times

    def spans(self, side: int = 0) -> Ints:
        """int64[count + 1]: key k has rows [k] up to [k + 1]."""
        return np.searchsorted(self.key_of(side), np.arange(self.count + 1))

    def timers(self) -> Timers:
        """Event-time timers up to the watermark, sorted by (key, time). They are removed after this call."""
        return self._timers

    def processing_timers(self) -> Timers:
        """Processing-time timers up to `now`, sorted by (key, time). They are removed after this call."""
        return self._processing_timers

    def read(self, table: str, key: Keys | None = None) -> Entries:
        """Present rows of a table, including changes of this epoch, sorted by (key, entry).

        Parameters:
            table: its name.
            key: keys to read; None: all touched keys.
        Returns: key indices, entries and values.
        Raises: SpecRefused, if the process has no such table.
        """
        wanted = np.zeros(self._collected.keys, np.bool_)
        wanted[self._numbers if key is None else self._global(key, None)] = True
        found = self._collected.table(table).now(wanted)
        mine = found.at(wanted[found.key])
        return mine._replace(key=np.searchsorted(self._numbers, mine.key))

    def get(self, table: str) -> pa.RecordBatch:
        """The row of each touched key, in the order of the keys; all null for a key without a row."""
        if self._collected.declared(table).entry is not None:
            raise SpecRefused(f"get: table {table!r} has many rows a key; use read({table!r})")
        entries = self.read(table)
        at = np.zeros(self.count, np.int64)
        at[entries.key] = np.arange(entries.key.size)
        absent = np.ones(self.count, np.bool_)
        absent[entries.key] = False
        return entries.values.take(pa.array(at, mask=absent))

    def put(self, table: str, key: Keys, values: Values, entry: Any = None) -> None:
        """Put rows into a table; a row with the same key and entry is replaced."""
        schema = self._collected.declared(table).values
        batch = batch_of(values, schema, f"put into table {table!r}")
        keys = self._global(key, batch.num_rows)
        self._collected.table(table).put(keys, self._entries(table, keys.size, entry), batch)

    def remove(self, table: str, key: Keys, entry: Any = None) -> None:
        """Remove rows from a table: with these entries, or all rows of these keys."""
        if entry is None:
            self._collected.table(table).clear(self._global(key, None))
        else:
            keys = self._global(key, len(entry))
            self._collected.table(table).remove(keys, self._entries(table, keys.size, entry))

    def set_timer(self, key: Keys, time: npt.ArrayLike) -> None:
        """Call the process when the watermark reaches these times; a timer that is already set is not changed."""
        self._change(self._collected.timers, key, time, True)

    def remove_timer(self, key: Keys, time: npt.ArrayLike) -> None:
        """Remove these timers."""
        self._change(self._collected.timers, key, time, False)

    def set_processing_timer(self, key: Keys, time: npt.ArrayLike) -> None:
        """Call the process when the clock reaches these times, in milliseconds."""
        self._change(self._collected.processing_timers, key, time, True)

    def remove_processing_timer(self, key: Keys, time: npt.ArrayLike) -> None:
        """Remove these timers."""
        self._change(self._collected.processing_timers, key, time, False)

    def emit(self, key: Keys, rows: Values) -> None:
        """Rows of `output`, each with the index of its key."""
        batch = batch_of(rows, self._collected.output, "emit")
        self._collected.emitted.append((self._global(key, batch.num_rows), batch))

    def late(self, count: int) -> None:
        """Count records that came too late and were left out."""
        self._collected.late += int(count)

    def _change(self, log: TimerLog, key: Keys, time: npt.ArrayLike, is_set: bool) -> None:
        times = np.asarray(time, np.int64)
        keys = self._global(key, times.size if times.ndim else None)
        if is_set and self._collected.flush:
            open_ = self._has_rows()[np.searchsorted(self._numbers, keys)]
            keys, times = keys[open_], np.broadcast_to(times, open_.shape)[open_]
        log.change(keys, np.broadcast_to(times, keys.shape), is_set)

    def _has_rows(self) -> npt.NDArray[np.bool_]:
        found = np.zeros(self.count, np.bool_)
        for side in self._sides:
            found[side.key] = True
        return found

    def _global(self, key: Keys, rows: int | None) -> Ints:
        keys = np.asarray(key, np.int64)
        if rows is not None and keys.ndim and keys.size != rows:
            raise SpecRefused(f"{keys.size} keys were given for {rows} rows; give one key index a row")
        if keys.size and (keys.min() < 0 or keys.max() >= self.count):
            raise SpecRefused(f"a key index is {keys.min()} or {keys.max()}; {self.count} keys are touched, from 0 on")
        return self._numbers[np.broadcast_to(keys, (1 if rows is None else rows,)) if keys.ndim == 0 else keys]

    def _entries(self, table: str, rows: int, entry: Any) -> pa.Array | None:
        kind = self._collected.declared(table).entry
        if (kind is None) != (entry is None):
            need = "has at most one row a key; give no entry" if kind is None else f"needs an entry of type {kind}"
            raise SpecRefused(f"table {table!r} {need}")
        if kind is None:
            return None
        entries = array_of(entry, kind)
        if len(entries) != rows or entries.null_count:
            raise SpecRefused(
                f"table {table!r}: {len(entries)} entries, {entries.null_count} of them null, for {rows} rows"
            )
        return entries


class EpochLog:
    """The changes of all calls in one epoch, over all its keys."""

    def __init__(
        self,
        process: Process,
        keys: int,
        read: Callable[[str, Ints], Entries],
        timers: TimerLog,
        processing_timers: TimerLog,
        flush: bool,
    ) -> None:
        self.tables = process.tables
        self.keys = keys
        """number of keys that the epoch touches"""
        self.output = process.output
        self.timers = timers
        self.processing_timers = processing_timers
        self.flush = flush
        """The input is over: timers for keys without rows are dropped, otherwise a timer that sets itself again would
        never end."""
        self.emitted: list[tuple[Ints, pa.RecordBatch]] = []
        self.late = 0
        self._read = read
        self._logs: dict[str, TableLog] = {}

    def table(self, name: str) -> TableLog:
        """The changes of a table."""
        if name not in self._logs:
            self._logs[name] = TableLog(self.declared(name), self.keys, partial(self._read, name))
        return self._logs[name]

    def declared(self, name: str) -> StateTable:
        """The declaration of a table."""
        if name not in self.tables:
            raise SpecRefused(f"no table {name!r}; there are {', '.join(self.tables) or 'none'}")
        return self.tables[name]

    def changes(self) -> dict[str, TableChanges]:
        """Changes of every changed table."""
        return {name: log.changes() for name, log in self._logs.items()}


def array_of(values: Any, kind: pa.DataType) -> pa.Array:
    """Values of any kind of array as an Arrow array."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    found = values if isinstance(values, pa.Array) else pa.array(values)
    return found if found.type.equals(kind) else found.cast(kind)


def batch_of(values: Values, schema: pa.Schema, purpose: str) -> pa.RecordBatch:
    """Rows as one batch with these columns; `purpose` is for errors."""
    if isinstance(values, pa.RecordBatch) and values.schema.equals(schema):
        return values
    names = list(values.schema.names if isinstance(values, pa.RecordBatch | pa.Table) else values)
    if set(names) != set(schema.names):
        raise SpecRefused(f"{purpose}: columns are {', '.join(names)}; they have to be {', '.join(schema.names)}")
    arrays = []
    for field in schema:
        try:
            arrays.append(array_of(values[field.name], field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as e:
            raise SpecRefused(f"{purpose}: column {field.name!r} cannot be {field.type}: {e}") from e
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
