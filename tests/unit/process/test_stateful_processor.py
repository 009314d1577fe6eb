"""StatefulProcessors of PySpark in a process: against PySpark's own tester, and what Spark's documentation says."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester
from pyspark.sql.types import LongType, StringType, StructField, StructType

from ferry.contract.errors import SpecRefused, UserCodeFailed
from ferry.contract.limits import WATERMARK_NONE
from ferry.process.ddl import schema_of
from ferry.process.harness import ProcessHarness
from ferry.process.shapes import shape_of
from ferry.process.stateful_processor import _python_rows, hosted
from tests.unit.process import spark_processors as sp

SCHEMA = pa.schema([("k", pa.int64()), ("op", pa.string()), ("v", pa.int64()), ("ts", pa.int64())])
KEY = pa.schema([("k", pa.int64())])
STATE = ["update", "clear", "append", "extend", "put", "set", "ask", "unset"]
TIMERS = ["register", "delete"]


def rig(processor: Any, time_mode: str = "EventTime", pandas: bool = False, **options: Any) -> ProcessHarness:
    """It, as an instance would have it: made anew from what travels."""
    process = hosted("it", processor, sp.OUTPUT, time_mode, pandas)
    shape_of("it", process, KEY, [SCHEMA], None)
    return ProcessHarness(process, SCHEMA, "k", **options)


def steps(ops: list[str]) -> Any:
    return st.lists(st.tuples(st.integers(1, 3), st.sampled_from(ops), st.integers(0, 9)), max_size=8)


BEFORE = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("t", pa.string())])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), max_size=6), max_size=3), steps(STATE))
def test_initial_state_is_as_in_the_tester_of_pyspark(initial: Any, last: Any) -> None:
    process = hosted("it", sp.Begun(), sp.OUTPUT, "None", False)
    shape_of("it", process, KEY, [SCHEMA, BEFORE], None)
    mine = ProcessHarness(process, SCHEMA, "k", BEFORE, "k", time=None)
    before = [[{"k": k, "n": n, "t": f"t{n}"} for k, n in epoch] for epoch in initial]
    for epoch in before[:-1]:
        assert mine.epoch(other=epoch).num_rows == 0
    found = mine.epoch(rows(*((k, op, v, 0) for k, op, v in last)), before[-1] if before else None)
    known = [row for epoch in before for row in epoch]
    other = TwsTester(sp.Begun(), [(row["k"], Row(**row)) for row in known], timeMode="None")
    for key in {k for k, _, _ in last}:
        want = other.test(key, [Row(op=op, v=v) for k, op, v in last if k == key])
        expected = [(r.what, int(r.b not in ("[]", None)) if r.what in ("list", "map") else r.a, r.b) for r in want]
        assert told(found, key) == expected
    kept = {key for (key,), _ in mine.rows("list_state")} - {k for k, _, _ in last}
    assert kept == {row["k"] for row in known} - {k for k, _, _ in last}, "also of keys that have nothing else"


def test_initial_state_by_frames_of_pandas_with_timers() -> None:
    process = hosted("it", sp.Frames(2), sp.OUTPUT, "EventTime", True)
    mine = ProcessHarness(process, SCHEMA, "k", BEFORE, "k", time=None)
    before = [{"k": 1, "n": 5, "t": "x"}, {"k": 2, "n": 7, "t": "x"}, {"k": 1, "n": 6, "t": "x"}]
    found = mine.epoch(rows((1, "", 1, 5)), before)
    assert told(found) == [("sum", 11 + 2, None)], "it is there before the first row"
    assert {key for (key, _) in mine.timers()} == {(1,), (2,)}
    fired = [("timer", 15, "none"), ("timer", 1_000, "none"), ("timer", 1_000, "none")]
    assert sorted(told(mine.epoch(watermark=1_001))) == fired


def rows(*given_: tuple[int, str, int, int]) -> list[dict[str, Any]]:
    return [dict(zip(SCHEMA.names, one, strict=True)) for one in given_]


def told(found: pa.Table, key: int | None = None) -> list[tuple[Any, ...]]:
    """Rows without their key, of one key."""
    return [tuple(row.values())[1:] for row in found.to_pylist() if key in (None, row["k"])]


@settings(max_examples=60, deadline=None)
@given(st.lists(steps(STATE), max_size=5))
def test_state_is_as_in_the_tester_of_pyspark(epochs: Any) -> None:
    mine, other = rig(sp.Plain(), "None", order="ts"), TwsTester(sp.Plain(), timeMode="None")
    for epoch in epochs:
        found = mine.epoch(rows(*((k, op, v, i) for i, (k, op, v) in enumerate(epoch))))
        assert "spark_timers" not in mine._process.tables
        for key in {k for k, _, _ in epoch}:
            want = other.test(key, [Row(op=op, v=v) for k, op, v in epoch if k == key])
            # The tester takes state that was emptied bit by bit for state that exists; RocksDB has no such thing.
            expected = [(r.what, int(r.b not in ("[]", None)) if r.what in ("list", "map") else r.a, r.b) for r in want]
            assert told(found, key) == expected


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(steps(TIMERS + ["append"]), st.integers(0, 12)), max_size=6))
def test_timers_are_as_in_the_tester_of_pyspark(epochs: Any) -> None:
    mine = rig(sp.Everything())
    other = TwsTester(sp.Everything(), timeMode="EventTime", eventTimeExtractor=lambda row: 10**6)
    watermark = 490
    mine.epoch(watermark=watermark)
    other.setWatermark(watermark)
    for epoch, ahead in epochs:
        watermark += ahead
        # In Spark a timer is due when time has passed it; in the tester, when it has come.
        given_ = rows(*((k, op, v + watermark - 490, 10**6 + i) for i, (k, op, v) in enumerate(epoch)))
        want = Counter[Any]()
        for key in {row["k"] for row in given_}:
            want.update(other.test(key, [Row(op=row["op"], v=row["v"] + 1) for row in given_ if row["k"] == key]))
        want.update(Row(**row) for row in _fired(other, watermark - 1, watermark))
        shifted = [row | {"v": row["v"] + 1} for row in given_]
        found = mine.epoch(shifted, watermark=watermark)
        assert Counter(Row(**row) for row in found.to_pylist()) == want
        assert {time for _, time in mine.timers()} <= {
            t + 1 for k in (1, 2, 3) for t in other.handle._timers.listTimers(k)
        }


def _fired(tester: Any, until: int, watermark: int) -> list[dict[str, Any]]:
    """Timers up to a time; it is registered against the watermark."""
    tester._currentWatermarkMs = until
    found = tester._handleExpiredTimers()
    tester.handle.setWatermark(until)
    return [row.asDict() for row in found]


def test_time_to_live() -> None:
    mine = rig(sp.Lasting(10_000), "ProcessingTime")
    mine.epoch(rows((1, "update", 5, 0), (2, "update", 6, 0)), now=1_000)
    assert told(mine.epoch(rows((1, "look", 0, 0)), now=10_999)) == [("now", 10_999, "[(5,), [(5,)], [(5,)], True]")]
    mine.epoch(rows((1, "update", 7, 0)), now=10_999)
    assert told(mine.epoch(rows((1, "look", 0, 0)), now=11_000)) == [("now", 11_000, "[(7,), [(7,)], [(7,)], True]")]
    assert {key for key, _ in mine.rows("list")} == {(1,), (2,)}, "of key 1 the first element is gone"
    assert [entry for (key, entry) in mine.rows("list") if key == (1,)] == [1]
    assert told(mine.epoch(now=12_500)) == [] and {key for key, _ in mine.rows("map")} == {(1,)}, (
        "nothing touched key 2"
    )
    assert told(mine.epoch(rows((1, "look", 0, 0)), now=20_999)) == [("now", 20_999, "[None, [], [], False]")]
    assert not mine.rows("value") and not mine.rows("list") and not mine.rows("map")
    mine.epoch(now=10**6)
    assert not mine.processing_timers()


def test_timers_of_processing_time_beside_a_time_to_live() -> None:
    mine = rig(sp.Lasting(8_000), "ProcessingTime")
    mine.epoch(rows((1, "update", 5, 0), (1, "register", 8_998, 1), (1, "register", 8_999, 2)), now=0)
    assert {time for _, time in mine.processing_timers()} == {8_999, 9_000}, "the second is that of cleaning up, too"
    mine.epoch(rows((1, "delete", 8_999, 0)), now=1)
    assert told(mine.epoch(now=8_998)) == [], "time has not passed it"
    assert told(mine.epoch(now=8_999)) == [("timer", 8_998, None)]
    mine = rig(sp.Lasting(8_000), "ProcessingTime")
    mine.epoch(rows((1, "update", 5, 0), (1, "register", 8_999, 1)), now=0)
    mine.epoch(rows((1, "delete", 8_999, 0)), now=1)
    assert told(mine.epoch(now=9_000)) == [], "it is deleted"
    assert not mine.rows("value") and not mine.rows("spark_timers"), "and still cleaned up"


@pytest.mark.parametrize(("mode", "watermarks"), [("EventTime", (90, 101)), ("ProcessingTime", (-1, -1))])
def test_times_that_are_told(mode: str, watermarks: tuple[int, int]) -> None:
    mine = rig(sp.Clock(), mode)
    mine.epoch(watermark=90)
    found = mine.epoch(rows((1, "x", 1, 90), (1, "x", 2, 89), (1, "x", 3, 110)), now=7)
    assert told(found) == [("rows", 7, repr((watermarks[0], [(90, 1), (110, 3)])))] and mine.late == 1
    assert told(mine.epoch(watermark=100, now=100)) == [], "time has not passed 100"
    assert told(mine.epoch(watermark=101, now=101)) == [("timer", 101, repr(watermarks[1]))]


def test_the_watermark_at_the_end_is_one_that_can_be_computed_with() -> None:
    mine = rig(sp.Clock())
    assert told(mine.epoch(rows((1, "x", 1, 5)), watermark=WATERMARK_NONE)) == [("rows", 0, "(0, [(5, 1)])")]
    assert told(mine.end()) == [("timer", 0, "101")]


def test_frames_of_pandas() -> None:
    mine = rig(sp.Frames(2, 100), pandas=True)
    assert told(mine.epoch(rows((1, "", 1, 5), (2, "", 7, 6), (1, "", 3, 9)))) == [
        ("sum", 108, None), ("sum", 114, None),
    ]  # fmt: skip
    assert sorted(told(mine.epoch(rows((1, "", 1, 10)), watermark=21))) == [
        ("sum", 110, None), ("timer", 16, "none"), ("timer", 19, "none"), ("timer", 20, "none"),
    ]  # fmt: skip


def test_a_column_may_be_called_like_a_method() -> None:
    process = hosted("it", sp.Odd(), "columns LONG, asDict LONG", "None", False)
    found = ProcessHarness(process, SCHEMA, "k").epoch(rows((1, "", 7, 0)))
    assert found.to_pylist() == [{"columns": 7, "asDict": 7}]


def test_every_type_is_kept() -> None:
    at = datetime(2024, 5, 1, 12, 30, 1, 250)
    kept = (True, -3, 1 << 30, 0.1, 0.1, Decimal("1.5"), date(2024, 2, 29), at, at, b"\x00")
    want = (True, -3, 1 << 30, float(np.float32(0.1)), 0.1, Decimal("1.50"), date(2024, 2, 29), at, at, b"\x00")
    given_ = [
        kept,
        (np.bool_(True), np.int8(-3), np.int64(1 << 30), np.float32(0.1), np.float64(0.1), Decimal("1.5"),
         date(2024, 2, 29), pd.Timestamp(at), at.astimezone(UTC), b"\x00"),
        (None,) * len(kept),
    ]  # fmt: skip
    for values in given_:
        sp.VALUES = values
        mine = rig(sp.Types(), "None")
        shown = repr(want if values[0] is not None else values)
        assert told(mine.epoch(rows((1, "update", 0, 0)))) == [("update", 1, shown)]
        assert told(mine.epoch(rows((1, "look", 0, 0)))) == [("look", 1, shown)], "it is the same in a later epoch"


def test_schemas() -> None:
    given_ = StructType([StructField("a b", LongType()), StructField("c", StringType())])
    want = pa.schema([("a b", pa.int64()), ("c", pa.string())])
    assert schema_of(given_, "") == schema_of("`a b` bigint, c: STRING NOT NULL COMMENT 'x, y'", "") == want
    assert schema_of("d decimal(12, 3), v varchar(3)", "") == pa.schema(
        [("d", pa.decimal128(12, 3)), ("v", pa.string())]
    )
    for bad in ("a", "a array<int>", "a LONG b LONG", "a money", 3, "a LONG,", StructType([StructField("s", given_)])):
        with pytest.raises(SpecRefused, match="what: "):
            schema_of(bad, "what")


REFUSED = [
    (sp.Named([["Value", "v", "n LONG", 10]]), "EventTime", "a time to live"),
    (sp.Named([["Value", "v", "n LONG", 0]]), "ProcessingTime", "a time to live"),
    (sp.Named([["Value", "aB", "n LONG"], ["List", "a_b", "n LONG"]]), "None", "too much alike; rename one"),
    (sp.Named([["Value", "sparkTimers", "n LONG"]]), "EventTime", "too much alike; rename one"),
    (sp.Named([["Map", "m", "k array<int>", "n LONG"]]), "None", "state 'm'.*is no column"),
    (sp.Named([["Value", "1", "n LONG"]]), "None", "starting with a letter"),
    (sp.Named([], delete=b"x"), "None", "transform_with_state 'it': .* JSON"),  # type: ignore[arg-type]
    (sp.Secret("abc"), "None", "the value of 'words' is unknown"),
    (sp.Wrong("reads in init"), "None", "there is no key in init"),
    (sp.Everything, "None", "no instance of a subclass of PySpark's StatefulProcessor"),
    (sp.Plain(), "Event", "use 'EventTime', 'ProcessingTime' or 'None'"),
]  # fmt: skip


@pytest.mark.parametrize(("processor", "mode", "why"), REFUSED, ids=[why for _, _, why in REFUSED])
def test_what_cannot_be_is_refused_where_the_pipeline_is_built(processor: Any, mode: str, why: str) -> None:
    with pytest.raises(SpecRefused, match=why):
        rig(processor, mode)


def test_what_is_set_later_is_refused() -> None:
    processor = sp.Plain()
    processor.threshold = 3  # type: ignore[attr-defined]
    with pytest.raises(SpecRefused, match="has another threshold"):
        rig(processor)

    class Local(sp.Plain):
        """Of a function."""

    with pytest.raises(SpecRefused, match="at the top level"):
        rig(Local())


WRONG = {
    "declares late": "declared and deleted in init",
    "keeps two": "not a tuple of 1: n",
    "keeps a text": "state 'value': 'n' cannot be int64",
    "sets a timer": "timers need time_mode",
    "gives a tuple": "neither a Row nor a DataFrame",
    "gives a text": "a Row has the fields k; they have to be k, what, a, b",
}


@pytest.mark.parametrize(("what", "why"), WRONG.items(), ids=[*WRONG])
def test_what_a_processor_may_not(what: str, why: str) -> None:
    mine = rig(sp.Wrong(what), "None")
    with pytest.raises(UserCodeFailed, match=why):
        mine.epoch(rows((1, "", 0, 0)))


def test_a_deleted_variable_is_none() -> None:
    mine = rig(sp.Named([["Value", "old", "n LONG"], ["Value", "new", "n LONG"]], delete="old"), "None")
    assert set(mine._process.tables) == {"new"}


@pytest.mark.parametrize(("kind", "value"), [(pa.timestamp("us", "UTC"), 2**62), (pa.date32(), 2**31 - 1)], ids=str)
def test_a_time_that_python_has_not_names_its_column(kind: pa.DataType, value: int) -> None:
    schema = SCHEMA.append(pa.field("at", kind))
    process = hosted("it", sp.Plain(), sp.OUTPUT, "None", False)
    shape_of("it", process, KEY, [schema], None)
    mine = ProcessHarness(process, schema, "k")
    with pytest.raises(UserCodeFailed, match=r"column 'at' is .*, with a value that Python's datetime has not"):
        mine.epoch([{"k": 1, "op": "ask", "v": 1, "ts": 1, "at": value}])


def test_rows_have_times_of_microseconds_as_in_pyspark() -> None:
    late = {"": -1, "UTC": 1_000_001}
    columns = [pa.array([late[zone], None], pa.timestamp("ns", zone or None)) for zone in late]
    columns += [pa.array([-1, None], pa.duration("ns")), pa.array([1_999, None], pa.time64("ns"))]
    columns += [pa.array([[{"at": -1}], None], pa.list_(pa.struct([("at", pa.timestamp("ns"))])))]
    columns += [pa.array([[("k", -1)], None], pa.map_(pa.string(), pa.duration("ns")))]
    columns += [pa.array([-1, None], pa.timestamp("ns")).dictionary_encode(), pa.array([5, None], pa.time32("s"))]
    rows = _python_rows(pa.RecordBatch.from_arrays(columns, [str(i) for i in range(len(columns))]))
    micro, before = timedelta(microseconds=1), datetime(1969, 12, 31, 23, 59, 59, 999_999)
    utc = datetime(1970, 1, 1, 0, 0, 0, 1_000, UTC)
    first = (before, utc, -micro, time(0, 0, 0, 1), [{"at": before}], [("k", -micro)], before, time(0, 0, 5))
    assert rows == [first, (None,) * len(columns)]
    assert not any(hasattr(value, "nanosecond") for value in rows[0])
