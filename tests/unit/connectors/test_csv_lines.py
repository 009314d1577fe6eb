"""Lines of CSV as records: one verdict for each, whatever stands beside it, and what each type of a column takes."""

from __future__ import annotations

import csv
import gzip
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ferry
from ferry.connectors.files import line_files
from ferry.connectors.formats.csv_lines import CsvFields, CsvShape
from ferry.connectors.formats.json_lines import BadLine
from ferry.connectors.splits import Malformed
from ferry.contract.errors import SpecRefused
from tests.unit.connectors.test_files import smallest, take, values, write_lines

SCHEMA = pa.schema([pa.field("a", pa.int64(), nullable=False), ("s", pa.string()), ("f", pa.float64())])


def parse(
    data: bytes, schema: pa.Schema = SCHEMA, names: Sequence[str] = (), **more: Any
) -> tuple[pa.Table, list[BadLine]]:
    shape = CsvShape(more.pop("delimiter", ","), more.pop("null", ""))
    return CsvFields(shape, schema, tuple(more.get("epoch", {}).items()), names or schema.names).parse(data)


GOOD = {
    b"1,x,2.5": (1, "x", 2.5),
    b"1,,": (1, None, None),
    b'1,"",': (1, "", None),
    b'"1","x, ""y""\r","-1e3"': (1, 'x, "y"\r', -1000.0),
    b" +007 , x ,\t.5": (7, " x ", 0.5),
    b"-0,x,Infinity\r": (0, "x", float("inf")),
    "1,é\u2028,1".encode(): (1, "é\u2028", 1.0),
    b"1,\xef\xbb\xbfx,1": (1, "\ufeffx", 1.0),
    b"1,a\x00b\x0c,1": (1, "a\0b\x0c", 1.0),
}
BAD = {
    b"1,x": "2 fields; 3 are needed",
    b"1,x,2,": "4 fields; 3 are needed",
    b'1,"x",2,",",': "5 fields; 3 are needed",
    b"null": "1 fields",
    b" ": "1 fields",
    b'1,"x,2': "a quote that is not closed",
    b'1,x"y,2': "a quote that is not closed in its line, or not doubled",
    b'1,"x"y,2': "a quote",
    b'1,"x""y,2': "a quote",
    b'1, "x",2': "a quote",
    b"1,x\ry,2": "a carriage return within the line",
    b"1,x,2\r\r": "a carriage return within the line",
    b"1,\xff,2": "not UTF-8",
    b",x,2": "field 'a' is empty, and must not be null",
    b'"",x,2': "field 'a': '' does not fit int64",
    b"1.0,x,2": "field 'a': '1.0' does not fit int64",
    b"1 2,x,2": "field 'a': '1 2' does not fit int64",
    b"+-1,x,2": "does not fit int64",
    b"9223372036854775808,x,2": "does not fit int64",
    b"x" * 100 + b",x,2": "...' does not fit int64",
    b"\xef\xbb\xbf1,x,2": "does not fit int64",
    b"1,x,1e400": "field 'f': '1e400' does not fit double",
    b'1,x,"1,5"': "field 'f': '1,5' does not fit double",
}


@pytest.mark.parametrize("line", GOOD)
def test_a_good_line_is_a_record(line: bytes) -> None:
    table, bad = parse(line + b"\n")
    assert (table.to_pylist(), bad) == ([dict(zip("asf", GOOD[line], strict=True))], [])
    table.validate(full=True)


@pytest.mark.parametrize("line", BAD)
def test_a_bad_line_is_set_aside_with_its_reason(line: bytes) -> None:
    table, ((at, bad, reason),) = parse(b"\n\r\n" + line + b"\n")
    assert (table.num_rows, at, bad) == (0, 3, line) and BAD[line] in reason, reason
    assert len(reason) < 200


CSVISH = st.lists(
    st.sampled_from([b",", b",", b'"', b'""', b"1", b"x", b"\r", b" ", b"\xff", b"\xc3\xa9", b"\xef\xbb\xbf", b"\x00", b"-", b"."]),
    max_size=10,
).map(b"".join)  # fmt: skip
LINES = st.lists(st.one_of(st.sampled_from([*GOOD]), st.sampled_from([*BAD]), CSVISH), max_size=12)


def alone(line: bytes) -> tuple[list[Any], list[str]]:
    table, bad = parse(line)
    return [repr(row) for row in table.to_pylist()], [one.reason for one in bad]


@settings(max_examples=300, deadline=None)
@given(LINES, st.randoms(use_true_random=False), st.booleans())
def test_a_line_is_judged_the_same_among_any_neighbours(lines: list[bytes], chance: random.Random, ends: bool) -> None:
    verdicts = [alone(line) for line in lines]
    order = list(range(len(lines)))
    chance.shuffle(order)
    cuts = sorted(chance.sample(range(len(lines) + 1), min(2, len(lines))))
    for block in (order, *(order[a:b] for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True))):
        data = b"\n".join(lines[i] for i in block) + b"\n" * (ends and bool(block))
        table, bad = parse(data)
        assert [repr(row) for row in table.to_pylist()] == [row for i in block for row in verdicts[i][0]]
        assert [one.reason for one in bad] == [reason for i in block for reason in verdicts[i][1]]
        assert [one.line for one in bad] == [lines[i] for i in block if verdicts[i][1]]
        assert all(data[one.at :].startswith(one.line) for one in bad)


TEXTS = pa.schema([("0", pa.string()), ("1", pa.string()), ("2", pa.string())])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(st.sampled_from('ab",; é\r\0'), max_size=6), min_size=3, max_size=3))
def test_fields_are_those_that_others_write(fields: list[str]) -> None:
    class Kept:
        text = ""

        def write(self, line: str) -> None:
            self.text += line

    for delimiter in ",;":
        style = csv.QUOTE_ALL if "\r" in "".join(fields) else csv.QUOTE_MINIMAL
        csv.writer(kept := Kept(), delimiter=delimiter, lineterminator="\n", quoting=style).writerow(fields)
        table, bad = parse(kept.text.encode(), TEXTS, delimiter=delimiter)
        assert not bad and list(table.to_pylist()[0].values()) == [
            one or (None if style == csv.QUOTE_MINIMAL else "") for one in fields
        ]


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (pa.bool_(), "TRUE", True),
        (pa.bool_(), "False", False),
        (pa.bool_(), "1", None),
        (pa.uint8(), "0255", 255),
        (pa.uint8(), "256", None),
        (pa.float32(), "-.25", -0.25),
        (pa.float64(), "NaN", "nan"),
        (pa.decimal128(6, 2), "+0012.5", Decimal("12.50")),
        (pa.decimal128(6, 2), "12.505", None),
        (pa.large_string(), " x ", " x "),
        (pa.string_view(), "x", "x"),
        (pa.dictionary(pa.int32(), pa.string()), "12", "12"),
        (pa.dictionary(pa.int32(), pa.int64()), "12", 12),
        (pa.binary(), "aGk=", b"hi"),
        (pa.binary(), "1234", b"\xd7m\xf8"),
        (pa.binary(), "hi", None),
        (pa.date32(), "0001-01-01", date(1, 1, 1)),
        (pa.date32(), " 2024-03-10 ", date(2024, 3, 10)),
        (pa.time32("s"), "02:30:00", time(2, 30)),
        (pa.timestamp("ms", "UTC"), "2024-03-10T02:30:00.0005+01:00", datetime(2024, 3, 10, 1, 30, tzinfo=UTC)),
        (pa.timestamp("ms"), "1500", None),
    ],
    ids=str,
)
def test_what_a_column_takes(type_: pa.DataType, text: str, value: Any) -> None:
    schema = pa.schema([("c", type_), ("d", pa.string())])
    table, bad = parse(f"{text},\n".encode(), schema)
    table.validate(full=True)
    found = [repr(row) if value == "nan" else row for row in table["c"].to_pylist()]
    assert found == ([] if value is None else [value]) and bool(bad) == (value is None), bad


def test_numbers_are_times_where_their_unit_is_declared_and_a_text_stands_for_null() -> None:
    schema = pa.schema([("t", pa.timestamp("ms")), ("s", pa.string()), ("n", pa.int64())])
    table, bad = parse(b'1500;NA;NA\nNA;"NA";1\n;;\n', schema, delimiter=";", null="NA", epoch={"t": "s"})
    assert not bad and table["s"].to_pylist() == [None, "NA", None] and table["n"].to_pylist() == [None, 1, None]
    assert table["t"].to_pylist() == [datetime(1970, 1, 1, 0, 25), None, None]
    _, ((_, _, reason),) = parse(b"1500,,\n", schema)
    assert reason.endswith('does not fit timestamp[ms]: a number needs its unit, epoch={"t": "ms"}')


# ---- files
HEAD = b'\xef\xbb\xbff,more,"a", s \r'


def test_a_header_says_where_columns_are_in_each_file(tmp_path: Path) -> None:
    write_lines(tmp_path, "1.csv", 1, [HEAD, b"2.5,x,1,y", b"oops", b"", b",,2,"])
    write_lines(tmp_path, "2.csv", 2, [b"a,s,f", b"3,z,1"])
    write_lines(tmp_path, "3.csv", 3, [])
    (tmp_path / "4.csv").write_bytes(gzip.compress(b"s,a,f\nq,4,\nbad\n"))
    source = ferry.csv_files(tmp_path, SCHEMA)
    found = list(take(source, source.start(), source.latest(source.start(), 100), tasks=1))
    rows = [tuple(row.values()) for one in found if isinstance(one, pa.RecordBatch) for row in one.to_pylist()]
    assert sorted(rows) == [(1, "y", 2.5), (2, None, None), (3, "z", 1.0), (4, "q", None)]
    reasons = sorted(reason for one in found if isinstance(one, Malformed) for reason in one.reasons)
    assert reasons == [
        f"1.csv, line at byte {len(HEAD) + 11}: 1 fields; 4 are needed",
        "4.csv, line at byte 11 of the unpacked file: 1 fields; 3 are needed",
    ]


def test_folders_name_columns_that_lines_do_not_have(tmp_path: Path) -> None:
    (tmp_path / "day=2024-01-02").mkdir()
    write_lines(tmp_path / "day=2024-01-02", "f", 1, [b"a,s,f", b"5,,"])
    source = ferry.csv_files(tmp_path, schema := pa.schema([("day", pa.date32()), *SCHEMA]))
    (batch,) = take(source, source.start(), source.latest(source.start(), 100))
    assert batch.schema == schema and batch.to_pylist() == [{"day": date(2024, 1, 2), "a": 5, "s": None, "f": None}]


def test_without_a_header_fields_are_the_columns(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbf1\tx\t2\n2\ty\t\nz\t\t")
    source = ferry.csv_files(tmp_path, SCHEMA, header=False, delimiter="\t")
    *_, bad = found = list(take(source, source.start(), source.latest(source.start(), 100), columns=["a"]))
    assert values(iter(found)) == [1, 2] and found[0].schema.names == ["a"]
    assert bad.reasons == ["f, line at byte 14: field 'a': 'z' does not fit int64"]


def test_a_line_is_read_once_wherever_files_and_blocks_are_cut(tmp_path: Path, monkeypatch: Any) -> None:
    lines = [b'%d,"%s",' % (i, b"x," * (i % 17)) for i in range(200)]
    for block in (1, 7, 20, 64, 1000):
        monkeypatch.setattr(line_files, "JSON_SHARE_BYTES", 3 * block + 1)
        monkeypatch.setattr(line_files, "JSON_BLOCK_BYTES", block)
        write_lines(tmp_path, "f", 1, [b"a,s,f", *lines])
        source = ferry.csv_files(tmp_path, SCHEMA)
        stop = source.latest(source.start(), 10**6)
        assert values(take(source, source.start(), stop, tasks=50)) == list(range(200))
    (split, *_) = source.plan(source.start(), stop, 1)
    units = [one for piece in split["pieces"] for one in smallest(source, {"pieces": [piece]})]
    assert [len(values(source.read(one))) for one in units] == [0] + [1] * 200, "the header is of no record"


@pytest.mark.parametrize(
    ("data", "more", "words"),
    [
        (
            b"a,f\n1,2\n",
            {},
            "/f cannot be read: its first line names no column 's'; it names a, f; give header=False if",
        ),
        (b"a,s,a,f\n", {}, "names column 'a' twice"),
        (b"\n1,x,2\n", {}, "names no columns"),
        ("a,s,f\n".encode("utf-16"), {}, "the file is UTF-16: write it as UTF-8$"),
        (b"a,s,f\r1,x,2\r", {}, "lines end with a carriage return alone: end them with a line feed$"),
        ("a,s,f\r\n".encode("utf-16"), {}, "the file is UTF-16: write it as UTF-8$"),
        (b"", {"delimiter": ";;"}, "delimiter=';;'; give one character of ASCII"),
        (b"", {"delimiter": "é"}, "delimiter='é'"),
        (b"", {"delimiter": '"'}, "delimiter="),
        (b"", {"header": "a,b"}, "header='a,b'; it is True or False"),
        (b"", {"null": None}, "null=None"),
        (b"", {"epoch": {"s": "ms"}}, "the column is string, not a timestamp"),
        (
            b"",
            {"schema": pa.schema([("l", pa.list_(pa.int64()))])},
            "column 'l' is list.*a field of CSV is a plain value",
        ),
        (b"", {"schema": {"a": "int"}}, "give a pyarrow.schema"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_refused_when_the_job_begins(data: bytes, more: Any, words: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(SpecRefused, match=words):
        source = ferry.csv_files(tmp_path, more.pop("schema", SCHEMA), **more)
        source.latest(source.start(), 10)


def test_a_file_with_another_header_waits_in_a_job_that_has_begun(tmp_path: Path) -> None:
    write_lines(tmp_path, "f", 1, [b"a,s,f", b"1,x,2"])
    source = ferry.csv_files(tmp_path, SCHEMA)
    stop = source.latest(source.start(), 10)
    write_lines(tmp_path, "g", 2, [b"a;s;f", b"1;x;2"])
    assert source.latest(stop, 10) == stop and "its first line names no column 'a'" in source.problems[0]
