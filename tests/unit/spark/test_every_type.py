"""Every value of every Arrow type, at a depth of up to two, through every way that needs no Spark: right, or refused by name.

sources   a Parquet file, or batches as they are
places    key, value of each aggregate function, event time, kept by a join, carried to a sink
ends      fired rows, `read_state`, Parquet files, what a DataFrame is made of
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import ferry
from ferry.api.pipeline import Build
from ferry.connectors import sink as sinks
from ferry.connectors.files.parquet_sink import parquet
from ferry.connectors.formats.parquet_encodings import for_readers
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import SpecRefused
from ferry.kernels.aggregates import FUNCTIONS
from ferry.kernels.frame_types import for_frame, frame_schema, require_types
from ferry.process.shapes import process_of
from ferry.reading.tables import rows_of, table_of
from ferry.spark.frames import arrow_schema, spark_schema
from ferry.spark.tasks.fragment import Fragmenter
from ferry.spark.tasks.records import EVENT_TIME_MAX
from ferry.store.process import ProcessState
from ferry.store.rows import RowState
from tests.unit.every_type import COLUMNS, SECONDS, TIMES, fired_of, nested, seen, stream_of

ALL = pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)


def micros(kind: pa.DataType) -> Callable[[Any], Any]:
    """What Spark has of a value of this type."""
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return lambda v: v * 10**6 // SECONDS[kind.unit]
    if pa.types.is_time(kind):
        return lambda v: v * 10**9 // SECONDS[kind.unit] // 1000 * 1000
    if kind == pa.date64():
        return lambda v: v // 86_400_000
    return lambda v: v


@ALL
def test_a_dataframe_is_made_of_it_or_it_is_refused(column: pa.Array) -> None:
    """Also from within: what is inside becomes what it would be outside, and a value beyond Spark's type names its column."""
    own = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    known = [v for v in seen(column) if v is not None]
    for name, array in {"itself": column, **nested(column)}.items():
        batch = pa.record_batch({"n": pa.nulls(len(array), pa.int8()), "x": array})
        try:
            require_types(batch.schema, "sink")
        except SpecRefused as refused:
            assert own in (pa.month_day_nano_interval(), pa.decimal256(76, 3)) and "column 'x'" in str(refused), name
            continue
        try:
            made = for_frame(batch).column("x")
        except SpecRefused as beyond:
            assert "column 'x' has a value of" in str(beyond), name
            assert any(not -(2**63) <= micros(own)(v) < 2**63 for v in known), name
            continue
        made.validate(full=True)
        assert pa.schema([("x", made.type)]) == frame_schema(pa.schema([("x", made.type)]))
        columns = pa.schema([("x", column.type if name == "itself" else array.type)])
        assert frame_schema(columns) == arrow_schema(spark_schema(columns))
        if name == "itself":
            assert seen(made) == [None if v is None else micros(own)(v) for v in seen(column)]
        else:
            inside = for_frame(pa.record_batch({"x": column})).column("x")
            assert seen(made) == seen(nested(inside)[name]), name


@ALL
def test_a_parquet_sink_writes_it_as_it_is(tmp_path: Path, column: pa.Array) -> None:
    """But what Spark cannot read: coarse times are microseconds, and half floats are floats. What Parquet itself cannot
    hold is the file format's to say, and is no half epoch."""
    known = {pa.float16(): pa.float32(), pa.time32("s"): pa.time64("us"), pa.time32("ms"): pa.time64("us")}
    readable = column.cast(known[column.type]) if column.type in known else column
    arrays = zip((column, *nested(column).values()), (readable, *nested(readable).values()), strict=True)
    for number, (array, right) in enumerate(arrays):
        sink = parquet("q")
        sinks.place([sink], str(tmp_path))
        sink.open(number - 1)
        rows = pa.table({"x": array})
        try:
            pq.write_table(pa.table({"x": right}), tmp_path / "alone.parquet")
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as missing:
            with pytest.raises(type(missing)):
                sink.write(number, 1, rows)
            assert not (tmp_path / "q" / f"epoch={number}").exists()
            continue
        sink.write(number, 1, rows)
        found = pq.read_table(tmp_path / "q" / f"epoch={number}" / "part-0.parquet", partitioning=None)["x"]
        alone = pq.read_table(tmp_path / "alone.parquet")["x"]
        assert found.type == alone.type and seen(found) == seen(alone)


@pytest.mark.parametrize("inside", [False, True])
def test_times_of_spark_are_written_as_microseconds(inside: bool) -> None:
    """PySpark gives them out as nanoseconds, which older readers do not know."""
    times = pa.array([0, None, 86_399_999_999_000], pa.time64("ns"))
    column = nested(times)["struct of map"] if inside else times
    made = for_readers(pa.record_batch({"x": column}), of_spark=True).column("x")
    fine = times.cast(pa.time64("us"))
    assert made.type == (nested(fine)["struct of map"] if inside else fine).type
    assert seen(made) == seen(nested(fine)["struct of map"] if inside else fine)
    assert for_readers(pa.record_batch({"x": column})).column("x").type == column.type


@ALL
def test_files_are_read_as_they_were_written(tmp_path: Path, column: pa.Array) -> None:
    """By parquet_files, whose batches are what all other ways begin with."""
    for number, array in enumerate([column, *nested(column).values()]):
        (folder := tmp_path / str(number)).mkdir()
        try:
            pq.write_table(pa.table({"n": pa.nulls(len(array), pa.int8()), "x": array}), folder / "0.parquet")
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            continue
        source = ferry.parquet_files(folder, finite=True)
        shares = source.plan(source.start(), source.latest(source.start(), 10**6), 1)
        read = [one for share in shares for one in source.read(share, None) if isinstance(one, pa.RecordBatch)]
        assert [v for batch in read for v in seen(batch.column("x"))] == seen(pq.read_table(folder / "0.parquet")["x"])
        assert all(batch.schema.equals(source.schema()) for batch in read)


@ALL
def test_a_key_comes_out_as_it_went_in(tmp_path: Path, column: pa.Array) -> None:
    build, stream, batch = stream_of(column)
    try:
        keyed = stream.event_time("t").key_by("x")
    except SpecRefused as refused:
        assert "key_by: key column 'x' is" in str(refused)
        return
    keyed.window(ferry.tumbling("1h")).aggregate("op", n=ferry.count())
    rows, read, malformed, _ = fired_of(build, batch, "x", tmp_path)
    expected: dict[Any, int] = {}
    for value in seen(column):
        expected[value] = expected.get(value, 0) + 1  # -0.0 is 0.0
    beyond = [v for v in expected if isinstance(v, int) and v > 2**63 - 1 and column.type == pa.uint64()]
    assert malformed == sum(expected.pop(v) for v in beyond)
    for found in (rows, read):
        keys = seen(found.column("x"))
        assert dict(zip(keys, found.column("n").to_pylist(), strict=True)) == expected
        assert not any(isinstance(v, float) and math.copysign(1, v) < 0 == v for v in keys)


def oracle(function: str, values: list[Any], kind: pa.DataType) -> Any:
    """By hand; NaN is greater than every number."""
    order = (lambda v: (v == "nan", 0 if v == "nan" else v)) if pa.types.is_floating(kind) else (lambda v: v)
    match function:
        case "count":
            return len(values)
        case "min":
            return min(values, key=order, default=None)
        case "max":
            return max(values, key=order, default=None)
        case "first":
            return values[0] if values else None
        case "last" | "arg_max":
            return values[-1] if values else None
        case "approx_count_distinct":
            return len(set(values))
    raise AssertionError(function)


def windows_of_a_process(build: Build, batch: pa.RecordBatch, where: Path) -> list[Any]:
    """What it fires when the watermark has passed its windows; texts as bytes."""
    descriptor = OperatorDescriptor.from_wire(build.operators[-1].descriptor.to_wire())
    state, fired = ProcessState(descriptor, lambda: process_of(descriptor), 4, where), []
    for epoch, times in enumerate((EpochTimes(-1000, -1000), EpochTimes(-1000, 10**8))):
        fragmenter, parts = Fragmenter(descriptor), []
        if not epoch:
            fragmenter.add(batch, ["k"], "t")
            parts = fragmenter.drain()
        state.apply(state.delta([state.combine(parts)], times)[0], epoch, "x")
        fired += [b.column("out").cast(pa.binary()) for b in state.fired(times, np.arange(4)) if b.num_rows]
    return [value for column in fired for value in seen(column)]


@ALL
@pytest.mark.parametrize("function", ["count", "min", "max", "first", "last", "arg_max", "approx_count_distinct"])
def test_an_aggregate_takes_every_value(tmp_path: Path, column: pa.Array, function: str) -> None:
    """In the order of the records, whose times differ. Strings and bytes are kept by a process."""
    by = {"by": "t"} if function == "arg_max" else {}
    build, stream, batch = stream_of(column)
    keyed = stream.event_time("t").key_by("k").window(ferry.tumbling("1h"))
    try:
        keyed.aggregate("op", out=getattr(ferry, function)("x", **by))
    except SpecRefused as refused:
        assert "column 'x'" in str(refused)
        return
    if build.operators[-1].descriptor.kind == "process":
        (found,) = windows_of_a_process(build, batch, tmp_path)
        expected = oracle(function, [v for v in seen(column) if v is not None], column.type)
        assert found == (expected.encode() if isinstance(expected, str) else expected)
        return
    kept = column.type == pa.uint64() and function not in ("count", "approx_count_distinct")
    beyond = [v for v in seen(column) if kept and v is not None and v >= 2**63]  # are set aside, as of keys
    values = [v for v in seen(column) if v is not None and v not in beyond]
    expected = oracle(function, values, column.type)
    rows, read, malformed, _ = fired_of(build, batch, "k", tmp_path)
    assert malformed == len(beyond) and rows.num_rows == read.num_rows == 1
    assert seen(rows.column("out")) == seen(read.column("out"))
    if function == "approx_count_distinct":
        assert abs(rows.column("out")[0].as_py() - expected) <= 1
    else:
        assert seen(rows.column("out")) == [expected]


@ALL
@pytest.mark.parametrize("function", ["sum", "mean", "variance", "stddev"])
def test_what_is_computed_of_every_value_is_right_or_says_why_not(
    tmp_path: Path, column: pa.Array, function: str
) -> None:
    """One value at a time, and its null: then nothing may be too great but a sum's own type."""
    for number, value in enumerate(seen(column)):
        if value is None or (column.type == pa.uint64() and value >= 2**63):
            continue
        build, stream, batch = stream_of(column.slice(number, 1))
        keyed = stream.event_time("t").key_by("k").window(ferry.tumbling("1h"))
        try:
            keyed.aggregate("op", out=getattr(ferry, function)("x"))
        except SpecRefused as refused:
            assert "column 'x' is" in str(refused) and function in FUNCTIONS
            return
        try:
            (found,) = seen(fired_of(build, batch, "k", tmp_path / str(number))[0].column("out"))
        except SpecRefused as refused:
            text = str(refused)
            assert "operator op, out=" in text and "key 1" in text and pa.types.is_decimal(column.type)
            continue
        if function in ("variance", "stddev"):
            assert found is None
        elif function == "mean" and not pa.types.is_decimal(column.type):
            assert found == (value if value == "nan" else float(value))
        else:
            assert found == value


@pytest.mark.parametrize("kind", [kind for kind in TIMES if pa.types.is_timestamp(kind)], ids=str)
def test_an_event_time_is_rounded_down_to_its_millisecond(kind: pa.DataType) -> None:
    """What is beyond the times that Ferry has is malformed, and nothing else."""
    column = COLUMNS[str(kind)]
    build, stream, batch = stream_of(column)
    stream.event_time("x", ahead=None).key_by("k").window(ferry.tumbling("1h")).aggregate("op", n=ferry.count())
    fragmenter = Fragmenter(build.operators[-1].descriptor)
    records = fragmenter.read(batch, ["k"], "x")
    assert records is not None
    expected = [None if v is None else v * 1000 // SECONDS[kind.unit] for v in seen(column)]
    inside = [v for v in expected if v is not None and abs(v) <= EVENT_TIME_MAX]
    assert [v for v in records.times.to_pylist() if abs(v) < EVENT_TIME_MAX] == [
        v for v in inside if abs(v) < EVENT_TIME_MAX
    ]
    assert sum(refused.num_rows for refused, _ in fragmenter.malformed()) >= expected.count(None)


@ALL
def test_a_join_keeps_it_as_it_is_or_refuses_it(tmp_path: Path, column: pa.Array) -> None:
    build, stream, batch = stream_of(column)
    keyed = stream.event_time("t").key_by("k")
    try:
        keyed.window(ferry.tumbling("1h")).join("j", keyed, {"x": "x"}, {"n": "t"})
    except SpecRefused as refused:
        assert "column 'x' is" in str(refused) and "which a join cannot keep" in str(refused)
        return
    descriptor = OperatorDescriptor.from_wire(build.operators[-1].descriptor.to_wire())
    state, parts = RowState(descriptor, 4, tmp_path), []
    for side, rows in ((0, batch), (1, batch.slice(0, 1))):
        fragmenter = Fragmenter(descriptor, side)
        fragmenter.add(rows, ["k"], "t")
        parts += fragmenter.drain()
    delta = state.delta([state.combine(parts)], EpochTimes(-(2**62), -(2**62)))[0]
    state.apply(delta, 0, 0)
    fired = [b for b in state.fired(EpochTimes(-1000, 10**8), np.arange(4)) if b.num_rows]
    assert sorted(repr(v) for b in fired for v in seen(b.column("x"))) == sorted(map(repr, seen(column)))
    read = rows_of(descriptor, delta, table_of(descriptor, None), -(2**62))
    left = read.filter(pc.equal(read.column("side"), "left"))
    kept = next(name for name in left.schema.names if name.endswith("x"))
    assert sorted(map(repr, seen(left.column(kept)))) == sorted(map(repr, seen(column)))


@ALL
def test_a_process_keeps_it_as_it_is_or_refuses_it(tmp_path: Path, column: pa.Array) -> None:
    """A join by time: records of one epoch wait in the state for their partner in the next one."""
    build, stream, batch = stream_of(column)
    keyed = stream.event_time("t").key_by("k")
    try:
        keyed.join("j", keyed, {"x": "x"}, {"n": "t"}, within=("-1h", "1h"))
    except SpecRefused as refused:
        assert "column 'x'" in str(refused), str(refused)
        return
    descriptor = OperatorDescriptor.from_wire(build.operators[-1].descriptor.to_wire())
    state, times = ProcessState(descriptor, lambda: process_of(descriptor), 4, tmp_path), EpochTimes(-1000, -1000)
    for epoch, rows in enumerate((batch, batch.slice(0, 1))):
        fragmenter = Fragmenter(descriptor, epoch)
        fragmenter.add(rows, ["k"], "t")
        delta = state.delta([state.combine(fragmenter.drain())], times)[0]
        state.apply(delta, epoch, "x")
    fired = [b for b in state.fired(times, np.arange(4)) if b.num_rows]
    assert sorted(repr(v) for b in fired for v in seen(b.column("x"))) == sorted(map(repr, seen(column)))
