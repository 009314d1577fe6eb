"""Columns of Parquet as a schema declares them: exact, or refused by name."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ferry.connectors.files.parquet_files import parquet_files
from ferry.connectors.formats.parquet_types import misfit
from ferry.contract.errors import DOES_NOT_FIT, SpecRefused
from ferry.driver.publisher import refuse_final

US, MS, NS = pa.timestamp("us"), pa.timestamp("ms"), pa.timestamp("ns")
UTC, NEW_YORK = pa.timestamp("us", "UTC"), pa.timestamp("us", "America/New_York")
DAY = dt.date(2024, 3, 10)


def column(folder: Path, values: pa.Array | None, declared: pa.DataType | None, **how: Any) -> pa.Array:
    """What a file of one column `a` gives, declared so."""
    if values is not None:
        pq.write_table(pa.table({"a": values}), folder / "f.parquet", **how)
    source = parquet_files(folder, None if declared is None else pa.schema([("a", declared)]), finite=True)
    start = source.start()
    (split,) = source.plan(start, source.latest(start, 10**6), 1)
    (batch,) = source.read(split)
    assert isinstance(batch, pa.RecordBatch) and batch.schema.equals(source.schema())
    return batch.column(0)


EXACT = [
    (pa.array([2**31 - 1, -(2**31), None], pa.int32()), pa.int64(), [2**31 - 1, -(2**31), None]),
    (pa.array([7], pa.int64()), pa.int8(), [7]),
    (pa.array([2**63 - 1], pa.uint64()), pa.int64(), [2**63 - 1]),
    (pa.array([2**53], pa.int64()), pa.float64(), [2.0**53]),
    (pa.array([-(2**63)], pa.int64()), pa.decimal128(21, 2), [Decimal(-(2**63))]),
    (pa.array([12345], pa.int64()), pa.decimal128(5, 0), [Decimal(12345)]),
    (pa.array([2.0, -3.0]), pa.int32(), [2, -3]),
    (pa.array([1.5, None, np.inf], pa.float32()), pa.float64(), [1.5, None, np.inf]),
    (pa.array([1.5, -0.0, np.inf, None]), pa.float32(), [1.5, -0.0, np.inf, None]),
    (pa.array([Decimal("1.20")]), pa.decimal128(5, 1), [Decimal("1.2")]),
    (pa.array([Decimal("3.00")]), pa.int64(), [3]),
    (pa.array(["é", None]), pa.large_string(), ["é", None]),
    (pa.array(["a"]).dictionary_encode(), pa.string(), ["a"]),
    (pa.array([b"a"]), pa.string(), ["a"]),
    (pa.array(["a"]), pa.binary(), [b"a"]),
    (pa.array([b"ab"], pa.binary(2)), pa.binary(), [b"ab"]),
    (pa.array([b"0123456789abcdef"], pa.uuid()), pa.binary(16), [b"0123456789abcdef"]),
    (pa.array([253402300799999], MS), US, [dt.datetime(9999, 12, 31, 23, 59, 59, 999000)]),
    (pa.array([1_000_000], NS), MS, [dt.datetime(1970, 1, 1, 0, 0, 0, 1000)]),
    (pa.array([0], UTC), NEW_YORK, [dt.datetime(1970, 1, 1, tzinfo=dt.UTC)]),
    (pa.array([DAY]), US, [dt.datetime(2024, 3, 10)]),
    (pa.array([5], pa.time64("us")), pa.time64("ns"), None),
    (pa.nulls(2), pa.int64(), [None, None]),
    (pa.array([[1, None], None], pa.list_(pa.int32())), pa.list_(pa.int64()), [[1, None], None]),
    (pa.array([{"b": 1, "c": 1.5}, None]), pa.struct([("c", pa.float32()), ("b", pa.int64())]), None),
    (pa.array([{"b": 1}]), pa.struct([("b", pa.int64()), ("z", pa.string())]), [{"b": 1, "z": None}]),
    (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())), pa.map_(pa.string(), pa.int64()), [[("k", 1)]]),
]


@pytest.mark.parametrize(("values", "declared", "right"), EXACT)
def test_values_that_the_declared_type_holds_are_taken(
    tmp_path: Path, values: pa.Array, declared: pa.DataType, right: list[Any] | None
) -> None:
    found = column(tmp_path, values, declared)
    assert found.type == declared and (right is None or found.to_pylist() == right)


NEVER = [
    (pa.array([dt.datetime(2024, 3, 10)], US), pa.int64()),
    (pa.array([1710000000000]), MS),
    (pa.array([19000], pa.int32()), pa.date32()),
    (pa.array([5], pa.duration("us")), pa.int64()),
    (pa.array([dt.datetime(2024, 3, 10)], US), NEW_YORK),
    (pa.array([dt.datetime(2024, 3, 10)], UTC), US),
    (pa.array([dt.datetime(2024, 3, 10)], US), pa.date32()),
    (pa.array([DAY]), UTC),
    (pa.array([2]), pa.bool_()),
    (pa.array([True]), pa.int64()),
    (pa.array(["1"]), pa.int64()),
    (pa.array([1]), pa.string()),
    (pa.array([1.5]), pa.string()),
    (pa.array([1.5]), pa.decimal128(5, 2)),
    (pa.array([Decimal("1.25")]), pa.float64()),
    (pa.array(["2024-03-10"]), pa.date32()),
    (pa.array([[1]]), pa.int64()),
    (pa.array([[True]]), pa.list_(pa.int64())),
    (pa.array([{"b": 1}]), pa.struct([("b", US)])),
    (pa.array([{"b": 1}]), pa.map_(pa.string(), pa.int64())),
]


@pytest.mark.parametrize(("values", "declared"), NEVER)
def test_types_of_another_kind_are_refused_before_anything_is_read(
    tmp_path: Path, values: pa.Array, declared: pa.DataType
) -> None:
    with pytest.raises(SpecRefused) as refused:
        column(tmp_path, values, declared)
    for said in ("f.parquet: column 'a' is ", str(values.type)[:4], f"declared as {declared}", "write the file again"):
        assert said in str(refused.value)


NOT_THESE = [
    (pa.array([2**40]), pa.int32()),
    (pa.array([-1]), pa.uint8()),
    (pa.array([2**63], pa.uint64()), pa.int64()),
    (pa.array([2**53 + 1]), pa.float64()),
    (pa.array([2**24 + 1]), pa.float32()),
    (pa.array([123456]), pa.decimal128(5, 0)),
    (pa.array([1e300]), pa.float32()),
    (pa.array([1.1, 1.5]), pa.float32()),
    (pa.array([1e6], pa.float32()), pa.float16()),
    (pa.array([2.5]), pa.int64()),
    (pa.array([np.nan]), pa.int64()),
    (pa.array([Decimal("1.25")]), pa.decimal128(5, 1)),
    (pa.array([Decimal("1.25")]), pa.int64()),
    (pa.array([b"\xff"]), pa.string()),
    (pa.array([b"abc"]), pa.binary(2)),
    (pa.array([1001], US), MS),
    (pa.array([253402300799], pa.timestamp("ms")), NS),
    (pa.array([1], pa.time64("us")), pa.time32("ms")),
    (pa.array([[1.5, 1e300]]), pa.list_(pa.float32())),
    (pa.array([{"b": [1e300]}]), pa.struct([("b", pa.list_(pa.float32()))])),
    (pa.array([[("k", 1e300)]], pa.map_(pa.string(), pa.float64())), pa.map_(pa.string(), pa.float32())),
]


@pytest.mark.parametrize(("values", "declared"), NOT_THESE)
def test_a_value_that_the_declared_type_cannot_hold_ends_the_job_by_name(
    tmp_path: Path, values: pa.Array, declared: pa.DataType
) -> None:
    if values.type == pa.timestamp("ms") and declared == NS:
        values = pa.array([253402300799000], pa.timestamp("ms"))
    with pytest.raises(SpecRefused) as refused:
        column(tmp_path, values, declared)
    assert DOES_NOT_FIT in str(refused.value) and "f.parquet: column 'a' is " in str(refused.value)
    with pytest.raises(SpecRefused, match="column 'a' is "):
        refuse_final(f"Traceback\n  File x\nferry.contract.errors.SpecRefused: {refused.value}\n")


STRICT = pa.field("item", pa.int64(), nullable=False)
NOT_NULL = [
    (pa.field("a", pa.int64(), nullable=False), [1, None], "'a'"),
    (pa.field("a", pa.struct([pa.field("x", pa.int64(), nullable=False)])), [{"x": 1}, {"x": None}], "'a'.'x'"),
    (pa.field("a", pa.list_(STRICT)), [None, [], [1, None]], r"'a'\[\]"),
    (pa.field("a", pa.map_(pa.string(), STRICT)), [[("k", None)]], r"'a'\[\]"),
]


@pytest.mark.parametrize(("field", "values", "named"), NOT_NULL)
def test_a_null_where_none_may_be_ends_the_job_by_name(
    tmp_path: Path, field: pa.Field, values: list[Any], named: str
) -> None:
    def loose(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(kind):
            return pa.struct([f.with_nullable(True) for f in kind])
        if pa.types.is_map(kind):
            return pa.map_(pa.string(), pa.int64())
        return pa.list_(pa.int64()) if pa.types.is_list(kind) else kind

    pq.write_table(pa.table({"a": pa.array(values, loose(field.type))}), tmp_path / "f")
    source = parquet_files(tmp_path, pa.schema([field]), finite=True)
    start = source.start()
    (split,) = source.plan(start, source.latest(start, 10**6), 1)
    with pytest.raises(SpecRefused, match=rf"{DOES_NOT_FIT}.*/f: column ({named} is declared not null|.* has nulls)"):
        [*source.read(split)]
    pq.write_table(
        pa.table({"a": pa.array(values[:1] if len(values) > 1 else [[]], loose(field.type))}), tmp_path / "f"
    )
    source = parquet_files(tmp_path, pa.schema([field]), finite=True)
    (split,) = source.plan(start := source.start(), source.latest(start, 10**6), 1)
    assert len([*source.read(split)]) == 1


@pytest.mark.parametrize("declared", [None, UTC, US, pa.timestamp("ms"), NEW_YORK])
def test_times_of_int96_are_read_over_all_years(tmp_path: Path, declared: pa.DataType | None) -> None:
    ends = [-62135596800000, 253402300799000, 1710000000000, None]
    times = pa.array(ends, pa.timestamp("ms")).cast(US)
    pq.write_table(pa.table({"a": times}), tmp_path / "f.parquet", use_deprecated_int96_timestamps=True)
    assert pq.read_metadata(tmp_path / "f.parquet").schema.column(0).physical_type == "INT96"
    found = column(tmp_path, None, declared)
    assert found.type == (declared or UTC)
    assert found.cast(pa.timestamp("ms", found.type.tz)).cast(pa.int64()).to_pylist() == ends


OLD = {b"org.apache.spark.version": b"3.5.0", b"org.apache.spark.legacyDateTime": b""}


@pytest.mark.parametrize("facts", [OLD, {b"org.apache.spark.version": b"2.4.8"}])
def test_days_of_the_old_calendar_are_those_that_were_meant(tmp_path: Path, facts: dict[bytes, bytes]) -> None:
    days = [-719164, -141428, -141427, 0, None]
    """1 January of the year 1, 4 October 1582, the day after it, which is the 15th, 1970."""
    right = [dt.date(1, 1, 1), dt.date(1582, 10, 4), dt.date(1582, 10, 15), dt.date(1970, 1, 1), None]
    for kind, per_day in ((pa.date32(), 1), (UTC, 86_400_000_000), (pa.timestamp("ms", "UTC"), 86_400_000)):
        numbers = [None if day is None else day * per_day for day in days]
        made = pa.array(numbers, pa.int32() if per_day == 1 else pa.int64()).cast(kind)
        table = pa.table({"a": made}).replace_schema_metadata(facts)
        pq.write_table(table, tmp_path / "f.parquet")
        found = column(tmp_path, None, kind)
        assert [None if one is None else (one.date() if per_day > 1 else one) for one in found.to_pylist()] == right
        (tmp_path / "f.parquet").unlink()
    table = pa.table({"a": pa.array([-719164 * 86_400_000_000], US)}).replace_schema_metadata(facts)
    pq.write_table(table, tmp_path / "f.parquet")
    assert column(tmp_path, None, US).cast(pa.int64()).to_pylist() == [-719164 * 86_400_000_000], "as it stands there"


def test_old_times_of_a_zone_are_refused_by_name(tmp_path: Path) -> None:
    facts = {**OLD, b"org.apache.spark.timeZone": b"America/Los_Angeles"}
    for at, fits in ((-3_000_000_000_000_000, False), (0, True)):
        table = pa.table({"a": pa.array([at], UTC)}).replace_schema_metadata(facts)
        pq.write_table(table, tmp_path / "f.parquet")
        if fits:
            assert column(tmp_path, None, UTC).to_pylist() == [dt.datetime(1970, 1, 1, tzinfo=dt.UTC)]
        else:
            with pytest.raises(SpecRefused, match=r"'a' is .*before 1900 .*America/Los_Angeles"):
                column(tmp_path, None, UTC)


def test_names_are_said_as_the_file_has_them(tmp_path: Path) -> None:
    pq.write_table(pa.table({"A": [1]}), tmp_path / "f.parquet")
    with pytest.raises(SpecRefused, match=r"has no column 'a' \(but 'A', in other case\); it has A"):
        column(tmp_path, None, pa.int64())
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    pq.write_table(twice, tmp_path / "f.parquet")
    for declared in (pa.int64(), None):
        with pytest.raises(SpecRefused, match="has 2 columns 'a'; it has a, a"):
            column(tmp_path, None, declared)


def test_every_pair_of_types_is_judged() -> None:
    kinds = [one for one, _ in NEVER] + [one for one, *_ in EXACT]
    for values in kinds:
        assert misfit(values.type, values.type) == ""
        for other in kinds:
            assert isinstance(misfit(values.type, other.type), str)
