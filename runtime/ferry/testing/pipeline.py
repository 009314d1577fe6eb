"""A whole pipeline in this process, epoch by epoch: sources are tables, and the rows of sinks are tables.

The code that reads, aggregates and fires is the same as in a job. The work between processes (replication, moves,
checkpoints) is left out. A JVM is started only for `.transform`.
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
"""Records of a source: a table or dicts."""

VNODES = 4
"""Virtual nodes of a state."""

MEMORY_BYTES = 64 * 1024 * 1024
"""Memory of a state."""


class TestedRows(dict[str, pa.Table]):
    """The rows of each sink by name, in the order of the epochs.

    `late`: number of late records by operator. `malformed`: the malformed records, each with its reason.
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
    """Run a pipeline on these records in this process, to the end of the input.

    Parameters:
        pipeline: the function `pipeline(streams, args)` of a job.
        inputs: by source, its records: a table, or a list of dicts, whose types are inferred. An empty source needs a table.
            A list of tables or of such lists has the records of successive epochs.
        epochs: number of epochs for inputs that are not a list of epochs.
        args: the arguments, `spec.pipeline.args` of a job.
        restarts: True: before every epoch the state is copied to a new instance, as in a move or after a crash. So a test
            fails if your function keeps data outside of its state.
    Returns: the rows of each sink by name: the last part of a folder or table, the topic, the name of the function, or
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
    pieces = {name: _pieces(name, rows, epochs) for name, rows in inputs.items()}
    with TemporaryDirectory(prefix="ferry-test-", ignore_cleanup_errors=True) as folder:
        return _InOneProcess(pipeline, pieces, dict(args or {}), Path(folder), restarts).run()


test.__test__ = False  # type: ignore[attr-defined]  # pytest would collect it as a test


def _pieces(name: str, rows: Rows | Sequence[Rows], epochs: int) -> list[pa.Table]:
    """The records of a source by epoch. Raises SpecRefused."""
    if epochs < 1:
        raise SpecRefused(f"epochs={epochs}: give at least 1")
    if not isinstance(rows, pa.Table) and rows and not isinstance(rows[0], Mapping):
        schema = next((piece.schema for piece in rows if isinstance(piece, pa.Table)), None)
        return [_table(name, piece, schema) for piece in rows]
    table = _table(name, rows, None)
    bounds = np.linspace(0, table.num_rows, epochs + 1).astype(int)
    return [table.slice(begin, end - begin) for begin, end in pairwise(bounds)]


def _table(name: str, rows: Any, schema: pa.Schema | None) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if not rows and schema is None:
        raise SpecRefused(f"inputs[{name!r}]: its columns are unknown; give a pyarrow.Table")
    return pa.Table.from_pylist(list(rows), schema=schema)


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


class _SentBatches:
    """A task's sender that keeps the batches in place of sending them."""

    helper: str | None = None

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def send(self, batches: list[pa.RecordBatch]) -> None:
        self.batches += [batch for batch in batches if batch.num_rows]


class _InOneProcess:
    """A run of a pipeline in this process."""

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
        self._operators = [operator for operator in self._plan.operators if operator.inputs]
        self._low = dict.fromkeys((operator.descriptor.index for operator in self._operators), WATERMARK_NONE)
        self._clocks: dict[tuple[int, int], dict[str, watermarks.FlowClock]] = {}
        self._states: dict[int, State] = {}
        self._opened = 0
        self._outcome = TestedRows()
        self._named = _named(self._plan.sinks)
        self._written: dict[int, list[pa.Table]] = {id(sink): [] for sink in self._named}
        """By id of a sink: its rows so far."""

    def run(self) -> TestedRows:
        """Run all epochs. The input ends in the last epoch."""
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
            tables = self._written[id(sink)]
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
        for late_output in self._plan.late:
            for source in late_output.inputs:
                descriptor = self._plan.operators[late_output.operator].descriptor
                late_of = late.late_of(descriptor, source, late_output, lows[late_output.operator])
                rows = self._records(source, turn, fired)
                late_rows = pa.Table.from_batches(late_of(rows.to_batches()), schema=rows.schema)
                self._give(late_output.sink, late_rows)
        for index, state in self._states.items():
            state.release(epoch, self._low[index])

    def _read(
        self, epoch: int, operator: Operator, turn: dict[str, list[int]], fired: dict[int, pa.Table]
    ) -> tuple[IngestTask, list[pa.RecordBatch]]:
        """Run the ingest task of an operator for an epoch. Returns the task and the batches that it sends."""
        index = operator.descriptor.index
        work = self._works[index]
        run = IngestRun(Step(epoch, index), 1, 1, (), Right(b""), self._low[index])
        with Connections(None) as connections:
            task = IngestTask(work, run, 1, 0, connections)
            task.sender = sent = _SentBatches()  # type: ignore[assignment]
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
        return task, sent.batches

    def _watermark(self, operator: Operator, task: IngestTask, highs: dict[int, int], now: int) -> int:
        index, inputs = operator.descriptor.index, list[int | None]()
        for number, source in enumerate(operator.inputs):
            if source.initial:
                continue
            if isinstance(source.origin, int):
                inputs.append(max(highs[source.origin] - source.delay_ms, WATERMARK_NONE))
                continue
            before = self._clocks.get((index, number), {})
            maxima = task.maxima.get(number, {})
            listed = None if source.flow is None else dict.fromkeys(maxima, False)
            clocks = watermarks.advanced(before, maxima, listed, source.idle_ms, now)
            self._clocks[index, number] = clocks
            inputs.append(watermarks.input_watermark(clocks, source.delay_ms, source.idle_ms, now))
        return watermarks.operator_watermark(inputs)

    def _records(self, source: Input, turn: dict[str, list[int]], fired: dict[int, pa.Table]) -> pa.Table:
        """The records of an input in an epoch, after its steps."""
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
        if rows.num_rows or not self._written[id(sink)]:
            self._written[id(sink)].append(rows)

    def _hand_over(self) -> None:
        """Copy each state to a new instance, by a snapshot."""
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
    """The index of an input of an operator."""
    return next(number for number, each in enumerate(operator.inputs) if each is source)


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
    """The name of each sink. Raises SpecRefused for two sinks of the same name."""
    names: dict[sinks.Sink, str] = {}
    for sink in declared:
        name = _label(sink)
        if name in names.values():
            raise SpecRefused(
                f"ferry.test: two sinks are named {name!r}; give one of them another folder, topic or function"
            )
        names[sink] = name
    return names
