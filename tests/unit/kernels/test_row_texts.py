"""Texts and digests of rows: equal for equal rows, whatever the columns and the batches."""

from __future__ import annotations

import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from ferry.kernels.row_texts import digests, texts

EVERY = {
    "i": [1, None, 1], "f": [0.1, float("nan"), 0.1], "s": ["ä", "", "ä"], "b": [b"\xff", None, b"\xff"],
    "d": [Decimal("1.20"), None, Decimal("1.20")], "t": [datetime.datetime(2026, 1, 2), None, datetime.datetime(2026, 1, 2)],
    "l": [[1, None], [], [1, None]], "m": [{"a": 1}, None, {"a": 1}], "y": [True, False, True],
}  # fmt: skip


def test_equal_rows_have_equal_texts_and_digests() -> None:
    table = pa.table(EVERY)
    first, second, third = texts(table).to_pylist()
    assert first == third != second and first.startswith("i=1, f=0.1, s=ä, b=") and "i=null" in second
    one, other, same = digests(table)
    assert one == same != other


@pytest.mark.parametrize("name", [*EVERY])
def test_each_column_counts(name: str) -> None:
    table = pa.table(EVERY).slice(0, 1)
    at = table.schema.names.index(name)
    other = table.set_column(at, name, pa.nulls(1, table.column(name).type))
    assert digests(table)[0] != digests(other)[0]


def test_a_text_is_neither_null_nor_another_column() -> None:
    rows = pa.table({"a": ["null", None, "x, b=y", "x"], "b": ["", "", "", "y, b="]})
    assert len({*digests(rows).tolist()}) == 4


def test_batches_and_slices_make_no_difference() -> None:
    table = pa.table({"k": [*range(100)], "s": [f"{n}" * n for n in range(100)]})
    pieces = pa.Table.from_batches(table.to_batches(max_chunksize=7))
    assert np.array_equal(digests(table), digests(pieces)) and len({*digests(table).tolist()}) == 100
    assert np.array_equal(digests(table.slice(10, 5)), digests(table)[10:15])
    assert len(digests(table.slice(0, 0))) == 0 and texts(pa.table({})).to_pylist() == []


def test_a_column_of_another_name_or_type_is_another_one() -> None:
    first = pa.table({"a": [1]})
    assert len({int(digests(one)[0]) for one in (first, pa.table({"b": [1]}), pa.table({"a": ["1"]}))}) == 3
    larger = pa.table({"a": pa.array(["x"], pa.large_string())})
    assert digests(larger)[0] == digests(pa.table({"a": ["x"]}))[0]


def test_bytes_have_the_same_text_whatever_stands_beside_them() -> None:
    alone, beside = pa.table({"b": [b"ok"]}), pa.table({"b": [b"ok", b"\xff"]})
    assert digests(alone)[0] == digests(beside)[0]
