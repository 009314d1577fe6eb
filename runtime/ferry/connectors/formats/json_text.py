"""Arrow values as texts: strict JSON at any depth, the console's lines, keys of records.

The texts come from Arrow's own values, because Python cannot represent all of them, such as a time beyond the year 9999.
Must never raise for a value.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from ferry.kernels import json_write

DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
TEXT = pa.large_string()


def json_text(rows: pa.Table | pa.RecordBatch) -> list[str]:
    """Each row as a JSON object with all columns in order."""
    texts: list[str] = []
    for batch in rows.to_batches() if isinstance(rows, pa.Table) else [rows]:
        texts += _object(batch.schema.names, batch.columns, batch.num_rows).to_pylist()
    return texts


def plain_text(column: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    """Each value as text: strings unchanged, bytes in base64, others as in JSON but without quotes."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return pa.chunked_array([_text(chunk, quote=False) for chunk in chunks], TEXT)


def shown(rows: pa.Table) -> list[str]:
    """Each row as a line such as `shop="north", n=3`."""
    columns = [
        (name, _text(column.combine_chunks())) for name, column in zip(rows.column_names, rows.columns, strict=True)
    ]
    texts = [column.fill_null("null").to_pylist() for _, column in columns]
    return [", ".join(f"{name}={text}" for (name, _), text in zip(columns, row, strict=True)) for row in zip(*texts)]


def _object(names: list[str], values: list[pa.Array], rows: int) -> pa.Array:
    """JSON objects of values by name."""
    if not values:
        return pa.array(["{}"] * rows, TEXT)
    parts: list[Any] = []
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        parts += [pa.scalar(f"{',' if i else '{'}{json.dumps(name)}:", TEXT), _text(value).fill_null("null")]
    return pc.binary_join_element_wise(*parts, pa.scalar("}", TEXT), pa.scalar("", TEXT))


def _text(column: pa.Array, quote: bool = True) -> pa.Array:
    """The JSON texts of values; null for a null. Without `quote`, strings have no quotes."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _text(column.storage, quote)
    if types.is_dictionary(kind):
        return _text(column.dictionary_decode(), quote)
    if types.is_run_end_encoded(kind):
        return _text(pc.run_end_decode(column), quote)
    if types.is_null(kind):
        return pa.nulls(len(column), TEXT)
    if types.is_boolean(kind):
        return pc.if_else(column, pa.scalar("true", TEXT), pa.scalar("false", TEXT))
    if types.is_integer(kind):
        return column.cast(TEXT)
    if types.is_floating(kind):
        return _floats(column, '"' if quote else "")
    if types.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        objects = _object(names, column.flatten(), len(column))
        return pc.if_else(column.is_valid(), objects, pa.scalar(None, TEXT)) if column.null_count else objects
    if types.is_map(kind) or _is_list(kind):
        return _nested(column)
    return _strings(column, quote)


def _strings(column: pa.Array, quote: bool) -> pa.Array:
    """The texts of values that JSON writes in quotes."""
    kind = column.type
    if types.is_string(kind) or types.is_large_string(kind) or kind == pa.string_view():
        texts = column.cast(TEXT)
        return _texts(json_write.quoted(*_heap(texts)), column) if quote else texts
    if _is_bytes(kind):
        written = json_write.base64(*_heap(column.cast(pa.binary()).cast(pa.large_binary())))
    elif types.is_decimal(kind):
        limbs = _held(column, 32).view(np.uint32).reshape(-1, kind.byte_width // 4)
        written = json_write.decimals(limbs, kind.scale)
    elif types.is_timestamp(kind):
        written = json_write.timestamps(_numbers(column), DIGITS[kind.unit], kind.tz is not None)
    elif types.is_date(kind):
        days = _numbers(column)
        written = json_write.dates(days if types.is_date32(kind) else days // 86_400_000)
    elif types.is_time(kind):
        written = json_write.clocks(_numbers(column), DIGITS[kind.unit])
    elif types.is_duration(kind):
        written = json_write.durations(_numbers(column), DIGITS[kind.unit])
    else:
        texts = pa.array([None if value is None else str(value) for value in column.to_pylist()], TEXT)
        return _text(texts, quote)
    texts = _texts(written, column)
    if not quote:
        return texts
    mark = pa.scalar('"', TEXT)
    return pc.binary_join_element_wise(mark, texts, mark, pa.scalar("", TEXT))


def _floats(column: pa.Array, mark: str) -> pa.Array:
    """The shortest digits of the same number, with a point or an exponent. NaN and infinities are words, as in Spark."""
    texts = (column.cast(pa.float32()) if column.type == pa.float16() else column).cast(TEXT)
    whole = pc.match_substring_regex(texts, r"^-?[0-9]+$")
    texts = pc.if_else(whole, pc.binary_join_element_wise(texts, pa.scalar(".0", TEXT), pa.scalar("", TEXT)), texts)
    for arrows, word in (("nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")):
        same = pc.equal(texts, arrows)
        if pc.any(same).as_py():
            texts = pc.if_else(same, pa.scalar(f"{mark}{word}{mark}", TEXT), texts)
    return texts


def _nested(column: pa.Array) -> pa.Array:
    """Lists as arrays; maps as objects with the texts of the keys as names."""
    kind = column.type
    if not len(column):
        return pa.array([], TEXT)
    if types.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        column = column.cast(pa.list_(pa.field("entries", entries)))
    counts = np.array(pc.list_value_length(column).fill_null(0), np.int64)
    # Arrow crashes on the elements of some lists of the null type.
    empty = not types.is_map(kind) and types.is_null(kind.value_type)
    elements = pa.nulls(int(counts.sum())) if empty else pc.list_flatten(column)
    if types.is_map(kind):
        keys, items = elements.flatten()
        names = _text(_text(keys, quote=False))
        texts = pc.binary_join_element_wise(names, _text(items).fill_null("null"), pa.scalar(":", TEXT))
    else:
        texts = _text(elements).fill_null("null")
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    valid = None if not column.null_count else column.is_valid().buffers()[1]
    lists = pa.Array.from_buffers(pa.large_list(TEXT), len(counts), [valid, pa.py_buffer(offsets)], children=[texts])
    opening, closing = "{}" if types.is_map(kind) else "[]"
    joined = pc.binary_join(lists, pa.scalar(",", TEXT))
    return pc.binary_join_element_wise(pa.scalar(opening, TEXT), joined, pa.scalar(closing, TEXT), pa.scalar("", TEXT))


def _is_list(kind: pa.DataType) -> bool:
    fixed = types.is_fixed_size_list(kind)
    return (
        fixed
        or types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def _is_bytes(kind: pa.DataType) -> bool:
    binary = types.is_binary(kind) or types.is_large_binary(kind) or kind == pa.binary_view()
    return binary or types.is_fixed_size_binary(kind)


def _heap(column: pa.Array) -> tuple[Any, Any]:
    """(bytes, offsets) of a text or binary column with 64-bit offsets."""
    _, offsets, data = column.buffers()
    if not len(column):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    edges = np.frombuffer(offsets, np.int64, len(column) + 1, 8 * column.offset)
    return np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8), edges


def _held(column: pa.Array, bits: int) -> Any:
    """The values of a fixed-width column, as integers of `bits` bits."""
    width = column.type.bit_width // 8
    if not len(column):
        return np.empty(0, f"i{bits // 8}")
    return np.frombuffer(column.buffers()[1], f"i{bits // 8}", len(column) * 8 * width // bits, column.offset * width)


def _numbers(column: pa.Array) -> Any:
    """The numbers of a column of dates or times, as int64."""
    return _held(column, column.type.bit_width).astype(np.int64)


def _texts(heap: tuple[Any, Any], like: pa.Array) -> pa.Array:
    """A text column from (bytes, offsets), with the nulls of `like`."""
    data, offsets = heap
    valid = like.is_valid().buffers()[1] if like.null_count else None
    return pa.Array.from_buffers(TEXT, len(like), [valid, pa.py_buffer(offsets), pa.py_buffer(data)])
