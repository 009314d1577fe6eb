"""A StatefulProcessor of Spark with other variables: `upgrade` derives their rows, which are read as if they had been written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from ferry.contract.descriptors import OperatorDescriptor, Window
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import UserCodeFailed
from ferry.process.shapes import process_of, shape_of
from ferry.process.stateful_processor import hosted
from ferry.spark.tasks.fragment import Fragmenter
from ferry.store.process import ProcessState
from ferry.store.upgrading import Upgrade

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


class First(StatefulProcessor):
    """The last value, and how often each value came."""

    def init(self, handle: Any) -> None:
        self.last = handle.getValueState("lastValue", "n LONG")
        self.counts = handle.getMapState("counts", "v LONG", "n INT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.last.update((row.v,))
            (n,) = self.counts.getValue((row.v,)) or (0,)
            self.counts.updateValue((row.v,), (n + 1,))
        values = dict(self.counts.iterator())
        yield Row(what=repr((self.last.get(), sorted((tuple(k), tuple(v)) for k, v in values.items()))))

    def close(self) -> None:
        pass


class Second(First):
    """Both with other columns."""

    def init(self, handle: Any) -> None:
        self.last = handle.getValueState("lastValue", "n DOUBLE, old BOOLEAN")
        self.counts = handle.getMapState("counts", "v LONG", "n LONG")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        [*rows]
        yield Row(what=repr((self.last.get(), sorted((tuple(k), tuple(v)) for k, v in self.counts.iterator()))))

    def upgrade(self, table: str, rows: pa.RecordBatch) -> Any:
        if table == "last_value":
            return {table: {"n": rows["n"], "old": pa.array([True] * rows.num_rows)}}
        return {table: rows}


class Third(Second):
    """A map keeps its keys."""

    def upgrade(self, table: str, rows: pa.RecordBatch) -> Any:
        if table == "last_value":
            return super().upgrade(table, rows)
        return {"counts": {"key_v": pa.array([0] * rows.num_rows), "value_n": rows["value_n"]}}


class Fourth(Second):
    def upgrade(self, table: str, rows: pa.RecordBatch) -> Any:
        return {table: {"n": rows["m"], "old": rows["n"]}}


def descriptor_of(processor: Any) -> OperatorDescriptor:
    process = hosted("it", processor, "what STRING", "EventTime", False)
    shape = shape_of("it", process, pa.schema([("k", pa.int64())]), [SCHEMA], None)
    return OperatorDescriptor("it", 0, "process", (("k", "int"),), Window(1, 1), process=shape)


def epoch(state: ProcessState, number: int, *values: int) -> tuple[pa.RecordBatch, list[str]]:
    fragmenter = Fragmenter(state.descriptor)
    fragmenter.add(pa.record_batch({"k": [7] * len(values), "v": [*values], "ts": [5] * len(values)}), ["k"], "ts")
    delta, _ = state.delta([state.combine(fragmenter.drain())], EpochTimes(0, 0, number))
    state.apply(delta, number, "x")
    fired = [row["what"] for rows in state.fired(EpochTimes(0, 0, number), [0]) for row in rows.to_pylist()]  # type: ignore[arg-type]
    return delta, fired


def opened(descriptor: OperatorDescriptor, folder: Path) -> ProcessState:
    return ProcessState(descriptor, lambda: process_of(descriptor), 1, folder)


def test_variables_are_read_as_if_they_had_been_written(tmp_path: Path) -> None:
    before, after = descriptor_of(First()), descriptor_of(Second())
    assert after.shape.upgrades and not before.shape.upgrades
    delta, fired = epoch(opened(before, tmp_path / "0"), 1, 3, 3, 5)
    assert fired == ["((5,), [((3,), (2,)), ((5,), (1,))])"]
    state = opened(after, tmp_path / "1")
    state.apply(Upgrade(before, after)(delta), 1, "x")
    assert epoch(state, 2, 9)[1] == ["((5.0, True), [((3,), (2,)), ((5,), (1,))])"]
    with pytest.raises(UserCodeFailed, match="'key_v' of 'counts' differs: a map keeps its keys"):
        Upgrade(before, descriptor_of(Third()))(delta)
    with pytest.raises(UserCodeFailed, match=r"KeyError.*test_upgrade.py.*upgrade\(\) of Fourth, operator 'it'"):
        Upgrade(before, descriptor_of(Fourth()))(delta)
