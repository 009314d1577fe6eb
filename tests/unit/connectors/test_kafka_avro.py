"""Values of Avro of every type, at its ends and inside of others, become Arrow's exactly, or are malformed with a reason."""

from __future__ import annotations

import io
import json
import math
import re
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from ferry.connectors.kafka.avro import Unfit, reader_of, table_of
from tests.unit.every_type import LONG, SECONDS, YEAR_1, instants, seen, whole

AVRO_SECONDS = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}
WHOLE = [*whole(64)]
FLOATS = [0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, 1e308, 5e-324]


def decimal(size: int | None, precision: int, scale: int) -> Any:
    own = {"type": "bytes"} if size is None else {"type": "fixed", "name": f"f{size}", "size": size}
    return own | {"logicalType": "decimal", "precision": precision, "scale": scale}


def signed(value: int, size: int | None) -> bytes:
    return value.to_bytes(size or value.bit_length() // 8 + 1, signed=True)


def exact(value: int, scale: int) -> Decimal:
    return Decimal((int(value < 0), tuple(map(int, str(abs(value)))), -scale))


FINE: list[tuple[Any, list[Any], pa.DataType, list[Any]]] = [
    ("boolean", [True, False], pa.bool_(), [True, False]),
    ("int", whole(32), pa.int32(), whole(32)),
    ("int", [0, -128], pa.int8(), [0, -128]),
    ("int", whole(32), pa.date32(), whole(32)),
    ("long", WHOLE, pa.int64(), WHOLE),
    ("long", [2**63 - 1, 0], pa.uint64(), [2**63 - 1, 0]),
    ("long", WHOLE, pa.float64(), [float(v) for v in WHOLE]),
    ("long", WHOLE, pa.decimal128(19, 0), [Decimal(v) for v in WHOLE]),
    ("long", WHOLE[1:], pa.duration("us"), WHOLE[1:]),
    ("float", [math.nan, 1.5, -0.0], pa.float32(), ["nan", 1.5, -0.0]),
    ("double", FLOATS, pa.float64(), ["nan" if v != v else v for v in FLOATS]),
    ("double", [3.4028234663852886e38, 1.5], pa.float32(), [3.4028234663852886e38, 1.5]),
    ("double", [65504.0, 2.0**-24, math.inf], pa.float16(), [65504.0, 2.0**-24, math.inf]),
    ("string", ["", "nul\0", LONG], pa.string(), ["", "nul\0", LONG]),
    ("string", ["", "nul\0", LONG], pa.large_string(), ["", "nul\0", LONG]),
    ("string", ["", LONG], pa.string_view(), ["", LONG]),
    ("string", ["a", "é"], pa.dictionary(pa.int32(), pa.string()), ["a", "é"]),
    ("bytes", [b"", b"\0\xff"], pa.binary(), [b"", b"\0\xff"]),
    ("bytes", ["é".encode()], pa.string(), ["é"]),
    ({"type": "fixed", "name": "f", "size": 3}, [b"abc"], pa.binary(3), [b"abc"]),
    ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, ["B", "A"], pa.string(), ["B", "A"]),
    ({"type": "int", "logicalType": "date"}, whole(32), pa.date32(), whole(32)),
    ({"type": "int", "logicalType": "date"}, [-(2**31), 5], pa.date64(), [-(2**31) * 86_400_000, 5 * 86_400_000]),
    ({"type": "int", "logicalType": "date"}, [YEAR_1 // 86400], pa.timestamp("us"), [YEAR_1 * 10**6]),
    *(
        ({"type": "long", "logicalType": f"{of}timestamp-{name}"}, some, pa.timestamp(unit, zone), [v * SECONDS[unit] // n for v in some])
        for of in ("", "local-")
        for name, n in AVRO_SECONDS.items()
        for unit in SECONDS
        for zone in (None, "UTC", "Pacific/Kiritimati")
        for some in [[v for v in instants({10**3: "ms", 10**6: "us", 10**9: "ns"}[n]) if -(2**63) < v * SECONDS[unit] // n < 2**63]]
    ),
    *(
        ({"type": "int" if n == 1000 else "long", "logicalType": f"time-{name}"}, [0, 1, 86_400 * n - 1], kind, [v * SECONDS[kind.unit] // n for v in (0, 1, 86_400 * n - 1)])
        for name, n in (("millis", 10**3), ("micros", 10**6))
        for kind in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"))
    ),
    *(
        (decimal(size, p, s), [signed(v, size) for v in some], kind, [exact(v * 10 ** (kind.scale - s), kind.scale) for v in some])
        for size, p, s, kind in (
            (None, 12, 2, pa.decimal128(12, 2)), (16, 38, 0, pa.decimal128(38, 0)), (None, 38, 38, pa.decimal128(38, 38)),
            (None, 76, 3, pa.decimal256(76, 3)), (4, 9, 2, pa.decimal128(20, 10)), (None, 60, 0, pa.decimal256(60, 0)),
        )
        for some in [[10**p - 1, 1 - 10**p, 0, 1]]
    ),
    ({"type": "string", "logicalType": "uuid"}, [str(uuid.UUID(int=1))], pa.string(), [str(uuid.UUID(int=1))]),
    ({"type": "string", "logicalType": "uuid"}, [str(uuid.UUID(int=1))], pa.binary(16), [(1).to_bytes(16)]),
    ({"type": "fixed", "name": "u", "size": 16, "logicalType": "uuid"}, [(7).to_bytes(16)], pa.string(), [str(uuid.UUID(int=7))]),
    ({"type": "long", "logicalType": "of-nobody"}, [7], pa.int64(), [7]),
]  # fmt: skip
NEVER: list[tuple[Any, Any, pa.DataType, str]] = [
    ({"type": "long", "logicalType": "timestamp-millis"}, 7, pa.int64(), "field 'x': timestamp-millis does not fit int64"),
    ({"type": "long", "logicalType": "timestamp-millis"}, 7, pa.date32(), "timestamp-millis does not fit date32"),
    ({"type": "long", "logicalType": "timestamp-micros"}, 2**62, pa.timestamp("ns"), ""),
    ("long", 7, pa.timestamp("ms"), 'long does not fit timestamp.ms.: a number needs its unit, epoch={"x": "ms"}'),
    ("long", 128, pa.int8(), ""),
    ("long", -1, pa.uint64(), ""),
    ("boolean", True, pa.float64(), "boolean does not fit double"),
    ("double", 1.0, pa.int64(), "double does not fit int64"),
    ("double", 1e300, pa.float32(), "beyond the range"),
    ("double", 65_520.0, pa.float16(), "beyond the range"),
    ("double", 1.5, pa.decimal128(5, 2), "double does not fit"),
    ("string", "1", pa.int64(), "string does not fit int64"),
    ("string", "ab", pa.list_(pa.string()), "string does not fit list"),
    ("bytes", b"\xff", pa.string(), "utf8"),
    ("bytes", b"ab", pa.binary(3), "length 3"),
    (decimal(None, 5, 3), signed(1234, None), pa.decimal128(5, 2), "data loss"),
    (decimal(None, 5, 0), signed(99999, None), pa.decimal128(4, 0), ""),
    (decimal(None, 5, 0), signed(9, None), pa.binary(), "decimal does not fit binary"),
    ({"type": "int", "logicalType": "time-millis"}, -1, pa.time32("ms"), "not a time of day"),
    ({"type": "int", "logicalType": "time-millis"}, 86_400_000, pa.time32("ms"), "not a time of day"),
    ({"type": "int", "logicalType": "date"}, 1, pa.int32(), "date does not fit int32"),
    ({"type": "string", "logicalType": "uuid"}, "no", pa.binary(16), "badly formed"),
    ("null", None, pa.int64(), "field 'x' is missing or null"),
]  # fmt: skip


def raw(schema: Any) -> Any:
    """The schema as who writes integers and bytes has it."""
    if isinstance(schema, list):
        return [raw(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: raw(schema[name]) for name in ("items", "values") if name in schema}
    if "fields" in schema:
        inner["fields"] = [{**one, "type": raw(one["type"])} for one in schema["fields"]]
    return {name: value for name, value in schema.items() if name != "logicalType"} | inner


def written(schema: Any, value: Any) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(raw(schema)), value)
    return data.getvalue()


def record(kind: Any, name: str = "r") -> Any:
    return {"type": "record", "name": name, "fields": [{"name": "x", "type": kind}]}


def read(schema: Any, values: list[Any], fields: pa.Schema, **epochs: str) -> tuple[pa.Table, dict[int, str]]:
    reader, bad, rows = reader_of(json.dumps(schema), fields, tuple(epochs.items())), {}, []
    for i, value in enumerate(values):
        try:
            rows.append((i, reader(written(schema, value))))
        except Unfit as wrong:
            bad[i] = str(wrong)
    return table_of(rows, fields, bad), bad


def places(kind: Any, type_: pa.DataType) -> Iterator[tuple[str, Any, pa.DataType, Any, Any]]:
    """(where, schema, Arrow's type, what is written of a value, what is seen of it) of a column and of its values inside of others."""
    yield "itself", kind, type_, lambda v: v, lambda v: v
    yield "or null", ["null", kind], type_, lambda v: v, lambda v: v
    yield "or another", [kind, "null", record("string", "other")], type_, lambda v: v, lambda v: v
    if pa.types.is_dictionary(type_):
        return
    array = {"type": "array", "items": ["null", kind]}
    yield "list", array, pa.list_(type_), lambda v: [v, None], lambda v: [v, None]
    yield "large list", array, pa.large_list(type_), lambda v: [], lambda v: []
    yield "list of two", array, pa.list_(type_, 2), lambda v: [None, v], lambda v: [None, v]
    yield "map", {"type": "map", "values": kind}, pa.map_(pa.string(), type_), lambda v: {"k": v}, lambda v: [["k", v]]
    yield "record", record(kind, "in"), pa.struct([("x", type_)]), lambda v: {"x": v}, lambda v: [v]
    yield "record as map", record(kind, "in"), pa.map_(pa.string(), type_), lambda v: {"x": v}, lambda v: [["x", v]]
    deep = {"type": "map", "values": {"type": "array", "items": record(kind, "in")}}
    kept = pa.map_(pa.string(), pa.list_(pa.struct([("x", type_)])))
    yield "deep", deep, kept, lambda v: {"k": [{"x": v}]}, lambda v: [["k", [[v]]]]


@pytest.mark.parametrize(("kind", "some", "type_", "expected"), FINE, ids=[f"{k}-{t}" for k, _, t, _ in FINE])
def test_a_value_is_arrows_exactly(kind: Any, some: list[Any], type_: pa.DataType, expected: list[Any]) -> None:
    for where, schema, kept, given, wanted in places(kind, type_):
        fields = pa.schema([("x", kept)])
        table, bad = read(record(schema), [{"x": given(v)} for v in some], fields)
        assert not bad and table.schema == fields, (where, bad)
        table.validate(full=True)
        assert repr(seen(table["x"])) == repr([wanted(v) for v in expected]), where


@pytest.mark.parametrize(("kind", "value", "type_", "why"), NEVER, ids=[f"{k}-{v}-{t}" for k, v, t, _ in NEVER])
def test_what_is_no_value_of_a_column_is_malformed_alone(kind: Any, value: Any, type_: pa.DataType, why: str) -> None:
    fields = pa.schema([pa.field("x", type_, nullable=kind != "null"), ("n", pa.int32())])
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": kind}, {"name": "n", "type": "int"}]}
    table, bad = read(schema, [{"x": value, "n": 1}], fields)
    assert table.num_rows == 0 and [*bad] == [0]
    assert re.search(why, bad[0]), bad[0]


def test_values_of_one_field_are_one_column_whatever_schema_each_has() -> None:
    """Now required, now a union with null; now with other fields before it, at other places, of other widths."""
    instant = {"type": "long", "logicalType": "timestamp-micros"}
    fields = pa.schema([("at", pa.timestamp("ms", "UTC")), ("user", pa.string()), ("n", pa.float64())])
    schemas = [
        [("at", instant), ("user", "string"), ("n", "int")],
        [("user", ["null", "string"]), ("at", ["null", instant]), ("n", ["null", "double"])],
        [("more", decimal(None, 9, 2)), ("n", "float"), ("at", [{"type": "int", "logicalType": "date"}, "null"])],
    ]
    values = [
        {"at": -1, "user": "a", "n": 1},
        {"user": None, "at": None, "n": None},
        {"more": b"\1", "n": 0.5, "at": 1},
    ]
    rows, bad = [], dict[int, str]()
    for i, (some, value) in enumerate(zip(schemas, values, strict=True)):
        schema = {"type": "record", "name": "r", "fields": [{"name": name, "type": kind} for name, kind in some]}
        rows.append((i, reader_of(json.dumps(schema), fields, ())(written(schema, value))))
    assert seen(table_of(rows, fields, bad)["at"]) == [-1, None, 86_400_000] and not bad
    assert table_of(rows, fields, bad).select(["user", "n"]).to_pylist() == [
        {"user": "a", "n": 1.0}, {"user": None, "n": None}, {"user": None, "n": 0.5},
    ]  # fmt: skip


@pytest.mark.parametrize(("unit", "given", "ms"), [("s", 7, 7_000), ("us", -1, -1), ("ns", 1_999_999, 1)])
def test_numbers_are_times_where_their_unit_is_declared(unit: str, given: int, ms: int) -> None:
    fields = pa.schema([("x", pa.list_(pa.timestamp("ms")))])
    table, bad = read(record({"type": "array", "items": "long"}), [{"x": [given]}], fields, x=unit)
    assert not bad and seen(table["x"]) == [[ms]]


def test_seconds_may_have_fractions() -> None:
    fields = pa.schema([("x", pa.timestamp("us"))])
    table, bad = read(record("double"), [{"x": 0.1}, {"x": -0.1}, {"x": math.nan}, {"x": math.inf}], fields, x="s")
    assert seen(table["x"]) == [100_000, -100_000] and sorted(bad) == [2, 3]


def test_a_type_with_a_name_is_read_as_each_place_needs_it() -> None:
    """Also one that is inside of itself, as far as the columns go."""
    node = {"type": "record", "name": "node", "namespace": "n.s", "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}, {"name": "next", "type": ["null", "node"]},
    ]}  # fmt: skip
    schema = {"type": "record", "name": "r", "namespace": "n.s", "fields": [
        {"name": "skipped", "type": node}, {"name": "a", "type": "node"}, {"name": "b", "type": "n.s.node"},
    ]}  # fmt: skip
    deep: Any = None
    for at in range(5):
        deep = {"at": at, "next": deep}
    seconds, micros = pa.timestamp("s"), pa.timestamp("us")
    fields = pa.schema(
        [("a", pa.struct([("at", micros)])), ("b", pa.struct([("next", pa.struct([("at", seconds)])), ("at", micros)]))]
    )
    table, bad = read(schema, [{"skipped": deep, "a": deep, "b": {"at": 5000, "next": deep}}], fields)
    assert not bad and seen(table["a"]) == [[4000]] and seen(table["b"]) == [[[0], 5_000_000]]


def test_a_null_where_none_may_be_is_malformed_at_any_depth() -> None:
    inner = pa.field("x", pa.int64(), nullable=False)
    for kept, kind, good, wrong in (
        (pa.int64(), ["null", "long"], 1, None),
        (pa.struct([inner]), record(["null", "long"], "in"), {"x": 1}, {"x": None}),
        (pa.list_(inner), {"type": "array", "items": ["null", "long"]}, [1], [1, None]),
        (pa.map_(pa.string(), inner), {"type": "map", "values": ["null", "long"]}, {"k": 1}, {"k": None}),
    ):
        fields = pa.schema([pa.field("x", kept, nullable=False)])
        table, bad = read(record(kind), [{"x": wrong}, {"x": good}], fields)
        assert table.num_rows == 1 and "is missing or null" in bad[0], kept
    fields = pa.schema([pa.field("s", pa.struct([pa.field("y", pa.int64(), nullable=False)]))])
    schema = {"type": "record", "name": "r", "fields": [{"name": "s", "type": ["null", record("long", "in")]}]}
    table, bad = read(schema, [{"s": {"x": 1}}, {"s": None}], fields)
    assert table.to_pylist() == [{"s": None}] and bad == {0: "field 's.y' is missing or null"}


@pytest.mark.parametrize(
    ("schema", "value"), [("string", ""), (["null", "long"], None), ({"type": "map", "values": "long"}, {"x": 1})]
)
def test_a_value_that_is_no_record_is_malformed(schema: Any, value: Any) -> None:
    reader = reader_of(json.dumps(schema), pa.schema([("x", pa.int64())]), ())
    with pytest.raises(Unfit, match="not a record"):
        reader(written(schema, value))


def test_bytes_that_end_early_or_point_nowhere_are_malformed() -> None:
    schema, fields = record(["null", "string"]), pa.schema([("x", pa.string())])
    reader = reader_of(json.dumps(schema), fields, ())
    whole_value = written(schema, {"x": "long enough"})
    for n in range(len(whole_value)):
        with pytest.raises(Unfit):
            reader(whole_value[:n])
    with pytest.raises(Unfit):
        reader(b"\x7e" + whole_value[1:])
