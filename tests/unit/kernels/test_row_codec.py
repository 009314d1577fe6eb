"""The encoding of rows is fixed for ever: vectors, a reference in plain Python, round trips with nulls."""

import datetime as dt
import decimal
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.contract.errors import Exhausted
from ferry.kernels import columns
from ferry.kernels.kinds import KINDS, element_of, kind_of, type_of
from ferry.kernels.row_codec import decode_rows, encode_rows

ZONES = ["timestamp[s]", "timestamp[ms, tz=Europe/Berlin]", "timestamp[us, tz=UTC]", "timestamp[ns]"]
DECIMALS = ["decimal128(12, 2)", "decimal128(38, 0)", "decimal128(5, -3)"]
ALL = [*KINDS, *ZONES, *DECIMALS]

FORMATS = {
    "int": "<q", "bool": "<?", "date": "<i", "float": "<d", "float32": "<f", "int8": "<b", "int16": "<h", "int32": "<i",
    "uint8": "<B", "uint16": "<H", "uint32": "<I", "uint64": "<Q",
}  # fmt: skip


def raw_values(kind: str) -> st.SearchStrategy[Any]:
    """Values as the reference takes them: integers for all that is counted, bits of floats among them."""
    if kind == "string":
        return st.text(max_size=12)
    if kind == "binary":
        return st.binary(max_size=12)
    if kind == "bool":
        return st.booleans()
    if kind == "float":
        return st.floats()
    if kind == "float32":
        return st.floats(width=32)
    if kind.startswith("timestamp"):
        return st.integers(-(2**63), 2**63 - 1)
    if kind.startswith("decimal"):
        return st.integers(-(10**5) + 1, 10**5 - 1) | st.sampled_from([0, 99999])
    bits = pa.array([], type_of(kind)).type.bit_width
    signed = not kind.startswith("u")
    return st.integers(-(2 ** (bits - 1)) if signed else 0, 2 ** (bits - signed) - 1)


def column(kind: str, values: list) -> pa.Array:
    """A column of raw values; None is null."""
    arrow = type_of(kind)
    if kind.startswith("timestamp"):
        return pa.array(values, pa.int64()).cast(arrow)
    if kind == "date":
        return pa.array(values, pa.int32()).cast(arrow)
    if kind.startswith("decimal"):
        exact = decimal.Context(prec=60)
        values = [None if v is None else exact.scaleb(decimal.Decimal(v), -arrow.scale) for v in values]
    return pa.array(values, arrow)


def encode(kind: str, value: Any) -> bytes:
    """The reference."""
    if value is None:
        return b"\x00"
    if kind.startswith("timestamp"):
        return b"\x06" + struct.pack("<q", value)
    if kind.startswith("decimal"):
        return b"\x07" + value.to_bytes(16, "little", signed=True)
    tag = bytes([KINDS[kind].tag])
    if kind in ("string", "binary"):
        data = value.encode() if kind == "string" else value
        return tag + struct.pack("<I", len(data)) + data
    return tag + struct.pack(FORMATS[kind], value)


def bits(array: pa.Array) -> list:
    """Values that are equal only when every bit is, also of NaN."""
    if pa.types.is_floating(array.type):
        width = np.uint32 if array.type == pa.float32() else np.uint64
        words = array.fill_null(0).to_numpy(zero_copy_only=False).view(width)
        return [int(w) if ok else None for w, ok in zip(words, array.is_valid().to_pylist(), strict=True)]
    if pa.types.is_timestamp(array.type):
        return array.cast(pa.int64()).to_pylist()
    if pa.types.is_date(array.type):
        return array.cast(pa.int32()).to_pylist()
    return array.to_pylist()


def raw_rows(kinds: list[str]) -> st.SearchStrategy[list[tuple]]:
    return st.lists(st.tuples(*(st.none() | raw_values(kind) for kind in kinds)), max_size=12)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_rows_with_nulls_come_back_exactly(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(ALL), min_size=1, max_size=5))
    rows = data.draw(raw_rows(kinds))
    skipped = data.draw(st.integers(0, 3))
    arrays = [column(kind, [None] * skipped + [r[i] for r in rows])[skipped:] for i, kind in enumerate(kinds)]
    offsets, encoded = encode_rows(arrays, kinds)
    found = [encoded[offsets[i] : offsets[i + 1]].tobytes() for i in range(len(rows))]
    assert found == [b"".join(encode(k, v) for k, v in zip(kinds, row, strict=True)) for row in rows]
    back = decode_rows(offsets, encoded, kinds)
    for got, put, kind in zip(back, arrays, kinds, strict=True):
        got.validate(full=True)
        assert got.type == type_of(kind) and bits(got) == bits(put) and got.null_count == put.null_count


def test_vectors_of_every_kind() -> None:
    rows = {
        "int": (-2, "01feffffffffffffff"), "string": ("ß", "0202000000c39f"), "binary": (b"\0a", "03020000000061"),
        "bool": (True, "0401"), "date": (19_000, "05384a0000"), "float": (-0.0, "080000000000000080"),
        "float32": (1.5, "090000c03f"), "int8": (-1, "0aff"), "int16": (258, "0b0201"), "int32": (-1, "0cffffffff"),
        "uint8": (255, "0dff"), "uint16": (65_535, "0effff"), "uint32": (1, "0f01000000"),
        "uint64": (2**64 - 1, "10ffffffffffffffff"), "timestamp[us, tz=UTC]": (1, "060100000000000000"),
        "decimal128(12, 2)": (-1, "07" + "ff" * 16),
    }  # fmt: skip
    for kind, (value, expected) in rows.items():
        _, data = encode_rows([column(kind, [value, None])], [kind])
        assert data.tobytes().hex() == expected + "00", kind
    assert {kind.partition("[")[0].partition("(")[0] for kind in rows} == {*KINDS, "timestamp", "decimal128"}
    assert len({element_of(kind).tag for kind in rows}) == len(rows)


def test_kinds_are_the_texts_of_types() -> None:
    assert all(kind_of(type_of(kind)) == kind for kind in ALL)
    for arrow in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
        assert kind_of(arrow) == "string"
    for arrow in (pa.large_binary(), pa.binary_view(), pa.binary(16)):
        assert kind_of(arrow) == "binary"
    for arrow in (pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.string()), pa.null(),
                  pa.decimal256(50, 2), pa.time64("us"), pa.float16(), pa.dictionary(pa.int8(), pa.float16())):  # fmt: skip
        assert kind_of(arrow) is None
    for text in ("list<item: int64>", "decimal128(12)", "timestamp[m]", ""):
        with pytest.raises(ValueError, match="is no kind"):
            type_of(text)


def test_texts_of_every_layout_are_encoded_alike() -> None:
    texts = ["ferry", None, "", "Hafen"]
    plain = encode_rows([pa.array(texts)], ["string"])
    for arrow in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
        found = encode_rows([pa.array(["left out", *texts]).cast(arrow)[1:]], ["string"])
        assert all(np.array_equal(a, b) for a, b in zip(plain, found, strict=True)), arrow
    tokens = pa.array([b"12", None, b"34"], pa.binary(2))
    assert decode_rows(*encode_rows([tokens], ["binary"]), ["binary"])[0].to_pylist() == [b"12", None, b"34"]


def test_a_null_hides_what_lies_under_it() -> None:
    for values in (pa.array([7, 8]), pa.array(["long", "x"]), pa.array([dt.date(2020, 1, 1)] * 2)):
        buffers = [pa.py_buffer(b"\x02"), *values.buffers()[1:]]
        hidden = pa.Array.from_buffers(values.type, 2, buffers)
        offsets, data = encode_rows([hidden], [kind_of(values.type) if values.type != pa.int64() else "int"])
        assert data[: offsets[1]].tobytes() == b"\x00" and hidden.null_count == 1


def test_sliced_columns_are_read_from_their_offset() -> None:
    text, numbers = pa.array(["x", "abc", "", "de"])[1:], pa.array([9, 1, 2, 3])[1:]
    offsets, data = encode_rows([text, numbers], ["string", "int"])
    assert [a.to_pylist() for a in decode_rows(offsets, data, ["string", "int"])] == [["abc", "", "de"], [1, 2, 3]]


def test_no_rows() -> None:
    for kind in ALL:
        (back,) = decode_rows(*encode_rows([pa.array([], type_of(kind))], [kind]), [kind])
        assert len(back) == 0 and back.type == type_of(kind)


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets, data = encode_rows([pa.array(["x"])], ["string"])
    for other in ("int", "binary", "date"):
        with pytest.raises(ValueError, match="encoded row"):
            decode_rows(offsets, data, [other])
    with pytest.raises(AssertionError, match="left over"):
        decode_rows(*encode_rows([pa.array([1]), pa.array([2])], ["int", "int"]), ["int"])
    with pytest.raises(pa.ArrowInvalid):
        encode_rows([pa.array([2**63], pa.uint64())], ["int"])
    monkeypatch.setattr(columns, "BINARY_BYTES_MAX", 3)
    with pytest.raises(Exhausted, match="smaller batches"):
        decode_rows(*encode_rows([pa.array(["four"])], ["string"]), ["string"])
