"""Every method that users write is called so that whatever it raises is told in one line: a table of all of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import ferry
from ferry.api.pipeline import Transform
from ferry.api.user_batches import UserBatches
from ferry.connectors import sink as sinks
from ferry.connectors.splits import FlowSplits, LagSplits, Splits
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import SpecRefused, UserCodeFailed
from ferry.driver import patience
from ferry.process.running import RunningAggregate
from ferry.process.stateful_processor import hosted
from ferry.spark import transforms
from ferry.spark.compile import build
from ferry.spark.feeds import schema_of
from ferry.spark.split_reader import SplitsReader
from ferry.spark.tasks import reading
from ferry.store.upgrading import Upgrade
from tests.unit.driver.test_publisher import publisher
from tests.unit.driver.test_sink_startup import Driver
from tests.unit.spark.test_user_functions import frame_of
from tests.unit.store.test_process import descriptor_of, fragments, opened, table_of

SCHEMA = pa.schema([("n", pa.int64()), ("ts", pa.int64())])

broken = {"now": ""}
"""What raises."""


def tried(name: str) -> None:
    if broken["now"] == name:
        raise LookupError(name)


class Source:
    has_flows = True

    def schema(self) -> pa.Schema:
        tried("schema")
        return SCHEMA

    def start(self) -> int:
        tried("start")
        return 0

    def latest(self, start: int, max_rows: int) -> int:
        tried("latest")
        return 7

    def ended(self, position: int) -> bool:
        tried("ended")
        return False

    def plan(self, start: int, stop: int, tasks: int) -> list[dict[str, int]]:
        tried("plan")
        return [{"stop": stop}]

    def read(self, split: Any, columns: Any) -> Iterator[pa.RecordBatch]:
        tried("read")
        yield pa.record_batch({"n": [1], "ts": [1]})

    def flows(self, position: int) -> dict[str, bool]:
        tried("flows")
        return {"a": True}

    def lag(self, position: int) -> int:
        tried("lag")
        return 7

    def __getstate__(self) -> Any:
        tried("__getstate__")
        return {}

    def __setstate__(self, state: Any) -> None:
        tried("__setstate__")


class Rows(ferry.Sink):
    def __repr__(self) -> str:
        tried("__repr__")
        return "rows"

    def expect(self, schema: pa.Schema) -> None:
        tried("expect")

    def place(self, base: str | None) -> Path | None:
        tried("place")
        return None

    def identify(self, job: str, run: str = "", before: str | None = None) -> str | None:
        tried("identify")
        return None

    def open(self, committed: int) -> None:
        tried("open")

    def write(self, epoch: int, generation: int, rows: Any) -> None:
        tried("write")

    def truncate_after(self, epoch: int) -> None:
        tried("truncate_after")

    def keep_after(self, epoch: int) -> None:
        tried("keep_after")


@dataclass
class Sums(ferry.Aggregator):
    state = output = pa.schema([("sum", pa.int64())])

    def open(self, rows: pa.Schema) -> None:
        tried("open")

    def update(self, rows: pa.RecordBatch, begins: Any) -> Any:
        tried("update")
        return {"sum": np.add.reduceat(rows.column("n").to_numpy(), begins)}

    def merge(self, states: pa.RecordBatch, begins: Any) -> Any:
        tried("merge")
        return {"sum": np.add.reduceat(states.column("sum").to_numpy(), begins)}

    def running(self, states: pa.RecordBatch, begins: Any) -> Any:
        tried("running")
        return super().running(states, begins)

    def result(self, states: pa.RecordBatch) -> Any:
        tried("result")
        return states


@dataclass
class Kept(ferry.Process):
    tables = {"count": ferry.StateTable(pa.schema([("n", pa.int64())]))}
    output = pa.schema([("n", pa.int64())])

    def open(self, key: pa.Schema, inputs: Any) -> None:
        tried("open")

    def process(self, work: ferry.Work) -> None:
        tried("process")

    def upgrade(self, table: str, rows: pa.RecordBatch) -> Any:
        tried("upgrade")
        return {}


class Processor(StatefulProcessor):
    def init(self, handle: Any) -> None:
        tried("init")
        self.handle = handle

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        tried("handleInitialState")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        tried("handleInputRows")
        self.handle.registerTimer(0)
        yield Row(n=1)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        tried("handleExpiredTimer")
        return iter(())

    def close(self) -> None:
        tried("close")


def mapped(batch: pa.RecordBatch) -> pa.RecordBatch:
    tried("map_batches")
    return batch


def transformed(frame: Any) -> Any:
    tried("transform")
    return frame


def written(epoch: int, generation: int, rows: Any) -> None:
    tried("foreach_epoch")


def cut(epoch: int) -> None:
    tried("truncate")


def sources(spark: Any, args: Any) -> Any:
    tried("sources")
    return {"s": Source()}


def pipeline(streams: Any, args: Any) -> Any:
    tried("pipeline")
    stream = streams["s"].event_time("ts").map_batches(mapped)
    return stream.key_by("n").aggregate("sums", num=ferry.count(), emit=ferry.changes()).sink(Rows())


def in_driver(folder: Path) -> None:
    reader = SplitsReader({"s": Source()}, 90, 2, folder, False)
    begin = reader.initial_offset()
    end = reader.latest_offset(begin)
    reader.ended("s", end["positions"])
    reader.shares(begin, end)
    reader.lags(end)


def in_task(folder: Path) -> None:
    assert list(reading.read("s", Source(), {}, None)) and schema_of("s", Source())


def in_program(folder: Path) -> None:
    made = ModuleType("made")
    made.sources, made.pipeline = sources, pipeline  # type: ignore[attr-defined]
    plan = build(None, made, {})  # type: ignore[arg-type]
    sinks.identify(plan.sinks, "job")


def in_sink(folder: Path, sink: ferry.Sink | None = None) -> None:
    sink = Rows() if sink is None else sink
    for keep in (False, True):
        driver = Driver(folder, sink, keep=keep)
        assert driver.rewind() and driver.open()
    publisher(folder, None)[0]._give(sink, 3, 1, pa.table({}))


def in_instance(process: Any, inputs: int = 1) -> Callable[[Path], None]:
    """What `process` does there; it is found there by its class, as instances have it."""

    def run(folder: Path) -> None:
        now, broken["now"] = broken["now"], ""
        descriptor = descriptor_of(process=process, inputs=inputs)
        broken["now"] = now
        state = opened(descriptor, folder)
        for epoch in range(2):
            rows = [table_of([(1, 1, 0, "a"), (1, 2, 0, "b"), (2, 2, 0, "b")])]
            parts = [state.combine([f for side in range(inputs) for f in fragments(descriptor, rows[0], side)])]
            delta, _ = state.delta(parts, EpochTimes(epoch, 10 + epoch, epoch, 10))
            state.apply(delta, epoch, "x")

    return run


def in_upgrade(folder: Path) -> None:
    now, broken["now"] = broken["now"], ""
    upgrade = Upgrade(descriptor_of(), descriptor_of(process=Kept()))
    broken["now"] = now
    upgrade.check()


def in_functions(folder: Path) -> None:
    UserBatches(mapped, "map_batches on source 's'", SCHEMA, SCHEMA)(pa.RecordBatch.from_pylist([], SCHEMA))
    transforms.transformed(Transform(transformed, "transform on source 's'", SCHEMA), frame_of(SCHEMA))
    in_sink(folder, ferry.foreach_epoch(written, cut))


HOSTED = in_instance(hosted("p", Processor(), pa.schema([("n", pa.int64())]), "ProcessingTime", False), 2)
AGGREGATED = in_instance(RunningAggregate(Sums(), {"n": "n"}))

CALLS: dict[Any, dict[str, tuple[Callable[[Path], None], ...]]] = {
    Splits: {
        "schema": (in_task, in_program), "start": (in_driver,), "latest": (in_driver,), "ended": (in_driver,),
        "plan": (in_driver,), "read": (in_task,),
    },
    FlowSplits: {"flows": (in_driver,)},
    LagSplits: {"lag": (in_driver,)},
    Source: {"__getstate__": (in_program,), "__setstate__": (in_program,)},
    ferry.Sink: {
        "expect": (in_program,), "place": (in_program,), "identify": (in_program,), "open": (in_sink,), "write": (in_sink,),
        "truncate_after": (in_sink,), "keep_after": (in_sink,),
    },
    ferry.Aggregator: dict.fromkeys(("open", "update", "merge", "running", "result"), (AGGREGATED,)),
    ferry.Process: {"open": (in_instance(Kept()), in_upgrade), "process": (in_instance(Kept()),), "upgrade": (in_upgrade,)},
    StatefulProcessor: dict.fromkeys(("init", "handleInitialState", "handleInputRows", "handleExpiredTimer", "close"), (HOSTED,)),
    "functions": {
        "sources": (in_program,), "pipeline": (in_program,), "map_batches": (in_functions, in_program),
        "transform": (in_functions,), "foreach_epoch": (in_functions,), "truncate": (in_functions,),
    },
}  # fmt: skip
"""By class and method: from where it is called."""


def methods(kind: type) -> set[str]:
    """What a class of the user's may have of its own."""
    own = {name: value for name, value in vars(kind).items() if inspect.isfunction(value)}
    return {name for name in own if not name.startswith("_")} - {"has_flows"}


@pytest.mark.parametrize("kind", [kind for kind in CALLS if isinstance(kind, type) and kind is not Source])
def test_the_table_has_every_method(kind: type) -> None:
    assert methods(kind) == CALLS[kind].keys()


@pytest.mark.parametrize(
    ("name", "call"),
    [
        pytest.param(name, call, id=f"{getattr(kind, '__name__', kind)}.{name}-{i}")
        for kind, calls in CALLS.items()
        for name, many in calls.items()
        for i, call in enumerate(many)
    ],
)
def test_what_it_raises_is_told(
    name: str, call: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "sleep", lambda loop, seconds: None)
    monkeypatch.setitem(broken, "now", "")
    (tmp_path / "well").mkdir()
    call(tmp_path / "well")
    broken["now"] = name
    with pytest.raises((UserCodeFailed, SpecRefused)) as failed:
        call(tmp_path)
    text = str(failed.value)
    assert "KeyError" not in text and f"LookupError: {name} (test_users_methods.py:" in text, text
    assert isinstance(failed.value, SpecRefused) is (call is in_program), "a refusal while the program is built"


def test_a_sink_that_cannot_be_shown_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(broken, "now", "__repr__")
    in_sink(tmp_path)
    in_program(tmp_path)
