"""JSON texts as records: one verdict for each, whatever stands beside it, and what each type of a column takes."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.connectors.formats.json_lines import OF_LINE, checked, parse, parse_each
from ferry.contract.errors import SpecRefused

SCHEMA = pa.schema(
    [
        pa.field("a", pa.int64(), nullable=False),
        ("s", pa.string()),
        ("f", pa.float64()),
        ("l", pa.list_(pa.struct([("x", pa.int32())]))),
        ("m", pa.map_(pa.string(), pa.int64())),
    ]
)

GOOD = [
    b'{"a":1}',
    b'\xef\xbb\xbf{"a":7}',
    b'{"a":7,"b":' + b"[" * 3000 + b"]" * 3000 + b"}",
    b'{"a":7,"b":' + b'{"c":' * 3000 + b"1" + b"}" * 3000 + b"}",
    b'{"a":7,"b":' + b"9" * 5000 + b"}",
    b'{"a":7,"b":NaN,"f":-Infinity}',
    b'{"a":7,"b":1e400,"f":"NaN"}',
    b'{"b":7,"b":8,"a":7}',
    b'{"\\u0061":7,"s":"\\ud83d\\ude00\\n\\/"}\r',
    b' \t{ "a" : 7 , "l" : [ { "x" : 1 } , null , { } ] } ',
    b'{"m":{"p":1,"":null},"a":-0,"l":[]}',
    '{"s":"é\u2028","a":7,"":1}'.encode(),
]
BAD = {
    b"null": "not a JSON object",
    b" null ": "not a JSON object",
    b"[]": "not a JSON object",
    b"5": "not a JSON object",
    b"\xc2\xa0{}": "not a JSON object",
    b'{"a":7}{"a":8}': "more than a JSON object: '{' at byte 7",
    b'{"a":7},': "more than",
    b'{"a":7}\x00': "more than",
    b'{"a":7': "ends within",
    b'"a":7}': "not a JSON object",
    b'{"a":7,}': "unexpected '}' at byte 7",
    b"{'a':7}": "unexpected",
    b'{"a":07}': "unexpected '7'",
    b'{"a":+1}': "unexpected",
    b'{"a":7,"b":.5}': "unexpected",
    b'{"a":7,"b":1.}': "unexpected",
    b'{"a":7,"b":Inf}': "unexpected",
    b'{"a":7,"b":nan}': "unexpected",
    b'{"a":7,"b":[1}': "unexpected",
    b'{"a":7,"b":tru}': "unexpected",
    b'{"a":7} // x': "more than",
    b'{"a":7,"s":"x\ty"}': "control character",
    b'{"a":7,"zz":"\\x"}': "wrong escape",
    b'{"a":7,"zz":"\\ud800"}': "surrogate",
    b'{"a":7,"s":"\xff"}': "not UTF-8",
    b'{"a":7,"a":8}': "field 'a' comes twice",
    b'{"s":"no a"}': "field 'a' is missing or null",
    b'{"a":null}': "field 'a' is missing or null",
    b'{"a":1.0}': "field 'a': 1.0 does not fit int64",
    b'{"a":"5"}': "field 'a': \"5\" does not fit int64",
    b'{"a":9223372036854775808}': "does not fit int64",
    b'{"a":' + b"9" * 5000 + b"}": "does not fit int64",
    b'{"a":[]}': "field 'a': an array at byte 5 of the line does not fit int64",
    b'{"a":7,"s":5}': "field 's': 5 does not fit string",
    b'{"a":7,"f":1e400}': "does not fit double",
    b'{"a":7,"l":[{"x":2147483648}]}': "field 'l[].x'",
    b'{"a":7,"l":[3]}': "field 'l[]'",
    b'{"a":7,"m":{"p":"x"}}': "field 'm.value'",
}


@pytest.mark.parametrize("line", GOOD)
def test_a_good_line_is_a_record(line: bytes) -> None:
    table, bad = parse(line + b"\n", SCHEMA)
    assert (table.num_rows, bad) == (1, [])
    table.validate(full=True)


@pytest.mark.parametrize("line", BAD)
def test_a_bad_line_is_set_aside_with_its_reason(line: bytes) -> None:
    table, ((at, bad, reason),) = parse(b"\n \n" + line + b"\n", SCHEMA)
    assert (table.num_rows, at, bad) == (0, 3, line) and BAD[line] in reason
    assert len(reason) < 200 and ("at byte" in reason) == ("of the line" in reason)


JSONISH = st.lists(
    st.sampled_from(
        [
            b"{",
            b"}",
            b"[",
            b"]",
            b",",
            b":",
            b'"a"',
            b'"s"',
            b'"l"',
            b'"m"',
            b'"x"',
            b'"',
            b"\\",
            b"null",
            b"1",
            b"-",
            b".5",
        ]
        + [b"true", b"NaN", b" ", b"\r", b"\xff", b"\xc3\xa9", b"\\u00e9", b"\\ud800", b"e", b"0", b'{"a":1', b"\x00"]
    ),
    max_size=12,
).map(b"".join)
LINES = st.lists(st.one_of(st.sampled_from(GOOD), st.sampled_from([*BAD]), JSONISH), max_size=12)


def alone(line: bytes) -> tuple[list[Any], list[str]]:
    table, bad = parse(line, SCHEMA)
    return [repr(row) for row in table.to_pylist()], [one.reason for one in bad]  # NaN is not equal to itself


@settings(max_examples=150, deadline=None)
@given(LINES, st.randoms(use_true_random=False))
def test_a_line_is_judged_the_same_among_any_neighbours(lines: list[bytes], chance: random.Random) -> None:
    verdicts = [alone(line) for line in lines]
    order = list(range(len(lines)))
    chance.shuffle(order)
    cuts = sorted(chance.sample(range(len(lines) + 1), min(2, len(lines))))
    for block in (order, *(order[a:b] for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True))):
        data = b"".join(lines[i] + b"\n" for i in block)
        table, bad = parse(data, SCHEMA)
        assert [repr(row) for row in table.to_pylist()] == [row for i in block for row in verdicts[i][0]]
        assert [one.reason for one in bad] == [reason for i in block for reason in verdicts[i][1]]
        assert [one.line for one in bad] == [lines[i] for i in block if verdicts[i][1]]
        assert all(data[one.at :].startswith(one.line + b"\n") for one in bad)
        # A value of Kafka is judged as a line is, but that none is no record.
        table, wrong = parse_each([lines[i] for i in block], SCHEMA, of=OF_LINE)
        assert [repr(row) for row in table.to_pylist()] == [row for i in block for row in verdicts[i][0]]
        assert list(wrong.values()) == [(verdicts[i][1] or ["no value"])[0] for i in block if not verdicts[i][0]]


@settings(max_examples=300, deadline=None)
@given(
    JSONISH
    | st.recursive(
        st.none() | st.integers() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    ).map(lambda x: json.dumps({"a": 1, "b": x}).encode())
)
def test_what_is_json_is_as_python_says(text: bytes) -> None:
    """The grammar, against a parser of others."""
    try:
        found = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        found = None
    names = pa.schema([("zz", pa.null())])
    table, wrong = parse_each([text], names)
    is_surrogate = bool(wrong) and "surrogate" in wrong[0]
    assert (table.num_rows == 1) == (isinstance(found, dict) and not is_surrogate and "zz" not in found)


TYPES: list[tuple[pa.DataType, str, Any]] = [
    (pa.int8(), "-128", -128),
    (pa.int8(), "128", None),
    (pa.uint64(), "18446744073709551615", 2**64 - 1),
    (pa.uint64(), "18446744073709551616", None),
    (pa.uint8(), "-1", None),
    (pa.int64(), "1e3", None),
    (pa.float64(), "5", 5.0),
    (pa.float64(), '"Infinity"', float("inf")),
    (pa.float64(), '"x"', None),
    (pa.float32(), "1e39", None),
    (pa.float16(), "65520", None),
    (pa.bool_(), "true", True),
    (pa.bool_(), '"true"', None),
    (pa.bool_(), "1", None),
    (pa.string(), "true", None),
    (pa.decimal128(10, 2), "12.34", Decimal("12.34")),
    (pa.decimal128(10, 2), '"12.340"', Decimal("12.34")),
    (pa.decimal128(10, 2), "1.5e2", Decimal("150.00")),
    (pa.decimal128(10, 2), "12.345", None),
    (pa.decimal128(10, 2), "123456789", None),
    (pa.decimal128(10, 2), '""', None),
    (pa.decimal128(10, 2), '"1e-999999999999"', None),
    (pa.decimal128(10, 2), '"-0e99999999999"', Decimal("0.00")),
    (pa.binary(), '"AP8="', b"\x00\xff"),
    (pa.binary(), '"AP8"', None),
    (pa.binary(), '"AP8\\u003d"', b"\x00\xff"),
    (pa.binary(2), '"AP8="', b"\x00\xff"),
    (pa.binary(3), '"AP8="', None),
    (pa.map_(pa.int32(), pa.bool_()), '{"5":true}', [(5, True)]),
    (pa.map_(pa.int32(), pa.bool_()), '{"x":true}', None),
    (pa.list_(pa.int8(), 2), "[1,2]", [1, 2]),
    (pa.list_(pa.int8(), 2), "[1]", None),
    (pa.dictionary(pa.int32(), pa.string()), '"x"', "x"),
    (pa.list_(pa.field("item", pa.int8(), nullable=False)), "[null]", None),
]


@pytest.mark.parametrize(("type_", "text", "value"), TYPES)
def test_what_a_column_takes(type_: pa.DataType, text: str, value: Any) -> None:
    table, bad = parse(b'{"c":%s}' % text.encode(), pa.schema([("c", type_)]))
    assert table.to_pylist() == ([] if value is None else [{"c": value}]) and len(bad) == (value is None)


MS = 1_710_037_800_123
TIMES: list[tuple[pa.DataType, str, int | None]] = [
    (pa.timestamp("ms"), '"2024-03-10T02:30:00.123456+00:00"', MS),  # isoformat() of Python
    (pa.timestamp("ms", "UTC"), '"2024-03-10 02:30:00.123999999999Z"', MS),
    (pa.timestamp("ms", "America/New_York"), '"2024-03-10T04:30:00.123+02"', MS),
    (pa.timestamp("us"), '"2024-03-10T02:30:00.1234567Z"', MS * 1000 + 456),
    (pa.timestamp("ns"), '"2024-03-10T02:30:00.123456789"', MS * 10**6 + 456789),
    (pa.timestamp("s"), '"1969-12-31T23:59:59.9"', -1),
    (pa.timestamp("s"), '"2024-03-10"', 1_710_028_800),
    (pa.timestamp("s"), '"2024-03-10T02:30Z"', MS // 1000),
    (pa.timestamp("s"), '"9999-12-31T23:59:59-12:00"', 253_402_343_999),
    (pa.timestamp("s"), '"0001-01-01T00:00:00+14:00"', -62_135_647_200),
    (pa.timestamp("ns"), '"9999-12-31T23:59:59Z"', None),
    (pa.timestamp("s"), '"2023-02-29"', None),
    (pa.timestamp("s"), '"2024-03-10T24:00:00"', None),
    (pa.timestamp("s"), '"2024-03-10T02:30:60Z"', None),
    (pa.timestamp("s"), '"2024-03-10T02:30:00+2"', None),
    (pa.timestamp("s"), '""', None),
    (pa.timestamp("s"), "1710037800", None),
    (pa.date32(), '"1969-12-31"', -1),
    (pa.date32(), "19000", 19_000),
    (pa.date64(), '"1970-01-02"', 86_400_000),
    (pa.date32(), '"1970-01-02T00:00:00"', None),
    (pa.time32("ms"), '"23:59:59.9999"', 86_399_999),
    (pa.time64("us"), '"12:00"', 43_200_000_000),
    (pa.time32("s"), '"24:00:00"', None),
    (pa.duration("ms"), '"PT1.5S"', 1_500),
    (pa.duration("ms"), '"-P1DT2H3M4.0005S"', -93_784_001),
    (pa.duration("ms"), "-7", -7),
    (pa.duration("ms"), '"1 day"', None),
    (pa.duration("ns"), '"P200000DT1S"', None),
]


@pytest.mark.parametrize(("type_", "text", "value"), TIMES)
def test_what_a_column_of_times_takes(type_: pa.DataType, text: str, value: int | None) -> None:
    table, bad = parse(b'{"c":%s}' % text.encode(), pa.schema([("c", type_)]))
    width = pa.int32() if type_.bit_width == 32 else pa.int64()
    made = [] if not table.num_rows else table.column("c").combine_chunks().view(width).to_pylist()
    assert made == ([] if value is None else [value]) and len(bad) == (value is None)


@pytest.mark.parametrize(
    ("unit", "text", "value"),
    [
        ("s", "1710037800.123999", MS),
        ("s", "1710037800", MS - 123),
        ("ms", "1710037800123", MS),
        ("us", "1710037800123999", MS),
        ("ns", "1710037800123999999", MS),
        ("ms", "-0.5", -1),
        ("us", "-1", -1),
        ("s", '"2024-03-10T02:30:00.123Z"', MS),
        ("s", "99999999999999999999", None),
        ("s", "1e9", None),
    ],
)
def test_numbers_are_times_where_their_unit_is_declared(unit: str, text: str, value: int | None) -> None:
    schema = pa.schema([("c", pa.list_(pa.timestamp("ms", "UTC"))), ("d", pa.timestamp("ms"))])
    epochs = checked("json_files", schema, {"c": unit})
    table, bad = parse(b'{"c":[%s]}' % text.encode(), schema, epochs)
    assert [row[0].value for row in table.column("c")] == ([] if value is None else [value]) and len(bad) == (
        value is None
    )
    assert "epoch=" in parse(b'{"d":%s}' % b"1", schema, epochs)[1][0].reason


@pytest.mark.parametrize(
    ("type_", "epoch", "words"),
    [
        (pa.map_(pa.list_(pa.int8()), pa.int8()), None, "column 'c' is map<list<item: int8>, int8>, but names"),
        (pa.struct([("x", pa.list_(pa.month_day_nano_interval()))]), None, "column 'c.x"),
        (pa.list_view(pa.int8()), None, "not supported in JSON"),
        (pa.dictionary(pa.int8(), pa.string()), None, "int32"),
        (pa.struct([("x", pa.int8()), ("x", pa.int8())]), None, "'x' is the name of two"),
        (pa.run_end_encoded(pa.int32(), pa.int8()), None, "not supported in JSON"),
        (pa.int64(), {"c": "ms"}, "not a timestamp"),
        (pa.timestamp("ms"), {"c": "min"}, "s, ms, us, ns"),
        (pa.timestamp("ms"), {"d": "s"}, "give a column"),
    ],
)
def test_what_no_value_can_be_is_refused_at_the_start(type_: pa.DataType, epoch: Any, words: str) -> None:
    with pytest.raises(SpecRefused, match=r"^json_files: ") as refused:
        checked("json_files", pa.schema([("c", type_)]), epoch)
    assert words in str(refused.value)


def test_large_inputs_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferry.connectors.formats.json_lines.PIECE_BYTES", 64)
    monkeypatch.setattr("ferry.connectors.formats.json_lines.TEXT_MAX", 100)
    lines = [b'{"a":%d}' % i for i in range(50)] + [b"null", b'{"a":1,"b":"' + b"x" * 100 + b'"}']
    table, bad = parse(b"\n".join(lines), SCHEMA)
    assert table.column("a").to_pylist() == [*range(50)] and [one.line for one in bad] == lines[50:]
    assert [one.reason for one in bad] == ["not a JSON object", "longer than 100 bytes"]
    assert [one.at for one in bad] == [len(b"\n".join(lines[:i])) + 1 for i in (50, 51)]
    assert parse_each([None, b""], SCHEMA)[1] == {0: "no value", 1: "no value"}
    assert np.array(parse(b"", pa.schema([]))[0].num_rows) == 0 and parse(b"{}\n{}", pa.schema([]))[0].num_rows == 2
