"""PySpark's StatefulProcessor as a process: a class written for transformWithState runs unchanged, key by key.

Its methods are Python calls for every key and row, as in Spark; state is read once and written once for all keys.
PySpark is not imported here: the needed classes (Row, TimerValues, ExpiredTimerInfo) come from the module of the user's
base class.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ferry.contract.errors import SpecRefused
from ferry.contract.limits import WATERMARK_END
from ferry.kernels.grouping import Ints
from ferry.kernels.retyped import in_microseconds, retyped
from ferry.kernels.schemas import from_text, to_text
from ferry.process.api import Process, Values, Work, array_of
from ferry.process.classes import arguments_of, class_of, name_of
from ferry.process.ddl import schema_of
from ferry.process.state_variables import (
    ENTRIES,
    KEY,
    Cursor,
    KeyedRows,
    Kind,
    ListState,
    MapState,
    ValueState,
    Variable,
)
from ferry.process.timers import Timers
from ferry.process.users import users_code

BASE = "pyspark.sql.streaming.stateful_processor"
"""Module of PySpark's StatefulProcessor, and of its methods' argument types."""
NEVER = WATERMARK_END
"""Later timers, such as for the greatest possible time, never fire."""

TIME_MODES = ("eventtime", "processingtime", "none")
TIMERS = Variable("spark timers", "list", pa.schema([("set", pa.bool_())]))
"""Times of each key's timers: they can be listed, unlike the timers of a process."""


class Handle:
    """PySpark's StatefulProcessorHandle: declares state variables, and sets timers of the current key.

    Without work, where the pipeline is built, it only records the declarations.
    """

    def __init__(self, time_mode: str, work: Work | None = None) -> None:
        self.variables: dict[str, Variable] = {}
        self.cursor = Cursor()
        self.opened = False
        """`init` is over: no further declarations"""
        self._time_mode = time_mode
        self._work = work
        self._rows: dict[str, KeyedRows] = {}
        self._timers: dict[tuple[int, int], bool] = {}
        """by key and time: whether it is set or removed"""
        if time_mode != "none":
            self._declare(TIMERS)

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ValueState:
        """A variable of one value a key."""
        return ValueState(self.cursor, self._state(stateName, "value", schema, ttlDurationMs))

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ListState:
        """A variable of a list a key."""
        return ListState(self.cursor, self._state(stateName, "list", schema, ttlDurationMs))

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Any,
        valueSchema: Any,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        """A variable of a map a key."""
        return MapState(self.cursor, self._state(stateName, "map", valueSchema, ttlDurationMs, userKeySchema))

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Call the process when time has passed this; an existing timer is not changed."""
        self._refuse_timers()
        time, rows = int(expiryTimestampMs), self._rows[TIMERS.name]
        if time not in rows.of(self.cursor.at):
            rows.put(self.cursor.at, time, (True,))
            self._timers[self.cursor.at, time] = True

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Remove this timer."""
        self._refuse_timers()
        time = int(expiryTimestampMs)
        self._rows[TIMERS.name].remove(self.cursor.at, time)
        self._timers[self.cursor.at, time] = False

    def listTimers(self) -> Iterator[int]:
        """Times of the key's timers, ascending, including the timer that fires now."""
        self._refuse_timers()
        return iter(sorted(self._rows[TIMERS.name].of(self.cursor.at)))

    def deleteIfExists(self, stateName: str) -> None:
        """Remove the declaration of this variable."""
        self._refuse_late(stateName)
        self.variables.pop(stateName, None)
        self._rows.pop(stateName, None)

    def has_timer(self, time: int) -> bool:
        """Whether the current key has a timer for this time."""
        return time in self._rows[TIMERS.name].of(self.cursor.at)

    def expire(self, keys: Ints) -> None:
        """Forget the expired rows of these keys."""
        for rows in self._rows.values():
            if rows.variable.ttl_ms is not None:
                for key in keys.tolist():
                    rows.of(key)

    def write(self, work: Work) -> None:
        """Write all changes of state and of timers to the process."""
        for rows in self._rows.values():
            rows.write()
        cleans = any(variable.ttl_ms is not None for variable in self.variables.values())
        changes = work.set_timer, work.remove_timer
        if self._time_mode == "processingtime":
            changes = work.set_processing_timer, work.remove_processing_timer
        for change, is_set in zip(changes, (True, False), strict=True):
            chosen = [at for at, what in self._timers.items() if what is is_set]
            if chosen and (is_set or not cleans):  # a cleanup timer may have the same time
                keys, times = np.array(chosen, np.int64).T
                change(keys, np.minimum(times, NEVER) + 1)

    def _state(self, name: str, kind: Kind, values: Any, ttl: int | None, keys: Any = None) -> KeyedRows:
        self._refuse_late(name)
        if ttl is not None and (self._time_mode != "processingtime" or ttl <= 0):
            raise SpecRefused(
                f"state {name!r}: a time to live is more than 0 ms of processing time; it needs time_mode='ProcessingTime'"
            )
        of_keys = pa.schema([]) if keys is None else schema_of(keys, f"state {name!r}")
        variable = Variable(name, kind, schema_of(values, f"state {name!r}"), of_keys, ttl)
        if (same := [v for v in self.variables.values() if v.table == variable.table]) and same != [variable]:
            raise SpecRefused(f"state {name!r} and {same[0].name!r} are too much alike; rename one")
        return self._declare(variable)

    def _declare(self, variable: Variable) -> KeyedRows:
        self.variables[variable.name] = variable
        if variable.name not in self._rows:
            self._rows[variable.name] = KeyedRows(variable, self._work)
        return self._rows[variable.name]

    def _refuse_late(self, name: str) -> None:
        if self.opened:
            raise SpecRefused(f"state {name!r}: variables are declared and deleted in init(), and nowhere else")

    def _refuse_timers(self) -> None:
        if self._time_mode == "none":
            raise SpecRefused("timers need time_mode='EventTime' or 'ProcessingTime'")


class Emitted:
    """Rows that the methods of one call have yielded, in their order."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._names = {*schema.names}
        self._keys: list[Ints] = []
        self._batches: list[pa.RecordBatch] = []
        self._row_keys: list[int] = []
        self._rows: list[dict[str, Any]] = []

    def add(self, key: int, items: Iterator[Any]) -> None:
        """Add all items of a method: Rows, or DataFrames of pandas."""
        row = _spark().Row
        for item in items:
            if isinstance(item, row):
                fields = item.asDict()
                if fields.keys() != self._names:
                    names = ", ".join(self._schema.names)
                    raise SpecRefused(f"a Row has the fields {', '.join(fields)}; they have to be {names}")
                self._row_keys.append(key)
                self._rows.append(fields)
            elif hasattr(item, "columns"):
                self._add_frame(key, item)
            else:
                raise SpecRefused(f"{item!r} is neither a Row nor a DataFrame of pandas")

    def write(self, work: Work) -> None:
        """Emit them."""
        if self._rows:
            self._keys.append(np.array(self._row_keys, np.int64))
            self._batches.append(self._checked(lambda: pa.RecordBatch.from_pylist(self._rows, self._schema)))
        for keys, batch in zip(self._keys, self._batches, strict=True):
            work.emit(keys, batch)

    def _add_frame(self, key: int, frame: Any) -> None:
        if not len(frame):
            return
        if not all(isinstance(name, str) for name in frame.columns):
            frame = frame.set_axis(self._schema.names, axis=1)
        made = self._checked(lambda: pa.RecordBatch.from_pandas(frame, self._schema, preserve_index=False))
        self._keys.append(np.full(made.num_rows, key))
        self._batches.append(made.replace_schema_metadata(None))

    def _checked(self, make: Any) -> pa.RecordBatch:
        try:
            return make()
        except (pa.ArrowInvalid, pa.ArrowTypeError, KeyError, ValueError, OverflowError) as error:
            columns = ", ".join(f"{f.name} {f.type}" for f in self._schema)
            raise SpecRefused(f"rows that were given are not {columns}: {error}") from error


@dataclass
class HostedProcessor(Process):
    """A StatefulProcessor of PySpark, constructed again for every epoch, as Spark does for every batch.

    Parameters:
        made_of, arguments: its class, and its constructor arguments.
        columns: its output, as text.
        time_mode: one of `TIME_MODES`.
        pandas: its methods take and return DataFrames of pandas, otherwise Rows.
    """

    made_of: str
    arguments: dict[str, Any]
    columns: str
    time_mode: str
    pandas: bool

    def open(self, key: pa.Schema, inputs: Sequence[pa.Schema]) -> None:
        """Tables follow from the declarations of `init`."""
        self.output = from_text(self.columns)
        handle, processor = Handle(self.time_mode), self._made()
        processor.init(handle)
        processor.close()
        self.tables = {variable.table: variable.state for variable in handle.variables.values()}
        self._begins = len(inputs) > 1

    def upgrade(self, table: str, rows: pa.RecordBatch) -> Mapping[str, Values]:
        """As of a process; tables have names and columns of its variables. Raises SpecRefused for other keys of a map."""
        answers: Mapping[str, Values] = self._made().upgrade(table, rows)
        maps = {name: one.values for name, one in self.tables.items() if one.entry == ENTRIES["map"]}
        for target, answer in answers.items() if isinstance(answers, Mapping) else ():
            names = answer.schema.names if isinstance(answer, pa.RecordBatch | pa.Table) else answer
            for column in maps.get(target, pa.schema([])):
                if column.name.startswith(KEY) and (
                    column not in [*rows.schema]
                    or (
                        column.name in names
                        and not array_of(answer[column.name], column.type).equals(rows[column.name])
                    )
                ):
                    raise SpecRefused(
                        f"upgrade({table!r}): {column.name!r} of {target!r} differs: a map keeps its keys"
                    )
        return answers

    def process(self, work: Work) -> None:
        """For every key: its initial state, if any, and its rows; then its timers. Raises UserCodeFailed."""
        with users_code(f"StatefulProcessor {self.made_of.rpartition(':')[2]}", class_of(self.made_of)):
            self._process(work)

    def _process(self, work: Work) -> None:
        handle, emitted, processor = Handle(self.time_mode, work), Emitted(self.output), self._made()
        processor.init(handle)
        handle.opened = True
        keys = _python_rows(work.keys)
        times = self._times(work.now, max(work.low, 0))
        for key, rows in self._by_key(work.rows(1), work.key_of(1), work.count) if self._begins else ():
            handle.cursor.at = key
            with users_code("handleInitialState", processor.handleInitialState, keys[key]):
                for one in rows:
                    processor.handleInitialState(keys[key], one, times)
        for key, rows in self._inputs(work):
            handle.cursor.at = key
            with users_code("handleInputRows", processor.handleInputRows, keys[key]):
                emitted.add(key, processor.handleInputRows(keys[key], rows, times))
        for key, time in zip(*map(np.ndarray.tolist, self._due(work)), strict=True):
            handle.cursor.at = key
            if handle.has_timer(time):
                with users_code("handleExpiredTimer", processor.handleExpiredTimer, keys[key]):
                    self._fire(work, handle, emitted, processor, keys[key], time)
        handle.expire(np.unique(work.processing_timers().key))
        handle.cursor.at = -1
        processor.close()
        handle.write(work)
        emitted.write(work)

    def _fire(self, work: Work, handle: Handle, emitted: Emitted, processor: Any, key: Any, time: int) -> None:
        watermark = time + 1 if work.watermark >= WATERMARK_END else work.watermark
        info = _spark().ExpiredTimerInfo(time)
        given = processor.handleExpiredTimer(
            key=key, timerValues=self._times(work.now, watermark), expiredTimerInfo=info
        )
        emitted.add(handle.cursor.at, given)
        handle.deleteTimer(time)

    def _due(self, work: Work) -> Timers:
        """Timers as registered: a process gets them a millisecond later, when their time has passed."""
        due = work.processing_timers() if self.time_mode == "processingtime" else work.timers()
        return Timers(due.key, due.time - 1)

    def _times(self, now: int, watermark: int) -> Any:
        shown = {"none": (-1, -1), "processingtime": (now, -1), "eventtime": (now, watermark)}
        return _spark().TimerValues(*shown[self.time_mode])

    def _inputs(self, work: Work) -> Iterator[tuple[int, Iterator[Any]]]:
        """Rows that are not late, for each key that has any."""
        timely = work.times() >= work.low
        work.late(int(timely.size - timely.sum()))
        batch, keys = work.rows(), work.key_of()
        if not timely.all():
            batch, keys = batch.filter(pa.array(timely)), keys[timely]
        return self._by_key(batch, keys, work.count)

    def _by_key(self, batch: pa.RecordBatch, keys: Ints, count: int) -> Iterator[tuple[int, Iterator[Any]]]:
        """These rows by key, as Rows or as one DataFrame."""
        spans = np.searchsorted(keys, np.arange(count + 1))
        touched = np.flatnonzero(np.diff(spans))
        begins, ends = spans[touched].tolist(), spans[touched + 1].tolist()
        return zip(touched.tolist(), (self._frames if self.pandas else self._rows)(batch, begins, ends), strict=True)

    def _rows(self, batch: pa.RecordBatch, begins: list[int], ends: list[int]) -> Iterator[Iterator[Any]]:
        row = _spark().Row(*batch.schema.names)
        values = _python_rows(batch)
        return ((row(*one) for one in values[begin:end]) for begin, end in zip(begins, ends, strict=True))

    def _frames(self, batch: pa.RecordBatch, begins: list[int], ends: list[int]) -> Iterator[Iterator[Any]]:
        columns = [
            column.cast(pa.timestamp(column.type.unit)) if pa.types.is_timestamp(column.type) else column
            for column in batch.columns
        ]
        plain = pa.RecordBatch.from_arrays(columns, batch.schema.names)
        return (iter([plain.slice(b, e - b).to_pandas()]) for b, e in zip(begins, ends, strict=True))

    def _made(self) -> Any:
        return class_of(self.made_of)(**self.arguments)


def hosted(name: str, processor: Any, output: Any, time_mode: str, pandas: bool) -> HostedProcessor:
    """The process that runs this StatefulProcessor. Raises SpecRefused when instances could not construct it."""
    subject = f"transform_with_state {name!r}"
    if not any(base.__name__ == "StatefulProcessor" and base.__module__ == BASE for base in type(processor).__mro__):
        raise SpecRefused(f"{subject}: {processor!r} is no instance of a subclass of PySpark's StatefulProcessor")
    if not isinstance(time_mode, str) or time_mode.lower() not in TIME_MODES:
        raise SpecRefused(f"{subject}: time_mode={time_mode!r}; use 'EventTime', 'ProcessingTime' or 'None'")
    try:
        made_of, arguments = name_of(type(processor)), arguments_of(processor)
    except SpecRefused as error:
        raise SpecRefused(f"{subject}: {error}") from error
    return HostedProcessor(made_of, arguments, to_text(schema_of(output, subject)), time_mode.lower(), pandas)


def _python_rows(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Rows of Python values, as in PySpark: times in microseconds, rounded down.

    Raises SpecRefused for a time that Python's datetime cannot hold.
    """
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            kind = in_microseconds(column.type)
            columns.append((column if kind == column.type else retyped(column, kind)).to_pylist())
        except (ValueError, OverflowError) as beyond:
            raise SpecRefused(
                f"column {name!r} is {column.type}, with a value that Python's datetime has not ({beyond}): leave such "
                "records out, or cast the column to int64, in .map_batches(...)"
            ) from beyond
    return [*zip(*columns, strict=True)]


def _spark() -> Any:
    """PySpark's own classes, which the user's class has imported."""
    return sys.modules[BASE]
