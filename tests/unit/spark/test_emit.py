"""The driver holds few rows at a time, however wide they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.parquet as pq
import pytest

import ferry
from ferry.api.pipeline import Input, MapBatches, Output, Transform
from ferry.connectors.console.sink import console
from ferry.connectors.files.parquet_sink import parquet
from ferry.contract.names import Attempt, CommitId, Step
from ferry.driver.instance_watch import InstanceWatch
from ferry.driver.publisher import Publisher
from ferry.protocol.coordinator import FiredRows
from ferry.spark import emit
from ferry.spark.compile import CompiledPipeline
from ferry.spark.feeds import read_parts
from ferry.spark.shares import Batch
from ferry.spark.tasks import flight

SCHEMA = pa.schema([("text", pa.string())])
BATCH = pa.RecordBatch.from_pydict({"text": ["x" * 10_000] * 10}, schema=SCHEMA)
given: list[int] = []


@pytest.fixture(autouse=True)
def instances(monkeypatch: pytest.MonkeyPatch) -> None:
    given.clear()

    def read_rows(split: dict[str, Any], connections: Any = None) -> Iterator[pa.RecordBatch]:
        for number in range(split["batches"]):
            given.append(number)
            yield BATCH

    monkeypatch.setattr(flight, "read_rows", read_rows)


def fetch(batches: list[int], bytes_max: int, rows_max: int = 1 << 40) -> pa.Table | None:
    with ThreadPoolExecutor(4) as pool:
        return emit.fetch(pool, [{"batches": n} for n in batches], SCHEMA, Event(), rows_max, bytes_max)


def test_rows_that_fit_are_one_table() -> None:
    table = fetch([3, 0, 2], 5 * BATCH.nbytes)
    assert table is not None and table.num_rows == 50


def test_of_more_nothing_is_kept_and_no_more_is_asked_for() -> None:
    assert fetch([3, 0, 3], 5 * BATCH.nbytes) is None
    given.clear()
    assert fetch([1000, 1000], 5 * BATCH.nbytes) is None
    assert len(given) <= 5 + 2 * 2
    assert fetch([3, 3], 1 << 40, rows_max=59) is None, "narrow rows are many"


def test_an_instance_that_is_lost_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Event()

    def read_rows(split: dict[str, Any], connections: Any = None) -> Iterator[pa.RecordBatch]:
        publisher._watch.lost("0.0")
        answers.wait(20)
        yield BATCH

    monkeypatch.setattr(flight, "read_rows", read_rows)
    publisher: Any = object.__new__(Publisher)
    publisher._connections = None
    publisher._local_rows, publisher._local_bytes, publisher._fired_schema = 1000, 1 << 20, lambda rows: SCHEMA
    publisher._watch, publisher.splits = InstanceWatch(lambda: None, lambda instance: True), lambda rows: [{}]
    with ThreadPoolExecutor(1) as publisher._readers:
        try:
            with pytest.raises(fl.FlightUnavailableError):
                publisher._fetch(SimpleNamespace(fired=10, readers=(("0.0", (0,)),)))
        finally:
            answers.set()


def test_an_epoch_like_one_that_was_too_wide_is_read_by_tasks_at_once() -> None:
    publisher: Any = object.__new__(Publisher)
    publisher._connections = None
    publisher._local_rows, publisher._local_bytes, publisher._row_bytes = 1000, 5 * BATCH.nbytes, {}
    publisher.loop, publisher.hook = SimpleNamespace(stages={}), lambda epoch, stage: None
    publisher._reading = publisher._sinking = publisher._tries = SimpleNamespace(succeeded=lambda: None)
    publisher._watch, publisher._readers = InstanceWatch(lambda: None, lambda instance: True), ThreadPoolExecutor(4)
    publisher._fired_schema = lambda rows: SCHEMA
    publisher.splits = lambda rows: [{"batches": rows.fired // 10}]
    written: list[int | None] = []
    publisher._write = lambda rows, table, epoch: written.append(None if table is None else table.num_rows)
    asked = []
    for fired in (200, 200, 30, 200):
        given.clear()
        publisher._publish_rows(FiredRows(CommitId(Step(1, 0), Attempt(1, 1)), 1, 0, 10, (), fired, 0), 1)
        asked.append(bool(given))
    assert written == [None, None, 30, None]
    assert asked == [True, False, True, False]


class Tasks:
    """What a SparkContext does with partitions of one element."""

    def parallelize(self, elements: Any, slices: int) -> Tasks:
        self.partitions = [[one] for one in elements]
        assert slices == len(self.partitions)
        return self

    def mapPartitions(self, task: Any) -> Tasks:
        self.made = [made for partition in self.partitions for made in task(iter(partition))]
        return self

    def collect(self) -> list[Any]:
        return self.made


def test_rows_that_are_too_many_are_written_by_who_reads_them(tmp_path: Path) -> None:
    output: Any = SimpleNamespace(
        sink=parquet(str(tmp_path / "q")), input=SimpleNamespace(steps=(MapBatches(shorter),))
    )
    assert emit.is_parted(output)
    spark: Any = SimpleNamespace(sparkContext=Tasks())
    rows = emit.parts(spark, output, [{"batches": n} for n in (3, 0, 2)])
    output.sink.open(-1)
    output.sink.write(7, 1, rows)
    folder = tmp_path / "q" / "epoch=7"
    assert pq.read_table(folder).column("text").to_pylist() == ["x"] * 50
    assert len([*folder.glob("*.parquet")]) == 2


def shorter(batch: pa.RecordBatch) -> pa.Table:
    """As a user's function may give it back."""
    return pa.table({"text": [text[:1] for text in batch.column(0).to_pylist()]})


def test_where_spark_has_something_to_do_it_gets_a_frame(tmp_path: Path) -> None:
    steps: Any = (Transform(lambda frame: frame, "transform", pa.schema([])),)
    output: Any = SimpleNamespace(sink=parquet(str(tmp_path / "q")), input=SimpleNamespace(steps=steps))
    assert not emit.is_parted(output)
    output = SimpleNamespace(sink=console(), input=SimpleNamespace(steps=()))
    assert not emit.is_parted(output)


def shares(folder: Path, lines: list[str]) -> tuple[Any, Any, Batch]:
    """(source, plan, what an epoch has) of a sink straight behind files of a line each."""
    for i, line in enumerate(lines):
        (folder / f"{i}.json").write_text(f"{line}\n")
    source = ferry.json_files(folder, SCHEMA, finite=True)
    start = source.start()
    splits = source.plan(start, source.latest(start, 100), 2)
    plan = CompiledPipeline({"in": source, "other": source}, (), ())
    spark: Any = SimpleNamespace(sparkContext=Tasks())
    return source, plan, Batch(spark, [[("in", json.dumps(one)), ("", "tick")] for one in splits] + [[("other", "{}")]])


def double(batch: pa.RecordBatch) -> pa.Table:
    return pa.concat_tables([pa.Table.from_batches([batch])] * 2)


def test_records_go_from_a_source_to_a_sink_in_the_tasks_that_read_them(tmp_path: Path) -> None:
    (folder := tmp_path / "in").mkdir()
    _, plan, batch = shares(folder, ['{"text": "a"}', "{oops", '{"text": "b"}'])
    output = Output(Input("in", (MapBatches(double),), SCHEMA, None, 0), parquet(tmp_path / "out"))
    parts = read_parts(batch._spark, batch, plan, output)
    assert parts is not None and len(parts.shares) == 2, "of no other source, and no tick"
    table = parts.table(1 << 20)
    assert table is not None and table["text"].to_pylist() == ["a", "a", "b", "b"] and table.schema == SCHEMA
    assert parts.table(1) is None, "more than the driver holds"
    output.sink.place(None)
    output.sink.open(-1)
    output.sink.write(3, 1, parts)
    assert sorted(pq.read_table(tmp_path / "out" / "epoch=3")["text"].to_pylist()) == ["a", "a", "b", "b"]
    publisher: Any = SimpleNamespace(spark=batch._spark, plan=plan)
    assert isinstance(Publisher._records(publisher, batch, output), emit.ReadParts)
    printed = Output(output.input, console())
    assert isinstance(made := Publisher._records(publisher, batch, printed), pa.Table) and made.num_rows == 4
    assert Publisher._records(publisher, Batch(batch._spark, [[("", "tick")]]), printed) is None
    assert Publisher._records(publisher, Batch(batch._spark, [[("", "tick")]]), output) is None
