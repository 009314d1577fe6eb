"""Runs a process alone, with its state in dictionaries: for unit tests, without a cluster and without Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from ferry.contract.errors import SpecRefused
from ferry.contract.limits import WATERMARK_END, WATERMARK_NONE
from ferry.kernels.grouping import NO_INTS, Ints
from ferry.process.api import Clocks, Process, SideRows
from ferry.process.condensing import condensed
from ferry.process.declared import opened
from ferry.process.rounds import EpochInput, ProcessChanges, run
from ferry.process.tables import Entries, StateTable, no_entries
from ferry.process.timers import TimerChanges, Timers

Key = tuple[Any, ...]
Rows: TypeAlias = "pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]] | None"
"""Rows of an epoch of one input: Arrow, or records as dictionaries."""


class ProcessHarness:
    """Runs a process epoch after epoch, in one thread, as an instance would.

    Parameters:
        process: the process.
        schema: columns of its input.
        key: which of them are the key.
        other: columns of its second input, if it has one.
        other_key: its key; by default the columns that `key` names.
        time: column of the event time in every input, int64 milliseconds; None: all records are of time 0.
        order: column that orders the records of a key; None: by event time.
    Raises: SpecRefused, if the process refuses these inputs, has invalid declarations, or a column does not exist.
    Example:
        >>> import dataclasses, pyarrow as pa
        >>> @dataclasses.dataclass
        ... class Alarm(ferry.Process):
        ...     after_ms: int
        ...     output = pa.schema([("at", pa.int64())])
        ...     def process(self, work):
        ...         work.set_timer(work.key_of(), work.times() + self.after_ms)
        ...         key, time = work.timers()
        ...         work.emit(key, {"at": time})
        >>> schema = pa.schema([(name, pa.int64()) for name in bids.columns])
        >>> harness = ferry.ProcessHarness(Alarm(10), schema, key="auction")
        >>> harness.epoch([{"auction": 7, "ts": 5}], watermark=5).num_rows
        0
        >>> harness.timers()
        {((7,), 15)}
        >>> harness.epoch(watermark=20).to_pylist()
        [{'at': 15}]
    """

    def __init__(
        self,
        process: Process,
        schema: pa.Schema,
        key: str | Sequence[str],
        other: pa.Schema | None = None,
        other_key: str | Sequence[str] | None = None,
        time: str | None = "ts",
        order: str | None = None,
    ) -> None:
        names = [[k] if isinstance(k, str) else list(k) for k in (key, other_key) if k is not None]
        self._schemas = [schema] if other is None else [schema, other]
        self._keys = names if other is None else [names[0], names[-1]]
        for one, columns in zip(self._schemas, self._keys, strict=True):
            if missing := [name for name in columns if name not in one.names]:
                raise SpecRefused(f"key: no column {missing[0]!r}; there are {', '.join(one.names)}")
        self._key = pa.schema([schema.field(name) for name in self._keys[0]])
        self._time = time
        self._order = order
        self._process = opened(process, self._key, self._schemas)
        self._tables: dict[str, dict[tuple[Key, Any], dict[str, Any]]] = {name: {} for name in self._process.tables}
        self._timers: set[tuple[Key, int]] = set()
        self._processing: set[tuple[Key, int]] = set()
        self._epoch = 0
        self.watermark = WATERMARK_NONE
        """Watermark of the last epoch."""
        self.late = 0
        """Records that the process has left out as late."""

    def epoch(self, rows: Rows = None, other: Rows = None, watermark: int | None = None, now: int = 0) -> pa.Table:
        """Run one epoch; returns the emitted rows. `watermark`: after it, by default unchanged; `now`: the time of
        processing timers."""
        low, high = self.watermark, self.watermark if watermark is None else watermark
        assert high >= low, "a watermark never goes back"
        batches = [
            self._batch(side, given) for side, given in zip(range(len(self._schemas)), (rows, other), strict=False)
        ]
        due, due_processing = _due(self._timers, high), _due(self._processing, now)
        of_rows = [_tuples(batch.select(names)) for batch, names in zip(batches, self._keys, strict=True)]
        index: dict[Key, int] = {}
        for key in [*(k for side in of_rows for k in side), *(k for k, _ in (*due, *due_processing))]:
            index.setdefault(key, len(index))
        clocks = Clocks(self._epoch, low, high, now)
        sides = tuple(self._side(batch, keys, index) for batch, keys in zip(batches, of_rows, strict=True))
        keys = pa.RecordBatch.from_pylist([dict(zip(self._key.names, k, strict=True)) for k in index], self._key)
        read = self._reader(index)
        timers, processing = _timers(due, index), _timers(due_processing, index)
        changes = run(self._process, EpochInput(clocks, keys, sides, timers, processing, read))
        self._apply(changes, list(index))
        self._epoch += 1
        self.watermark = high
        return pa.Table.from_batches([changes.emitted])

    def end(self) -> pa.Table:
        """The end of a finite input: every timer is due."""
        return self.epoch(watermark=WATERMARK_END)

    def rows(self, table: str) -> dict[tuple[Key, Any], dict[str, Any]]:
        """State of a table: by key and entry."""
        return dict(self._tables[table])

    def timers(self) -> set[tuple[Key, int]]:
        """Event-time timers that are set: (key, time)."""
        return set(self._timers)

    def processing_timers(self) -> set[tuple[Key, int]]:
        """Processing-time timers that are set: (key, time)."""
        return set(self._processing)

    def _batch(self, side: int, rows: Rows) -> pa.RecordBatch:
        schema = self._schemas[side]
        if rows is None or not isinstance(rows, pa.Table | pa.RecordBatch):
            given = list(rows or [])
            if unknown := [name for row in given for name in row if name not in schema.names]:
                raise SpecRefused(f"a row has {unknown[0]!r}; columns are {', '.join(schema.names)}")
            return pa.RecordBatch.from_pylist(given, schema)
        found = rows.select(schema.names).cast(schema)
        return (
            found
            if isinstance(found, pa.RecordBatch)
            else pa.concat_batches([pa.RecordBatch.from_pylist([], schema), *found.to_batches()])
        )

    def _side(self, batch: pa.RecordBatch, keys: list[Key], index: dict[Key, int]) -> SideRows:
        def column(name: str | None) -> Ints:
            if name is None:
                return np.zeros(batch.num_rows, np.int64)
            return batch.column(name).cast(pa.int64()).to_numpy(zero_copy_only=False)

        numbers = np.array([index[key] for key in keys], np.int64)
        order = column(self._order) if self._order is not None and self._order in batch.schema.names else None
        return condensed(self._process, SideRows.arranged(batch, numbers, column(self._time), order), self.watermark)

    def _reader(self, index: dict[Key, int]) -> Callable[[str, Ints], Entries]:
        def read(name: str, keys: Ints) -> Entries:
            table, wanted = self._process.tables[name], set(keys.tolist())
            rows = [(index.get(key, -1), entry, row) for (key, entry), row in self._tables[name].items()]
            selected = [row for row in rows if row[0] in wanted]
            if not selected:
                return no_entries(table)
            selected.sort(key=lambda f: f[:1] if table.entry is None else (f[0], _bytes(f[1])))
            entry = None if table.entry is None else pa.array([e for _, e, _ in selected], table.entry)
            values = pa.RecordBatch.from_pylist([row for _, _, row in selected], table.values)
            return Entries(np.array([k for k, _, _ in selected], np.int64), entry, values)

        return read

    def _apply(self, changes: ProcessChanges, keys: list[Key]) -> None:
        for name, (put, removed_key, removed_entry) in changes.tables.items():
            table, rows = self._process.tables[name], self._tables[name]
            for at in zip(removed_key, _entries(table, removed_entry, removed_key.size), strict=True):
                rows.pop((keys[at[0]], at[1]), None)
            where = zip(put.key, _entries(table, put.entry, put.key.size), strict=True)
            for (number, entry), row in zip(where, put.values.to_pylist(), strict=True):
                rows[keys[number], entry] = row
        _change(self._timers, changes.timers, keys)
        _change(self._processing, changes.processing_timers, keys)
        self.late += changes.late


def _tuples(batch: pa.RecordBatch) -> list[Key]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def _entries(table: StateTable, entry: pa.Array | None, rows: int) -> list[Any]:
    return [None] * rows if entry is None else entry.to_pylist()


def _bytes(entry: Any) -> Any:
    """Sort key of an entry: texts by their bytes."""
    return entry.encode() if isinstance(entry, str) else entry


def _due(timers: set[tuple[Key, int]], bound: int) -> list[tuple[Key, int]]:
    return [timer for timer in timers if timer[1] <= bound]


def _timers(due: list[tuple[Key, int]], index: dict[Key, int]) -> Timers:
    pairs = sorted((index[key], time) for key, time in due)
    key, time = np.array(pairs, np.int64).reshape(-1, 2).T if pairs else (NO_INTS, NO_INTS)
    return Timers(np.ascontiguousarray(key), np.ascontiguousarray(time))


def _change(timers: set[tuple[Key, int]], changes: TimerChanges, keys: list[Key]) -> None:
    timers -= {(keys[k], t) for k, t in zip(*map(np.ndarray.tolist, changes.removed), strict=True)}
    timers |= {(keys[k], t) for k, t in zip(*map(np.ndarray.tolist, changes.set), strict=True)}
