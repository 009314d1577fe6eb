"""Every value of every Arrow type, at a depth of up to two, through every way that needs no Spark: right, or refused by name.

sources   a Parquet file, or batches as they are
places    key, value of each aggregate function, event time, kept by a join, carried to a sink
ends      fired rows, `read_state`, Parquet files, what a DataFrame is made of
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import ferry
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import SpecRefused
from ferry.kernels.aggregates import FUNCTIONS
from ferry.reading.tables import rows_of, table_of
from ferry.spark import frames, sinks
from ferry.spark.fragment import Fragmenter
from ferry.spark.pipeline import Build, Input
from ferry.spark.records import EVENT_TIME_MAX
from ferry.spark.stream import Stream
from ferry.store.aggregate import AggregateState
from ferry.store.rows import RowState

SECONDS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
YEAR_1, YEAR_10000 = -62_135_596_800, 253_402_300_800
"""Seconds since 1970 of the begin of these years, in UTC."""

LONG = "ü" * 70_000


def whole(bits: int, signed: bool = True) -> list[int]:
    """The least and the greatest integers of so many bits, and some about zero."""
    least, greatest = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return [least, least + 1, greatest - 1, greatest, 0, 1, *([-1] if signed else [])]


def instants(unit: str) -> list[int]:
    """About the ends of the years 1 and 9999, also in zones far in the east and west, about 1970, and the extremes."""
    ends = [(end + 3600 * hours) * SECONDS[unit] for end in (YEAR_1, YEAR_10000) for hours in (-14, 0, 14)]
    of_years = [value + d for value in ends for d in (-1, 0)]
    return [v for v in (*of_years, 0, -1, 999, -999, *whole(64)) if -(2**63) <= v < 2**63 and v != -(2**63)]


FLOATS = [0.0, -0.0, 1.5, math.inf, -math.inf, math.nan]
NUMBERS: dict[pa.DataType, list[Any]] = {
    **{pa.type_for_alias(f"int{n}"): whole(n) for n in (8, 16, 32, 64)},
    **{pa.type_for_alias(f"uint{n}"): whole(n, signed=False) for n in (8, 16, 32, 64)},
    pa.float16(): [*FLOATS, 65504.0, 2.0**-24],
    pa.float32(): [*FLOATS, float(np.finfo("f4").max), 2.0**-149],
    pa.float64(): [*FLOATS, float(np.finfo("f8").max), 5e-324, -1e300],
}
TEXTS = ["", "a", "é\U0001f600", "nul\0", LONG]
BYTES = [b"", b"\0\xff", b"x" * 70_000]
TIMES: dict[pa.DataType, list[int]] = {
    **{pa.timestamp(u, z): instants(u) for u in SECONDS for z in (None, "UTC", "Pacific/Kiritimati", "Etc/GMT+12")},
    **{pa.duration(u): instants(u) for u in SECONDS},
    pa.date32(): [*whole(32), YEAR_1 // 86400, YEAR_10000 // 86400 - 1],
    pa.date64(): [day * 86_400_000 for day in (YEAR_1 // 86400, YEAR_10000 // 86400 - 1, 0, -1)],
    pa.time32("s"): [0, 86_399], pa.time32("ms"): [0, 86_399_999], pa.time64("us"): [0, 86_399_999_999],
    pa.time64("ns"): [0, 1, 999, 86_399_999_999_999],
}  # fmt: skip
DECIMALS: dict[pa.DataType, list[Any]] = {
    kind: [Decimal((0, (9,) * kind.precision, -kind.scale)), Decimal((1, (9,) * kind.precision, -kind.scale)), Decimal(0)]
    for kind in (
        pa.decimal32(9, 2), pa.decimal64(18, 18), pa.decimal128(1, 0), pa.decimal128(38, 0), pa.decimal128(38, 38),
        pa.decimal256(38, 10), pa.decimal256(76, 3),
    )
}  # fmt: skip
OTHERS: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False], pa.null(): [],
    pa.string(): TEXTS, pa.large_string(): TEXTS, pa.string_view(): TEXTS,
    pa.binary(): BYTES, pa.large_binary(): BYTES, pa.binary_view(): BYTES, pa.binary(3): [b"abc", b"\0\0\0"],
    pa.month_day_nano_interval(): [(1, 2, 3), (-1, 0, 2**62)],
}  # fmt: skip
COLUMNS: dict[str, pa.Array] = {}
for kind, some in {**NUMBERS, **OTHERS, **DECIMALS}.items():
    given = [np.float16(v) for v in some] if kind == pa.float16() else some
    COLUMNS[str(kind)] = pa.array([*given, None, *given[:2]], kind)
for kind, some in TIMES.items():
    raw = pa.int32() if kind.bit_width == 32 else pa.int64()
    COLUMNS[str(kind)] = pa.array([*some, None, *some[:2]], raw).view(kind)
for name in ("string", "int64", "timestamp[ms, tz=UTC]"):
    COLUMNS[f"dictionary of {name}"] = COLUMNS[name].dictionary_encode()

ALL = pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)


def nested(column: pa.Array) -> dict[str, pa.Array]:
    """The same values inside of others: null, empty and full ones."""
    n = len(column)
    every, alone = pa.array([0, n, n, n]), pa.array(range(n + 1))
    mask = pa.array([False, False, True])
    texts = pa.array([f"k{i}" for i in range(n)])
    inner = pa.StructArray.from_arrays([column, texts], ["a", "b"])
    lists = pa.ListArray.from_arrays(every.cast(pa.int32()), column, mask=mask)
    return {
        "list": lists,
        "large_list": pa.LargeListArray.from_arrays(every, column, mask=mask),
        "fixed_list": pa.FixedSizeListArray.from_arrays(column, n),
        "struct": inner,
        "map": pa.MapArray.from_arrays(every.cast(pa.int32()), texts, column),
        "list of struct": pa.ListArray.from_arrays(alone.cast(pa.int32()), inner),
        "list of list": pa.ListArray.from_arrays(pa.array([0, 3], pa.int32()), lists),
        "struct of list": pa.StructArray.from_arrays([lists], ["l"]),
        "struct of map": pa.StructArray.from_arrays(
            [pa.MapArray.from_arrays(every.cast(pa.int32()), texts, column)], ["m"]
        ),
    }


def seen(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Values that can be compared, without Python's datetime: times are integers of their unit, NaN is a word."""
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in seen(chunk)]
    kind = column.type
    if pa.types.is_dictionary(kind):
        return seen(column.dictionary_decode())
    if pa.types.is_struct(kind):
        fields = [seen(child) for child in column.flatten()]
        return [
            None if not ok else row
            for ok, row in zip(column.is_valid().to_pylist(), map(list, zip(*fields)), strict=True)
        ]
    if pa.types.is_map(kind) or pa.types.is_nested(kind):
        return [None if one.as_py_is_none else one.rows for one in map(_Listed, column)]
    if pa.types.is_temporal(kind) and kind != pa.month_day_nano_interval():
        return column.view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()
    if pa.types.is_floating(kind):
        return ["nan" if v is not None and math.isnan(v) else v for v in map(_number, column.to_pylist())]
    return column.to_pylist()


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


class _Listed:
    """A list or a map as a list of what is in it."""

    def __init__(self, scalar: pa.Scalar) -> None:
        self.as_py_is_none = not scalar.is_valid
        if scalar.is_valid:
            inside = scalar.values
            self.rows = seen(inside)


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
            frames.require_types(batch.schema, "sink")
        except SpecRefused as refused:
            assert own in (pa.month_day_nano_interval(), pa.decimal256(76, 3)) and "column 'x'" in str(refused), name
            continue
        try:
            made = frames.for_spark(batch).column("x")
        except SpecRefused as beyond:
            assert "column 'x' has a value of" in str(beyond), name
            assert any(not -(2**63) <= micros(own)(v) < 2**63 for v in known), name
            continue
        made.validate(full=True)
        assert pa.schema([("x", made.type)]) == frames.arrow_schema(frames.spark_schema(pa.schema([("x", made.type)])))
        if name == "itself":
            assert seen(made) == [None if v is None else micros(own)(v) for v in seen(column)]
        else:
            inside = frames.for_spark(pa.record_batch({"x": column})).column("x")
            assert seen(made) == seen(nested(inside)[name]), name


@ALL
def test_a_parquet_sink_writes_it_as_it_is(tmp_path: Path, column: pa.Array) -> None:
    """What Parquet itself cannot hold is the file format's to say, and is no half epoch."""
    for number, array in enumerate([column, *nested(column).values()]):
        sink = sinks.parquet("q")
        sinks.place([sink], str(tmp_path))
        sink.open(number - 1)
        rows = pa.table({"x": array})
        try:
            pq.write_table(rows, tmp_path / "alone.parquet")
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as missing:
            with pytest.raises(type(missing)):
                sink.write(number, 1, rows)
            assert not (tmp_path / "q" / f"epoch={number}").exists()
            continue
        sink.write(number, 1, rows)
        found = pq.read_table(tmp_path / "q" / f"epoch={number}" / "part-0.parquet", partitioning=None)
        assert seen(found["x"]) == seen(pq.read_table(tmp_path / "alone.parquet")["x"])


def stream_of(column: pa.Array, **more: pa.Array) -> tuple[Build, Stream, pa.RecordBatch]:
    n = len(column)
    rows = {"k": pa.array([1] * n, pa.int64()), "t": pa.array(range(n), pa.int64()), "x": column, **more}
    batch = pa.record_batch(rows)
    build = Build(lambda function, schema, where: schema)
    return build, Stream(build, Input("in", (), batch.schema, None, 0)), batch


def fired_of(
    build: Build, batch: pa.RecordBatch, key: str, where: Path
) -> tuple[pa.RecordBatch, pa.RecordBatch, int, OperatorDescriptor]:
    """Fired rows, the same state as it is read, and how many records were malformed."""
    descriptor = OperatorDescriptor.from_wire(build.operators[-1].descriptor.to_wire())
    state, parts, malformed = AggregateState(descriptor, 4, where), [], 0
    for half in (batch.slice(0, batch.num_rows // 2), batch.slice(batch.num_rows // 2)):
        fragmenter = Fragmenter(descriptor)
        fragmenter.add(half, [key], "t")
        if (found := fragmenter.malformed()) is not None:
            malformed += found.num_rows
        parts += fragmenter.drain()
    delta = state.delta([state.combine(parts)], EpochTimes(-(2**62), -(2**62)))[0]
    state.apply(delta)
    read = rows_of(descriptor, delta, table_of(descriptor, None), -(2**62))
    fired = [b for b in state.fired(EpochTimes(-1000, 10**8), np.arange(4)) if b.num_rows]
    rows = pa.Table.from_batches(fired).combine_chunks().to_batches()[0]
    return rows, read, malformed, descriptor


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


@ALL
@pytest.mark.parametrize("function", ["count", "min", "max", "first", "last", "arg_max", "approx_count_distinct"])
def test_an_aggregate_takes_every_value(tmp_path: Path, column: pa.Array, function: str) -> None:
    """In the order of the records, whose times differ. Strings and bytes are kept by a process (tests/unit/process)."""
    by = {"by": "t"} if function == "arg_max" else {}
    build, stream, batch = stream_of(column)
    keyed = stream.event_time("t").key_by("k").window(ferry.tumbling("1h"))
    try:
        keyed.aggregate("op", out=getattr(ferry, function)("x", **by))
    except SpecRefused as refused:
        assert "column 'x'" in str(refused)
        return
    if build.operators[-1].descriptor.kind == "process":
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
    malformed = fragmenter.malformed()
    assert malformed is not None and malformed.num_rows >= expected.count(None)


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
