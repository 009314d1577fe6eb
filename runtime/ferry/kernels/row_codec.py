"""Rows of Arrow columns as bytes, and back: keys that are not one integer, and values of keyed state.

Fixed for ever: the bytes are hashed, written to disk and sent between versions, and the test vectors must never change.
A row is its elements concatenated, in order. An element is a tag and its value, little endian: of a fixed width, or
uint32 length and bytes; a null is the tag 0 alone. Rows are equal exactly if their bytes are; floats count as equal
here if their bits are.

Kinds of elements, and their tags and widths: `ferry.kernels.kinds`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ferry.kernels import elements
from ferry.kernels.columns import binary, binary_array, is_text
from ferry.kernels.grouping import Bytes, Ints
from ferry.kernels.kinds import element_of

Flags = npt.NDArray[np.bool_]
ALL_VALID: Flags = np.empty(0, np.bool_)


def encode_rows(columns: Sequence[pa.Array], kinds: Sequence[str]) -> tuple[Ints, Bytes]:
    """Rows of these columns as bytes: row i is data[offsets[i]:offsets[i + 1]] of (offsets int64[n + 1], data).

    Raises pyarrow.ArrowInvalid when a column cannot be of its kind.
    """
    rows = len(columns[0])
    lengths = np.zeros(rows, np.int64)
    parts: list[tuple[int, Flags, Bytes | tuple[Ints, Bytes]]] = []
    for column, kind in zip(columns, kinds, strict=True):
        element = element_of(kind)
        if column.type != element.type and not (element.width == 0 and is_text(column.type)):
            column = column.cast(element.type)
        valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else ALL_VALID
        values = _fixed(column, element.width) if element.width else binary(column)
        taken = 1 + element.width if isinstance(values, np.ndarray) else 5 + np.diff(values[0])
        lengths += np.where(valid, taken, 1) if valid.size else taken
        parts.append((element.tag, valid, values))
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    position, out = offsets[:-1].copy(), np.empty(offsets[-1], np.uint8)
    for tag, valid, values in parts:
        if isinstance(values, tuple):
            elements.write_bytes(*values, valid, tag, position, out)
        else:
            elements.write_fixed(values, valid, tag, position, out)
    return offsets, out


def decode_rows(offsets: Ints, data: Bytes, kinds: Sequence[str]) -> list[pa.Array]:
    """Inverse of `encode_rows`: one column per element. Raises ValueError when the rows have other kinds."""
    position = np.ascontiguousarray(offsets[:-1]).copy()
    columns = []
    for kind in kinds:
        tag, arrow, width = element_of(kind)
        if width == 0:
            text_offsets, text, valid = elements.read_bytes(data, tag, position)
            columns.append(binary_array(text_offsets, text, arrow, _bitmap(valid)))
            continue
        values, valid = elements.read_fixed(data, tag, width, position)
        buffer = _bitmap(values[:, 0], always=True) if pa.types.is_boolean(arrow) else pa.py_buffer(values)
        columns.append(pa.Array.from_buffers(arrow, len(values), [_bitmap(valid), buffer]))
    assert np.array_equal(position, offsets[1:]), "an encoded row has bytes left over: it was written for another key"
    return columns


def _fixed(column: pa.Array, width: int) -> Bytes:
    """The values of a column of fixed width, uint8[n, width]; values of nulls are arbitrary."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    rows, buffer = len(column), column.buffers()[1]
    if rows == 0 or buffer is None:
        return np.zeros((rows, width), np.uint8)
    values = np.frombuffer(buffer, np.uint8, rows * width, column.offset * width).reshape(rows, width)
    return np.require(values, np.uint8, ["C", "W"])


def _bitmap(flags: Flags | Bytes, always: bool = False) -> pa.Buffer | None:
    """A bitmap in Arrow's format; None when all flags are set, unless `always`."""
    return pa.py_buffer(np.packbits(flags, bitorder="little")) if always or not flags.all() else None
