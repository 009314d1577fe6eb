"""What a task is told of an input: which clock its event times follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

import ferry
from ferry.api.graph import offsets_only
from ferry.api.pipeline import Build, Input
from ferry.api.stream import Stream
from ferry.connectors.splits import Splits, sets_aside
from ferry.contract.errors import SpecRefused
from ferry.spark import feeds
from ferry.spark.compile import CompiledPipeline, _refuse_uncreated
from ferry.spark.feeds import feeds_of
from ferry.spark.tasks.ingest import timed
from ferry_workloads.nexmark import NexmarkGenerator, NexmarkSplits
from tests.unit.streams import RunningCount

DAY = 86_400_000
BID = pa.schema([("ts", pa.int64()), ("auction", pa.int64())])


def feed_of(source: Splits, operator: int, ahead: str | None = "1d") -> int | None:
    build = Build(lambda function, schema, where: schema)
    stream = Stream(build, Input("bid", (), BID, None, 0)).event_time("ts", ahead=ahead)
    counts = stream.key_by("auction").window(ferry.tumbling("1s")).aggregate("a", n=ferry.count())
    counts.event_time("window_end").key_by("n").window(ferry.tumbling("1s")).aggregate("b", m=ferry.count())
    plan = CompiledPipeline({"bid": source}, tuple(build.operators), ())
    ((feed,),) = feeds_of(build.operators[operator], plan).values()
    return feed.ahead_ms


def test_event_times_of_records_may_be_a_day_ahead_of_the_clock(tmp_path: Path) -> None:
    files = ferry.parquet_files(tmp_path, schema=BID)
    assert feed_of(files, 0) == DAY
    assert feed_of(files, 0, "1h") == 3_600_000
    assert feed_of(files, 0, None) is None
    stream = Stream(Build(lambda function, schema, where: schema), Input("bid", (), BID, None, 0))
    assert stream.event_time("ts").input.ahead_ms == DAY, "when nothing is said"


@pytest.mark.parametrize("ttl", [None, "1h"])
def test_who_forgets_keys_takes_the_end_of_a_window_for_the_time_of_its_row(tmp_path: Path, ttl: str | None) -> None:
    build = Build(lambda function, schema, where: schema)
    stream = Stream(build, Input("bid", (), BID, None, 0)).event_time("ts").key_by("auction")
    counts = stream.window(ferry.tumbling("1s")).aggregate("a", n=ferry.count())
    counts.key_by("n").aggregate("b", emit=ferry.changes(), ttl=ttl, m=ferry.count())
    plan = CompiledPipeline({"bid": ferry.parquet_files(tmp_path, schema=BID)}, tuple(build.operators), ())
    ((feed,),) = feeds_of(build.operators[1], plan).values()
    assert feed.columns == (("n",) if ttl is None else ("n", "window_end"))
    rows, time = timed(pa.record_batch({"n": [1], "window_end": [2_000]}), feed.time, build.operators[1].descriptor)
    assert time is None if ttl is None else rows.column(time).to_pylist() == [1_999]


def test_generators_and_fired_rows_do_not_follow_the_clock(tmp_path: Path) -> None:
    assert feed_of(NexmarkSplits(NexmarkGenerator(), "bid"), 0) is None
    assert feed_of(ferry.parquet_files(tmp_path, schema=BID), 1) is None


def without_times(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.drop_columns(["ts"])


def test_a_task_reads_the_column_of_the_flow_and_no_time_of_an_initial_state(tmp_path: Path) -> None:
    build = Build(lambda function, schema, where: schema)
    schema = pa.schema([*BID, ("partition", pa.int32()), ("more", pa.string())])
    bids, old = (Stream(build, Input(name, (), schema, None, 0)) for name in ("bids", "old"))
    keyed = bids.event_time("ts", flow="partition").key_by("auction")
    keyed.window(ferry.tumbling("1s")).aggregate("a", n=ferry.count())
    keyed.transform_with_state("b", RunningCount(), "n LONG", initial_state=old.event_time("ts").key_by("auction"))
    plan = CompiledPipeline(
        {n: ferry.parquet_files(tmp_path, schema, finite=True) for n in ("bids", "old")}, tuple(build.operators), ()
    )
    ordered = bids.event_time("ts").key_by("auction")
    ordered.transform_with_state(
        "c", RunningCount(), "n LONG", initial_state=old.map_batches(without_times).key_by("auction"), order="ts"
    )
    assert ["ts" in columns for columns in build.operators[2].descriptor.shape.columns] == [True, False]
    (first,) = feeds_of(build.operators[0], plan)["bids"]
    assert (first.columns, first.flow) == (("auction", "ts", "partition"), "partition")
    feeds = feeds_of(build.operators[1], plan)
    assert feeds["bids"][0].flow == "partition" and not feeds["bids"][0].initial
    assert (feeds["old"][0].initial, feeds["old"][0].time, feeds["old"][0].flow) == (True, None, None)
    assert set(feeds["old"][0].columns or ()) == {*schema.names}, "not a column window_end"


def test_when_records_were_created_is_read_where_they_are_counted(tmp_path: Path) -> None:
    build = Build(lambda function, schema, where: schema)
    stream = Stream(build, Input("bid", (), BID, None, 0))
    stream.event_time("ts").key_by("auction").window(ferry.tumbling("1s")).aggregate("a", n=ferry.count())
    mapped = stream.created_at("ts").map_batches(without_times)
    mapped.key_by("auction").aggregate("b", emit=ferry.changes(), n=ferry.count())
    plan = CompiledPipeline(
        {"bid": ferry.parquet_files(tmp_path, schema=BID)}, tuple(build.operators), (), (), build.created
    )
    ((first,),) = feeds_of(build.operators[0], plan).values()
    ((second,),) = feeds_of(build.operators[1], plan).values()
    assert (first.created, first.counted, second.created, second.counted) == ("ts", True, None, False)
    alone = CompiledPipeline(plan.sources, (offsets_only(),), (), (), {"bid": "auction"})
    ((counts,),) = feeds_of(offsets_only(), alone).values()
    assert (counts.created, counts.columns, counts.counted) == ("auction", ("auction",), True)
    unknown = CompiledPipeline(plan.sources, tuple(build.operators), ())
    ((feed,),) = feeds_of(build.operators[0], unknown).values()
    assert feed.created is None
    paced = NexmarkSplits(NexmarkGenerator(), "bid")
    ((feed,),) = feeds_of(
        build.operators[0], CompiledPipeline({"bid": paced}, tuple(build.operators), (), (), {"bid": "x"})
    ).values()
    assert feed.columns is not None and set(feed.columns) == {"ts", "auction", "x"}, "also where nothing else needs it"


def test_what_leaves_out_when_records_were_created_is_refused() -> None:
    build = Build(lambda function, schema, where: schema)
    stream = Stream(build, Input("bid", (), BID, None, 0)).created_at("ts")
    kept = stream.transform(lambda frame: frame)
    lost = replace(kept, input=replace(kept.input, schema=BID.remove(0)))
    for one in (stream.map_batches(without_times), kept, lost):
        one.key_by("auction").aggregate(f"n{len(build.operators)}", emit=ferry.changes(), n=ferry.count())
    _refuse_uncreated(build.created, build.operators[:2])
    with pytest.raises(SpecRefused, match="transform on source 'bid' drops 'ts'"):
        _refuse_uncreated(build.created, build.operators)


def test_records_that_may_be_malformed_are_judged_apart_from_those_that_go_through_sql(tmp_path: Path) -> None:
    build = Build(lambda function, schema, where: schema)
    stream = Stream(build, Input("bid", (), BID, None, 0))
    through = stream.transform(lambda frame: frame).event_time("ts")
    through.key_by("auction").window(ferry.tumbling("1s")).aggregate("a", n=ferry.count())
    counted = {}
    for source in (ferry.json_files(tmp_path, BID), ferry.parquet_files(tmp_path, schema=BID)):
        made = feeds_of(build.operators[0], CompiledPipeline({"bid": source}, tuple(build.operators), ()))
        counted[source] = {name: [(feed.counted, feed.splits) for feed in some] for name, some in made.items()}
    json, parquet = counted
    assert counted[json] == {"bid#0": [(False, None)], "bid": [(True, json)]}
    assert counted[parquet] == {"bid#0": [(True, None)]}


class Own:
    """A source of a user's with a record that is none."""

    def schema(self) -> pa.Schema:
        return BID

    def read(self, split: Any, columns: Any) -> Iterator[Any]:
        yield ferry.Malformed(1, ["x"], "no number")
        yield pa.RecordBatch.from_pydict({"ts": [1], "auction": [2]}, schema=BID)

    start = latest = ended = plan = schema


class Saying(Own):
    """One that says so."""

    sets_aside = True


def rows_for_sql(source: Any) -> list[Any]:
    """What a task gives Spark of a split."""
    operator, (given,) = SimpleNamespace(inputs=()), [Input("own", (), BID, None, 0)]
    plan: Any = CompiledPipeline({"own": source}, (cast(Any, operator),), ())
    raw: Any = SimpleNamespace(mapInArrow=lambda task, schema: task)
    task: Any = feeds._records(cast(Any, None), raw, "own", plan, given, sets_aside(source))
    return [row for batch in task([pa.RecordBatch.from_pydict({"split": ["{}"]})]) for row in batch.to_pylist()]


def test_malformed_records_before_sql_are_passed_over_only_where_they_are_set_aside() -> None:
    assert rows_for_sql(Saying()) == [{"ts": 1, "auction": 2}]
    with pytest.raises(
        SpecRefused,
        match="source 'own' before Spark's steps: 1 malformed: no number; a source with malformed records needs",
    ):
        rows_for_sql(Own())
