"""A whole pipeline in this process, epoch after epoch: sources are tables, sinks become tables.

The same code reads, aggregates and fires as in a job; what a job does between processes (replication, moves, checkpoints) is
left out. A JVM is started for `.transform` alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from ferry.api.pipeline import Input, MapBatches, Operator, Output, Transform
from ferry.connectors import sink as sinks
from ferry.connectors.files.parquet_sink import Parquet
from ferry.connectors.foreach.sink import ForeachEpoch
from ferry.connectors.kafka.sink import KafkaSink
from ferry.contract import watermarks
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import SpecRefused
from ferry.contract.ingest_runs import IngestRun
from ferry.contract.limits import WATERMARK_END, WATERMARK_NONE
from ferry.contract.names import Step
from ferry.contract.tickets import Right
from ferry.driver.check import LateSession
from ferry.driver.session import tried
from ferry.kernels.schemas import fired_schema
from ferry.spark import compile, emit, feeds, late
from ferry.spark.frames import frame_of
from ferry.spark.tasks.flight import Connections
from ferry.spark.tasks.ingest import IngestTask
from ferry.spark.transforms import transformed
from ferry.store.state import State, open_state

Rows: TypeAlias = "pa.Table | Sequence[Mapping[str, Any]]"
"""Records of a source: a table, or dictionaries."""

VNODES = 4
MEMORY_BYTES = 64 * 1024 * 1024
"""Virtual nodes of a state, and what it keeps in memory."""


class TestedRows(dict[str, pa.Table]):
    """The rows of each sink, by its name, in the order of the epochs.

    `late`: how many records came too late, by operator; `malformed`: records that were set aside, each with its reason.
    """

    def __init__(self) -> None:
        super().__init__()
        self.late: dict[str, int] = {}
        self.malformed: list[dict[str, str]] = []


def test(
    pipeline: Callable[..., Any],
    inputs: Mapping[str, Rows | Sequence[Rows]],
    epochs: int = 1,
    args: Mapping[str, Any] | None = None,
    restarts: bool = True,
) -> TestedRows:
    """Run a pipeline over these records in this process, to the end of its input.

    Parameters:
        pipeline: the function of a job, `pipeline(streams, args)`.
        inputs: by source, its records: a table, or dictionaries (their types are then found out; an empty source needs a
            table). A list of these has the records of one epoch after the other.
        epochs: into how many epochs records are cut that are not in a list.
        args: `spec.pipeline.args`.
        restarts: before every epoch the state is put into another process's hands, as a move or a crash would: what a
            function of yours keeps anywhere but in its state is not lost here alone.
    Returns: the rows of each sink, by its name: the last name of a folder or a table, a topic, the name of a function, or
        "console".
    Raises: SpecRefused, if the pipeline is refused; UserCodeFailed, if one of its functions raises.
    Example:
        >>> def pipeline(streams, args):
        ...     orders = streams["orders"].event_time("ts", delay="1s").key_by("shop").window(ferry.tumbling("10s"))
        ...     return orders.aggregate("sales", cents=ferry.sum("cents")).sink(ferry.parquet("sales"))
        >>> orders = [{"shop": "a", "ts": 1000, "cents": 5}, {"shop": "a", "ts": 2000, "cents": 7}]
        >>> ferry.test(pipeline, {"orders": orders}, epochs=2)["sales"].to_pylist()
        [{'shop': 'a', 'window_start': 0, 'window_end': 10000, 'cents': 12}]
    """
    pieces = {name: _pieces(name, given, epochs) for name, given in inputs.items()}
    with TemporaryDirectory(prefix="ferry-test-", ignore_cleanup_errors=True) as folder:
        return _InOneProcess(pipeline, pieces, dict(args or {}), Path(folder), restarts).run()


test.__test__ = False  # type: ignore[attr-defined]  # pytest would take it for one of its own


def _pieces(name: str, given: Rows | Sequence[Rows], epochs: int) -> list[pa.Table]:
    if epochs < 1:
        raise SpecRefused(f"epochs={epochs}: at least one is needed")
    if not isinstance(given, pa.Table) and given and not isinstance(given[0], Mapping):
        whole = [one if isinstance(one, pa.Table) else None for one in given]
        schema = next((one.schema for one in whole if one is not None), None)
        return [_table(name, one, schema) for one in given]
    table = _table(name, given, None)
    bounds = np.linspace(0, table.num_rows, epochs + 1).astype(int)
    return [table.slice(begin, end - begin) for begin, end in pairwise(bounds)]


def _table(name: str, given: Any, schema: pa.Schema | None) -> pa.Table:
    if isinstance(given, pa.Table):
        return given
    if isinstance(given, pa.RecordBatch):
        return pa.Table.from_batches([given])
    if not given and schema is None:
        raise SpecRefused(f"inputs[{name!r}]: nothing says what columns it has; give a pyarrow.Table")
    return pa.Table.from_pylist(list(given), schema=schema)


class _Pieces:
    """A source whose splits are pieces of a table."""

    own_clock = True

    def __init__(self, pieces: list[pa.Table]) -> None:
        self._pieces = pieces

    def schema(self) -> pa.Schema:
        return self._pieces[0].schema

    def start(self) -> int:
        return 0

    def latest(self, start: int, max_rows: int) -> int:
        return len(self._pieces)

    def ended(self, position: int) -> bool:
        return position == len(self._pieces)

    def plan(self, start: int, stop: int, tasks: int) -> list[dict[str, Any]]:
        return [{"piece": piece} for piece in range(start, stop)]

    def read(self, split: dict[str, Any], columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        table = self._pieces[split["piece"]]
        yield from (table if columns is None else table.select(list(columns))).to_batches()


class _Kept:
    """In place of a helper: what a task sends is kept."""

    helper: str | None = None

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def send(self, batches: list[pa.RecordBatch]) -> None:
        self.batches += [batch for batch in batches if batch.num_rows]


class _InOneProcess:
    """One run."""

    def __init__(
        self,
        pipeline: Callable[..., Any],
        pieces: dict[str, list[pa.Table]],
        args: dict[str, Any],
        folder: Path,
        restarts: bool,
    ) -> None:
        self._folder = folder
        self._restarts = restarts
        self._pieces = pieces
        module = ModuleType(getattr(pipeline, "__module__", None) or "pipeline")
        module.sources = lambda spark, args: {name: _Pieces(mine) for name, mine in pieces.items()}  # type: ignore[attr-defined]
        module.pipeline = pipeline  # type: ignore[attr-defined]
        self._spark: Any = LateSession(lambda: tried(str(folder / "spark")))
        self._plan = compile.build(self._spark, module, args)
        self._works = feeds.works_of(self._plan, None, None)
        self._operators = [one for one in self._plan.operators if one.inputs]
        self._low = dict.fromkeys((one.descriptor.index for one in self._operators), WATERMARK_NONE)
        self._clocks: dict[tuple[int, int], dict[str, watermarks.FlowClock]] = {}
        self._states: dict[int, State] = {}
        self._opened = 0
        self._outcome = TestedRows()
        self._named = _named([*(one.sink for one in self._plan.outputs), *(one.sink for one in self._plan.late)])
        self._given: dict[int, list[pa.Table]] = {id(sink): [] for sink in self._named}

    def run(self) -> TestedRows:
        """All epochs; in the last one the input ends."""
        initial = set(self._plan.first)
        turns: list[dict[str, list[int]]] = []
        if initial:
            turns.append({name: list(range(len(self._pieces[name]))) for name in initial})
        others = {name: pieces for name, pieces in self._pieces.items() if name not in initial}
        for epoch in range(max(map(len, others.values()), default=0 if turns else 1)):
            turns.append({name: [epoch] for name, pieces in others.items() if epoch < len(pieces)})
        for epoch, turn in enumerate(turns):
            self._epoch(epoch, turn, epoch == len(turns) - 1)
        for sink, name in self._named.items():
            tables = self._given[id(sink)]
            self._outcome[name] = pa.concat_tables(tables) if tables else pa.table({})
        return self._outcome

    def _epoch(self, epoch: int, turn: dict[str, list[int]], last: bool) -> None:
        if self._restarts or not epoch:
            self._hand_over()
        fired: dict[int, pa.Table] = {}
        highs: dict[int, int] = {}
        lows = dict(self._low)
        now = int(time.time() * 1000)
        for operator in self._operators:
            index, state = operator.descriptor.index, self._states[operator.descriptor.index]
            task, sent = self._read(epoch, operator, turn, fired)
            high = WATERMARK_END if last else self._watermark(operator, task, highs, now)
            times = EpochTimes(lows[index], max(high, lows[index]), epoch, now)
            merged = state.combine(sent)
            delta, late_records = state.delta([merged] if merged.num_rows else [], times, np.arange(VNODES))
            state.apply(delta, epoch, "test")
            batches = list(state.fired(times, np.arange(VNODES)))
            fired[index] = pa.Table.from_batches(batches, schema=fired_schema(operator.descriptor))
            highs[index] = self._low[index] = times.high
            name = operator.descriptor.name
            self._outcome.late[name] = self._outcome.late.get(name, 0) + late_records
            self._outcome.malformed += map(json.loads, task.dead_letters)
        for output in self._plan.outputs:
            self._give(output.sink, self._rows(output, turn, fired))
        for one in self._plan.late:
            for source in one.inputs:
                descriptor = self._plan.operators[one.operator].descriptor
                found = late.late_of(descriptor, source, one, lows[one.operator])
                rows = self._records(source, turn, fired)
                self._give(one.sink, pa.Table.from_batches(found(rows.to_batches()), schema=rows.schema))
        for index, state in self._states.items():
            state.release(epoch, self._low[index])

    def _read(
        self, epoch: int, operator: Operator, turn: dict[str, list[int]], fired: dict[int, pa.Table]
    ) -> tuple[IngestTask, list[pa.RecordBatch]]:
        """What the tasks of an epoch do for an operator, done by one of them, and what that sends."""
        index = operator.descriptor.index
        work = self._works[index]
        run = IngestRun(Step(epoch, index), 1, 1, (), Right(b""), self._low[index])
        with Connections(None) as connections:
            task = IngestTask(work, run, 1, 0, connections)
            task.sender = kept = _Kept()  # type: ignore[assignment]
            for source in operator.inputs:
                name = feeds.name_of(source)
                if feeds.in_spark(source):
                    for batch in self._records(source, turn, fired).to_batches():
                        task.add(f"{name}#{source_number(operator, source)}", batch)
                elif isinstance(source.origin, int):
                    for batch in fired[source.origin].to_batches():
                        task.add(name, batch)
            task.read([(name, json.dumps({"piece": piece})) for name, mine in turn.items() for piece in mine])
            for fragmenter in task.fragmenters.values():
                task.sender.send(fragmenter.drain())
        return task, kept.batches

    def _watermark(self, operator: Operator, task: IngestTask, highs: dict[int, int], now: int) -> int:
        index, found = operator.descriptor.index, list[int | None]()
        for number, source in enumerate(operator.inputs):
            if source.initial:
                continue
            if isinstance(source.origin, int):
                found.append(max(highs[source.origin] - source.delay_ms, WATERMARK_NONE))
                continue
            before = self._clocks.get((index, number), {})
            maxima = task.maxima.get(number, {})
            listed = None if source.flow is None else dict.fromkeys(maxima, False)
            clocks = watermarks.advanced(before, maxima, listed, source.idle_ms, now)
            self._clocks[index, number] = clocks
            found.append(watermarks.input_watermark(clocks, source.delay_ms, source.idle_ms, now))
        return watermarks.operator_watermark(found)

    def _records(self, source: Input, turn: dict[str, list[int]], fired: dict[int, pa.Table]) -> pa.Table:
        """The records of an input in an epoch, behind its steps."""
        if isinstance(source.origin, int):
            table = fired[source.origin]
        else:
            pieces = self._pieces[source.origin]
            table = pa.concat_tables([pieces[i] for i in turn.get(source.origin, ())] or [pieces[0].slice(0, 0)])
        for step in source.steps:
            if isinstance(step, Transform):
                table = transformed(step, frame_of(self._spark, table)).toArrow()
            else:
                assert isinstance(step, MapBatches)
                batches = table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
                table = pa.Table.from_batches(list(emit.mapped([step.function], batches)))
        return table

    def _rows(self, output: Output, turn: dict[str, list[int]], fired: dict[int, pa.Table]) -> pa.Table:
        return self._records(output.input, turn, fired)

    def _give(self, sink: sinks.Sink, rows: pa.Table) -> None:
        if rows.num_rows or not self._given[id(sink)]:
            self._given[id(sink)].append(rows)

    def _hand_over(self) -> None:
        """Each state goes on as another instance that was sent all of it."""
        self._opened += 1
        for operator in self._operators:
            descriptor = operator.descriptor
            folder = self._folder / f"{descriptor.index}-{self._opened}"
            folder.mkdir(parents=True)
            state = open_state(descriptor, VNODES, folder, MEMORY_BYTES)
            before = self._states.get(descriptor.index)
            if before is not None:
                for chunk in before.snapshot(np.arange(VNODES)):
                    state.apply_absent(chunk)
                state.release(-1, self._low[descriptor.index])
            self._states[descriptor.index] = state


def source_number(operator: Operator, source: Input) -> int:
    """Of an input of an operator."""
    return next(number for number, one in enumerate(operator.inputs) if one is source)


def _label(sink: sinks.Sink) -> str:
    match sink:
        case Parquet():
            return Path(sink.declared).name
        case ForeachEpoch():
            return str(getattr(sink.function, "__name__", "foreach_epoch"))
        case KafkaSink():
            return sink.topic
    return str(getattr(sink, "label", type(sink).__name__.lower()))


def _named(declared: Sequence[sinks.Sink]) -> dict[sinks.Sink, str]:
    """A name for each sink. Raises SpecRefused when two have the same."""
    found: dict[sinks.Sink, str] = {}
    for sink in declared:
        name = _label(sink)
        if name in found.values():
            raise SpecRefused(f"ferry.test: two sinks are called {name!r}; give one another folder, topic or function")
        found[sink] = name
    return found
