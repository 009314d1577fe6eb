"""Which records of a task are late, and where they are told to go."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import ferry
from ferry.api.joins import bounds_of
from ferry.api.pipeline import Build, Input
from ferry.api.stream import Stream
from ferry.contract.descriptors import Window
from ferry.contract.errors import SpecRefused
from ferry.kernels.schemas import fired_schema
from ferry.process.aggregator import Functions
from ferry.process.harness import ProcessHarness
from ferry.process.interval import IntervalJoin
from ferry.spark.late import late_of
from tests.unit.streams import RunningCount

TIMED = pa.schema([("k", pa.string()), ("ts", pa.int64())])
ROWS = pa.schema([("k", pa.string()), ("ts", pa.int64()), ("more", pa.list_(pa.int64()))])
SINK, OTHER = ferry.parquet("late"), ferry.parquet("other")


@pytest.fixture
def rows() -> Stream:
    build = Build(lambda function, schema, where: schema)
    return Stream(build, Input("rows", (), ROWS, None, 0)).event_time("ts", delay="2s")


def late(stream: Stream, low: int, *records: dict[str, Any], number: int = 0) -> list[dict[str, Any]]:
    """The late ones of these records of an input; `low` is the watermark before the epoch."""
    output = stream.build.late[number]
    (source,) = output.inputs
    schema = ROWS if isinstance(source.origin, str) else fired_schema(stream.build.operators[source.origin].descriptor)
    descriptor = stream.build.operators[output.operator].descriptor
    found = late_of(descriptor, source, output, low)([pa.RecordBatch.from_pylist([*records], schema=schema)])
    return [row for batch in found for row in batch.to_pylist()]


def at(*times: int | None, k: str | None = "a") -> list[dict[str, Any]]:
    return [{"k": k, "ts": ts, "more": [1]} for ts in times]


def test_a_record_is_late_when_its_last_window_has_ended_and_comes_with_all_columns(rows: Stream) -> None:
    sliding = rows.key_by("k").window(ferry.sliding("30s", "10s")).aggregate("n", n=ferry.count(), late=SINK)
    assert [(one.operator, one.window, one.sink) for one in sliding.build.late] == [(0, Window(30_000, 10_000), SINK)]
    assert late(sliding, 40_000, *at(9_999, 10_000, 19_999, 20_000, -1)) == at(9_999, 10_000, 19_999, -1)
    assert late(sliding, 39_999, *at(10_000)) == []


def test_sessions_are_final_a_gap_after_their_record(rows: Stream) -> None:
    visits = rows.key_by("k").window(ferry.session("5s")).aggregate("visits", n=ferry.count(), late=SINK)
    assert late(visits, 10_000, *at(5_000, 5_001)) == at(5_000)


def test_malformed_records_are_not_late_as_well(rows: Stream) -> None:
    counts = rows.key_by("k").window(ferry.tumbling("1s")).aggregate("n", n=ferry.count(), late=SINK)
    assert late(counts, 5_000, *at(None, 0, -(2**63) + 1, 2**63 - 1)) == at(0)
    assert late(counts, 5_000, *at(None)) == []
    assert late(counts, 5_000, *at(0, k=None)) == at(0, k=None), "a null is a key of its own"


def test_each_side_of_a_join_has_a_sink_of_its_own_or_none(rows: Stream) -> None:
    key = rows.key_by("k")
    join = key.window(ferry.tumbling("1s")).join("both", key, ["k"], {"theirs": "ts"}, late=(None, SINK))
    key.window(ferry.tumbling("1s")).join("outer", key, ["k"], {"theirs": "ts"}, how="left", late=(SINK, OTHER))
    key.window(ferry.session("1s")).join("near", key, ["k"], {"theirs": "ts"}, late=[SINK, None])  # type: ignore[arg-type]
    found = [(one.operator, one.inputs[0].side, one.sink) for one in join.build.late]
    assert found == [(0, 1, SINK), (1, 0, SINK), (1, 1, OTHER), (2, 0, SINK)]
    nobody = at(0, k=None)
    assert late(join, 5_000, *at(0), *nobody) == at(0), "they have no partner at any time, and are not counted"
    assert late(join, 5_000, *at(0), *nobody, number=1) == [*at(0), *nobody], "an outer join would have kept them"


@pytest.mark.parametrize(("within", "first"), [("5s", 95_000), (("-3s", "4s"), 93_000)])
def test_a_record_of_an_interval_join_is_late_when_its_last_partner_is_not_kept(
    rows: Stream, within: Any, first: int
) -> None:
    key = rows.key_by("k")
    key.join("near", key, {"mine": "ts"}, {"theirs": "ts"}, within=within, late=(SINK, OTHER))
    assert [(one.inputs[0].side, one.sink) for one in rows.build.late] == [(0, SINK), (1, OTHER)]
    for number in (0, 1):
        assert late(rows, 100_000, *at(first - 1, first, first + 1, 100_000), number=number) == at(first - 1, first)
    columns = {"mine": "ts"}, {"theirs": "ts"}
    lower, upper = bounds_of(within)
    for side in (0, 1):
        harness = ProcessHarness(IntervalJoin(*columns, lower, upper), TIMED, "k", TIMED)
        harness.epoch(watermark=100_000)
        given: list[Any] = [None, None]
        given[side] = [{"k": "a", "ts": ts} for ts in (first - 1, first, first + 1)]
        harness.epoch(*given)
        assert harness.late == 2, "as many as it counts"


def test_what_is_behind_the_watermark_is_late_for_a_processor_of_spark(rows: Stream) -> None:
    key, output = rows.key_by("k"), "auction STRING, n LONG"
    found = key.transform_with_state("n", RunningCount(), output, late=SINK)
    assert late(found, 5_000, *at(4_999, 5_000), *at(0, k=None)) == [*at(4_999), *at(0, k=None)]
    old = Stream(rows.build, Input("old", (), ROWS, None, 0)).key_by("k")
    key.transform_with_state("m", RunningCount(), output, late=OTHER, initial_state=old)
    assert [(one.operator, len(one.inputs), one.sink) for one in rows.build.late] == [(0, 1, SINK), (1, 1, OTHER)]
    assert rows.build.late[1].inputs[0].origin == "rows", "an initial state is never late"


def test_where_nothing_is_late_a_sink_for_it_is_refused(rows: Stream) -> None:
    key = rows.key_by("k")
    with pytest.raises(SpecRefused, match="join 'j': without within= nothing is late"):
        key.join("j", key, {"mine": "ts"}, {"theirs": "ts"}, late=(SINK, None))
    untimed = Stream(rows.build, Input("rows", (), ROWS, None, 0)).key_by("k")
    with pytest.raises(SpecRefused, match="no event time; call"):
        untimed.transform_with_state("t", RunningCount(), "n LONG", "None", late=SINK)


def test_united_inputs_go_to_one_sink(rows: Stream) -> None:
    both = rows.union(rows).event_time("ts")
    both.key_by("k").window(ferry.tumbling("1s")).aggregate("n", n=ferry.count(), late=SINK)
    (one,) = rows.build.late
    assert len(one.inputs) == 2 and one.inputs == rows.build.operators[0].inputs


def test_an_aggregator_of_ones_own_has_the_same(rows: Stream) -> None:
    functions = Functions({"n": ferry.count()})
    rows.key_by("k").window(ferry.sliding("4s", "2s")).aggregate("n", functions, late=SINK)
    assert late(rows, 6_000, *at(3_999, 4_000)) == at(3_999)


def test_rows_that_an_operator_fired_have_the_time_of_their_window(rows: Stream) -> None:
    first = rows.key_by("k").window(ferry.tumbling("1s")).aggregate("first", n=ferry.count())
    second = first.key_by("k").window(ferry.tumbling("10s")).aggregate("second", m=ferry.count(), late=SINK)
    fired = [{"k": "a", "window_start": end - 1_000, "window_end": end, "n": 1} for end in (10_000, 11_000)]
    assert late(second, 10_000, *fired) == fired[:1]


def test_what_is_no_sink_is_refused_and_one_sink_is_not_enough_for_a_join(rows: Stream) -> None:
    key: Any = rows.key_by("k")
    minutes = key.window(ferry.tumbling("1m"))
    with pytest.raises(SpecRefused, match=r"operator 'n': late=.*an output column needs another name"):
        minutes.aggregate("n", m=ferry.count(), late=ferry.count())
    with pytest.raises(SpecRefused, match="late= of a join is a pair of sinks"):
        minutes.join("j", key, ["k"], {"theirs": "k"}, late=SINK)
    with pytest.raises(SpecRefused, match="late='late' is not a sink"):
        minutes.join("j2", key, ["k"], {"theirs": "k"}, late=("late", None))


def test_a_large_batch_is_judged_whole(rows: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferry.spark.tasks.ingest.PIECE_BYTES", 64)
    counts = rows.key_by("k").window(ferry.tumbling("1s")).aggregate("n", n=ferry.count(), late=SINK)
    records = at(*range(0, 10_000, 100))
    assert late(counts, 5_000, *records) == records[:50]
