"""Rows as strict JSON: what is written is read back, for every type, and nothing that a type allows raises."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.connectors.formats.json_lines import parse
from ferry.connectors.formats.json_text import json_text, plain_text, shown


def strict(text: str) -> Any:
    """What strict JSON holds; nothing else is taken."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({name for name, _ in pairs}) == len(pairs)
        return dict(pairs)

    return json.loads(text, parse_constant=refuse, object_pairs_hook=unique)


def whole(bits: int, signed: bool = True) -> st.SearchStrategy[int]:
    least, greatest = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.sampled_from([least, greatest, 0]) | st.integers(least, greatest)


def of_times(type_: pa.DataType, bits: int = 64) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    """Any number that the type holds, also beyond the years of Python, as (type, numbers)."""
    edges = [-62_135_596_800, 253_402_300_799, -62_135_596_800 - 50_400, 253_402_300_799 + 43_200, -1]
    unit = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 1}[getattr(type_, "unit", "s")] if bits == 64 else 0
    return type_, st.sampled_from([edge * unit for edge in edges]) | whole(bits)


DAY = 86_400
SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.null(), st.none()),
    (pa.bool_(), st.booleans()),
    *((getattr(pa, f"int{bits}")(), whole(bits)) for bits in (8, 16, 32, 64)),
    *((getattr(pa, f"uint{bits}")(), whole(bits, signed=False)) for bits in (8, 16, 32, 64)),
    (pa.float64(), st.floats() | st.sampled_from([-0.0, 5e-324, 1.7976931348623157e308])),
    (pa.float32(), st.floats(width=32)),
    (pa.float16(), st.floats(width=16)),
    *(
        (type_, st.text() | st.sampled_from(['"\\\n\x00\x7f\x85\u2028😀', "x" * 5000]))
        for type_ in (pa.string(), pa.large_string(), pa.string_view())
    ),
    *(
        (type_, st.binary() | st.just(b"\x00\xff" * 3000))
        for type_ in (pa.binary(), pa.large_binary(), pa.binary_view())
    ),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.dictionary(pa.int32(), pa.string()), st.text()),
    *(
        (pa.decimal128(p, s), st.decimals(-(10 ** (p - s)) + 1, 10 ** (p - s) - 1, places=s))
        for p, s in ((38, 0), (20, 5), (1, 0), (10, 9))
    ),
    (pa.decimal256(76, 10), st.decimals(-(10**66) + 1, 10**66 - 1, places=10)),
    *(
        of_times(pa.timestamp(unit, zone))
        for unit in ("s", "ms", "us", "ns")
        for zone in (None, "Europe/Berlin", "America/New_York", "Mars/Base")
    ),
    *(of_times(pa.duration(unit)) for unit in ("s", "ms", "us", "ns")),
    of_times(pa.date32(), 32),
    (pa.date64(), st.integers(-(2**36), 2**36).map(lambda day: day * 86_400_000)),
    *((pa.time32(unit), st.integers(0, DAY * size - 1)) for unit, size in (("s", 1), ("ms", 1000))),
    *((pa.time64(unit), st.integers(0, DAY * size - 1)) for unit, size in (("us", 10**6), ("ns", 10**9))),
]


def array(type_: pa.DataType, values: list[Any]) -> pa.Array:
    if pa.types.is_temporal(type_) and not pa.types.is_interval(type_):
        return pa.array(values, pa.int32() if type_.bit_width == 32 else pa.int64()).view(type_)
    if pa.types.is_dictionary(type_):
        return pa.array(values, type_.value_type).dictionary_encode().cast(type_)
    return pa.array(values, type_)


def nested(kind: str, inner: pa.Array, counts: list[int | None], keys: pa.Array) -> pa.Array:
    """An array of lists, maps or structs of the elements."""
    if kind == "struct":
        valid = pa.array([i % 3 != 1 for i in range(len(inner))], pa.bool_())
        return pa.StructArray.from_arrays([inner, keys.slice(0, len(inner))], names=["x", "y"], mask=pc.invert(valid))
    if kind == "fixed":
        return pa.FixedSizeListArray.from_arrays(inner.slice(0, len(inner) // 2 * 2), 2)
    offsets, at = [], 0
    for count in counts:
        offsets.append(None if count is None else at)
        at = min(at + (count or 0), len(inner))
    edges = pa.array([*offsets, at], pa.int32())
    if kind == "map":
        return pa.MapArray.from_arrays(edges, keys.slice(0, len(inner)), inner)
    return pa.ListArray.from_arrays(edges, inner)


@st.composite
def columns(draw: Any) -> pa.Array:
    """An array of any type, nested at most twice."""
    type_, values = draw(st.sampled_from(SCALARS))
    made = array(type_, draw(st.lists(values | st.none(), min_size=1, max_size=8)))
    for kind in draw(st.lists(st.sampled_from(["list", "struct", "map", "fixed"]), max_size=2)):
        name, names = draw(
            st.sampled_from([(t, v) for t, v in SCALARS if not pa.types.is_floating(t) and t not in (pa.null(),)])
        )
        keys = (
            draw(st.lists(names, min_size=len(made), max_size=len(made), unique=True))
            if not pa.types.is_boolean(name)
            else None
        )
        name = pa.int64() if keys is None else name
        keys = [*range(len(made))] if keys is None else keys
        made = nested(kind, made, draw(st.lists(st.none() | st.integers(0, 3), max_size=6)), array(name, keys))
    return made


@settings(max_examples=400, deadline=None)
@given(columns(), st.integers(0, 3))
def test_what_is_written_is_read_back(column: pa.Array, begin: int) -> None:
    table = pa.table({"c": column}).slice(begin)
    texts = json_text(table)
    assert len(texts) == table.num_rows
    for text in texts:
        assert list(strict(text)) == ["c"]
    back, bad = parse("\n".join(texts).encode(), table.schema)
    assert not bad
    back.validate(full=True)
    assert json_text(back) == texts and back.schema == table.schema
    assert back.column("c").is_valid().to_pylist() == table.column("c").is_valid().to_pylist()
    if pa.types.is_temporal(column.type):  # numbers besides, for two of them could have one text
        left, right = back.column("c").combine_chunks(), table.column("c").combine_chunks()
        width = pa.int32() if column.type.bit_width == 32 else pa.int64()
        assert left.view(width).equals(right.view(width))
    elif not pa.types.is_floating(column.type) and not pa.types.is_nested(column.type):
        assert back.column("c").to_pylist() == table.column("c").to_pylist()
    shown(table)
    plain_text(table.column("c"))


def test_values_are_what_spark_and_flink_write() -> None:
    row = {
        "n": pa.array([1.0]),
        "nan": pa.array([[float("nan"), float("-inf")]]),
        "f": pa.array([0.1], pa.float32()),
        "m": pa.array([[("p", 1)]], pa.map_(pa.string(), pa.int64())),
        "k": pa.array([[(True, None)]], pa.map_(pa.bool_(), pa.int64())),
        "at": pa.array([253_402_300_799_000_000], pa.timestamp("us", "Europe/Berlin")),
        "local": pa.array([1_500], pa.timestamp("ms")),
        "text": pa.array(['"\x1b[31m\x85']),
    }
    (text,) = json_text(pa.table(row))
    assert text == (
        '{"n":1.0,"nan":["NaN","-Infinity"],"f":0.1,"m":{"p":1},"k":{"true":null},"at":"9999-12-31T23:59:59+00:00",'
        '"local":"1970-01-01T00:00:01.500","text":"\\"\\u001b[31m\\u0085"}'
    )
    assert shown(pa.table({"a": ["x"], "b": pa.array([None], pa.int64())})) == ['a="x", b=null']


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (pa.array([True]), "true"),
        (pa.array([1.5]), "1.5"),
        (pa.array(['a"b']), 'a"b'),
        (pa.array([0], pa.timestamp("s", "UTC")), "1970-01-01T00:00:00+00:00"),
        (pa.array([{"a": 1}]), '{"a":1}'),
        (pa.array([[1, None]]), "[1,null]"),
        (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), "MonthDayNano(months=1, days=2, nanoseconds=3)"),
        (pa.array(["x"]).dictionary_encode(), "x"),
    ],
)
def test_a_key_is_plain_text(values: pa.Array, text: str) -> None:
    assert plain_text(values).to_pylist() == [text]
    assert plain_text(pa.array([None], values.type)).to_pylist() == [None]


def test_views_of_lists_and_encoded_runs_have_texts() -> None:
    views = pa.ListViewArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array([2, 1], pa.int32()), pa.array([1, 2]))
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int32()), pa.array(["a", None]))
    assert json_text(pa.table({"v": views, "r": runs})) == ['{"v":[1,2],"r":"a"}', '{"v":[2],"r":null}']
