"""What goes into Spark has types that Spark takes, and the same values as far as these have them."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from ferry.contract.errors import DataRefused, SpecRefused
from ferry.kernels.frame_types import for_frame, require_names, require_types
from ferry.spark.frames import spark_schema


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
@pytest.mark.parametrize(("unit", "raw"), [("s", -5), ("ms", -5_000), ("us", -5_000_000), ("ns", -4_999_999_999)])
def test_timestamps_become_microseconds_rounded_down(unit: str, raw: int, zone: str | None) -> None:
    column = pa.array([raw, None], pa.int64()).cast(pa.timestamp(unit, zone))
    for rows in (pa.record_batch({"t": column, "n": [1, 2]}), pa.table({"t": column, "n": [1, 2]})):
        made = for_frame(rows)
        assert type(made) is type(rows) and made.schema.types == [pa.timestamp("us", zone and "UTC"), pa.int64()]
        assert made["t"].cast(pa.int64()).to_pylist() == [-5_000_000, None]


def test_what_spark_takes_is_left_alone() -> None:
    columns = {"d": pa.array([dt.date(2024, 2, 29)]), "m": pa.array([None], pa.decimal128(12, 2)), "t": ["x"]}
    rows = pa.record_batch({**columns, "at": pa.array([0], pa.timestamp("us", "UTC"))})
    assert for_frame(rows) is rows


def test_durations_are_rounded_down_to_microseconds() -> None:
    fine = pa.array([1_999, -1, -1_000, None, 0], pa.duration("ns"))
    made = for_frame(pa.record_batch({"d": fine})).column("d")
    assert made.cast(pa.int64()).to_pylist() == [1, -1, -1, None, 0]


UTC = "UTC"
D = Decimal
DAYS, MS = 86_400, 1000
TAKEN: list[tuple[pa.DataType, list[object], pa.DataType, list[object]]] = [
    (pa.uint8(), [0, 255], pa.int16(), [0, 255]),
    (pa.uint16(), [0, 65_535], pa.int32(), [0, 65_535]),
    (pa.uint32(), [0, 2**32 - 1], pa.int64(), [0, 2**32 - 1]),
    (pa.uint64(), [0, 2**64 - 1], pa.decimal128(20, 0), [D(0), D(2**64 - 1)]),
    (pa.float16(), [1.5, float("-inf"), -0.0], pa.float32(), [1.5, float("-inf"), -0.0]),
    (pa.large_string(), ["", "x" * 1000], pa.string(), ["", "x" * 1000]),
    (pa.string_view(), ["", "x" * 1000], pa.string(), ["", "x" * 1000]),
    (pa.binary_view(), [b"", b"\0" * 99], pa.binary(), [b"", b"\0" * 99]),
    (pa.large_binary(), [b""], pa.binary(), [b""]),
    (pa.binary(2), [b"ab"], pa.binary(), [b"ab"]),
    (pa.date64(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)], pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    (pa.time32("s"), [dt.time(23, 59, 59)], pa.time64("ns"), [dt.time(23, 59, 59)]),
    (pa.time32("ms"), [dt.time(0, 0, 0, 1000)], pa.time64("ns"), [dt.time(0, 0, 0, 1000)]),
    (pa.time64("us"), [dt.time(0, 0, 0, 1)], pa.time64("ns"), [dt.time(0, 0, 0, 1)]),
    (pa.decimal32(5, 2), [D("-999.99")], pa.decimal128(5, 2), [D("-999.99")]),
    (pa.decimal256(38, 4), [D("1.2500")], pa.decimal128(38, 4), [D("1.2500")]),
    (pa.decimal128(5, -2), [D("12300")], pa.decimal128(7, 0), [D("12300")]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a"], pa.string(), ["a", "b", "a"]),
    (pa.list_view(pa.uint8()), [[1, None], []], pa.list_(pa.int16()), [[1, None], []]),
    (pa.large_list(pa.uint8()), [[1, None], []], pa.list_(pa.int16()), [[1, None], []]),
    (pa.list_(pa.uint8(), 2), [[1, None], [2, 3]], pa.list_(pa.int16()), [[1, None], [2, 3]]),
    (pa.map_(pa.string(), pa.uint64()), [[("a", 2**63), ("b", None)], []], pa.map_(pa.string(), pa.decimal128(20, 0)), [[("a", D(2**63)), ("b", None)], []]),
    (pa.struct([("a", pa.uint8()), ("b", pa.list_(pa.time32("s")))]), [{"a": 1, "b": [None]}, {"a": None, "b": None}], pa.struct([("a", pa.int16()), ("b", pa.list_(pa.time64("ns")))]), [{"a": 1, "b": [None]}, {"a": None, "b": None}]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "given", "taken", "wanted"), TAKEN, ids=[str(one[0]) for one in TAKEN])
def test_types_that_spark_has_not_are_those_it_reads(
    kind: pa.DataType, given: list[object], taken: pa.DataType, wanted: list[object]
) -> None:
    """At any depth, and where a batch is a part of a longer one."""
    nested = {
        "itself": (kind, given, taken, wanted),
        "list": (pa.list_(kind), [given, [], None], pa.list_(taken), [wanted, [], None]),
        "struct": (
            pa.struct([("f", kind)]),
            [{"f": v} for v in given],
            pa.struct([("f", taken)]),
            [{"f": v} for v in wanted],
        ),
        "map": (pa.map_(pa.string(), kind), [[("k", given[0])]], pa.map_(pa.string(), taken), [[("k", wanted[0])]]),
    }
    for name, (own, values, made, expected) in nested.items():
        try:
            column = pa.array([*values, None], own)
        except pa.ArrowNotImplementedError:
            column = pa.array([*values, None], _plain(own)).cast(own)
        for array, some in (
            (column, [*expected, None]),
            (pa.concat_arrays([column, column])[1 : len(column) + 1], None),
        ):
            found = for_frame(pa.record_batch({"x": array})).column("x")
            found.validate(full=True)
            assert found.type.equals(made) or str(found.type).replace("element", "item") == str(made), name
            assert found.to_pylist() == (some if some is not None else [*expected[1:], None, expected[0]]), name
        table = for_frame(pa.table({"x": pa.chunked_array([column, column[:0], column])}))
        assert table["x"].to_pylist() == 2 * [*expected, None], name


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.list_(kind.value_type) if isinstance(kind, pa.ListViewType) else kind


@pytest.mark.parametrize("kind", [
    pa.month_day_nano_interval(), pa.decimal256(40, 0), pa.uuid(), pa.dense_union([pa.field("a", pa.int8())]), pa.struct([]),
    pa.struct([("a", pa.int8()), ("A", pa.int8())]), pa.list_(pa.month_day_nano_interval()), pa.map_(pa.uuid(), pa.int8()),
], ids=str)  # fmt: skip
def test_types_that_nothing_of_spark_can_hold_are_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(SpecRefused, match=r"^sink: column 'x' is .*, which Spark has not; cast it, or leave it out"):
        require_types(pa.schema([("n", pa.int8()), ("x", kind)]), "sink")


def test_columns_that_capitals_tell_apart_are_refused_where_spark_names_them() -> None:
    with pytest.raises(SpecRefused, match=r"here: columns \['n', 'N'\] have one name for Spark"):
        require_names(pa.schema([("n", pa.int8()), ("m", pa.int8()), ("N", pa.int8())]), "here")


@pytest.mark.parametrize(
    ("kind", "value"), [(pa.timestamp("s"), 2**60), (pa.timestamp("ms", UTC), -(2**62)), (pa.duration("s"), 2**60)]
)
def test_a_value_beyond_sparks_type_names_its_column(kind: pa.DataType, value: int) -> None:
    batch = pa.record_batch({"n": [1], "when": pa.array([value]).cast(kind)})
    with pytest.raises(DataRefused, match=r"column 'when' has a value of .* cannot hold"):
        for_frame(batch)


def test_times_beyond_the_year_9999_and_before_1_are_values_like_others() -> None:
    far = pa.array([253_402_300_800 * MS, -62_135_596_801 * MS], pa.int64())
    made = for_frame(pa.record_batch({"x": far.cast(pa.timestamp("ms", "Pacific/Kiritimati"))})).column("x")
    assert made.type == pa.timestamp("us", UTC) and made.cast(pa.int64()).to_pylist() == [v.as_py() * MS for v in far]


@pytest.mark.parametrize(
    "kind", [pa.timestamp("ns"), pa.timestamp("ns", "America/New_York"), pa.duration("ns")], ids=str
)
@pytest.mark.parametrize("ns", [-(2**63), 2**63 - 1, -1, 0, 999, 1000, -1000, -1001])
def test_every_nanosecond_is_rounded_down(kind: pa.DataType, ns: int) -> None:
    inside = pa.array([[ns], None], pa.list_(pa.int64())).cast(pa.list_(kind))
    found = for_frame(pa.record_batch({"x": inside})).column("x")
    assert found[0].values.cast(pa.int64()).to_pylist() == [ns // 1000]
    assert spark_schema(pa.schema([("x", inside.type)])).fields[0].dataType.typeName() == "array"


def test_runs_and_json_texts_are_plain_columns() -> None:
    runs = pa.RunEndEncodedArray.from_arrays([2, 3], pa.array([7, None], pa.uint8()))
    texts = pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}", None, "1"]))
    made = for_frame(pa.record_batch({"r": runs, "j": texts}))
    assert made.schema.types == [pa.int16(), pa.string()]
    assert made.to_pydict() == {"r": [7, 7, None], "j": ["{}", None, "1"]}
