"""Sets of values as bytes: the state of an exact count of distinct values.

A set is its values concatenated, in no fixed order: of 8 or 16 bytes, or texts prefixed with their lengths, uint32.
State contains these bytes, so the bytes of a value never change.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numba import njit

from ferry.kernels import values
from ferry.kernels.columns import binary, binary_array, hashable, is_text, same_floats
from ferry.kernels.grouping import Ints

SET_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of one set: two million numbers. An epoch that adds to a set sends the whole set."""


class TooManyValues(OverflowError):
    """A set is larger than SET_BYTES_MAX; `row` is its row."""

    def __init__(self, row: int) -> None:
        super().__init__(f"more than {SET_BYTES_MAX >> 20} MiB of distinct values")
        self.row = row


def element_type(kind: pa.DataType) -> pa.DataType:
    """The type in which values of this type are compared: int64, or binary, of 16 bytes for decimals."""
    assert hashable(kind), kind
    if pa.types.is_dictionary(kind):
        return element_type(kind.value_type)
    if pa.types.is_decimal(kind):
        return pa.binary(16)
    numbers = values.value_type(kind) not in (None, *values.TEXTS) or pa.types.is_date(kind)
    return pa.int64() if numbers else pa.binary()


def elements(column: pa.Array) -> pa.Array:
    """Values in the form in which they are compared: -0.0 becomes 0.0, and all NaN become one. Nulls stay."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return elements(column.dictionary_decode())
    if pa.types.is_floating(kind):
        return same_floats(column.cast(pa.float64())).view(pa.int64())
    if pa.types.is_decimal(kind):
        wide = column.cast(pa.decimal128(values.DIGITS_MAX, kind.scale))
        return pa.Array.from_buffers(pa.binary(16), len(wide), wide.buffers(), wide.null_count, wide.offset)
    if element_type(kind) == pa.binary():
        return column.cast(pa.binary())
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    return column.cast(pa.int64(), safe=False)


def united(elements_: pa.Array, group: Ints, groups: int) -> pa.Array:
    """A set for each group, of elements and their groups. Raises TooManyValues."""
    if elements_.null_count:
        valid = elements_.is_valid()
        elements_, group = elements_.filter(valid), group[valid.to_numpy(zero_copy_only=False)]
    codes = elements_.dictionary_encode()
    words = max(1, len(codes.dictionary))
    once = np.unique(group * words + codes.indices.to_numpy(zero_copy_only=False))
    begins = np.searchsorted(once, np.arange(groups + 1) * words)
    taken = codes.dictionary.take(pa.array(once % words))
    if is_text(taken.type):
        offsets, data = binary(taken)
        ends, packed = _packed(np.ascontiguousarray(offsets), data)
    else:
        width = taken.type.bit_width // 8
        ends = np.arange(len(taken) + 1) * width
        packed = np.frombuffer(taken.buffers()[1], np.uint8, len(taken) * width, taken.offset * width)
    sets = ends[begins]
    if (too_many := np.diff(sets) > SET_BYTES_MAX).any():
        raise TooManyValues(int(too_many.argmax()))
    return binary_array(sets, packed, pa.binary())


def values_of(sets: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Ints]:
    """Inverse of `united`: elements of this type, and the group of each."""
    offsets, data = binary(sets)
    offsets = np.ascontiguousarray(offsets)
    if is_text(kind):
        sizes, ends, unpacked = _unpacked(offsets, data)
        unpacked_values = binary_array(ends, unpacked, kind)
    else:
        width = kind.bit_width // 8
        sizes = np.diff(offsets) // width
        data = np.ascontiguousarray(data[offsets[0] : offsets[-1]])
        unpacked_values = pa.Array.from_buffers(kind, int(sizes.sum()), [None, pa.py_buffer(data)])
    return unpacked_values, np.repeat(np.arange(sizes.size), sizes)


def sizes(sets: pa.Array, kind: pa.DataType) -> Ints:
    """Number of values of each."""
    if not is_text(kind):
        found: Ints = np.diff(binary(sets)[0]) // (kind.bit_width // 8)
        return found
    return np.bincount(values_of(sets, kind)[1], minlength=len(sets)).astype(np.int64)


@njit(cache=True, nogil=True)
def _packed(offsets, data):  # type: ignore[no-untyped-def]
    """Texts prefixed with their lengths: (end of each, bytes)."""
    count = offsets.size - 1
    ends = np.empty(count + 1, np.int64)
    ends[0] = 0
    for i in range(count):
        ends[i + 1] = ends[i] + 4 + offsets[i + 1] - offsets[i]
    out = np.empty(ends[count], np.uint8)
    for i in range(count):
        at, size = ends[i], offsets[i + 1] - offsets[i]
        for byte in range(4):
            out[at + byte] = (size >> (8 * byte)) & 255
        out[at + 4 : at + 4 + size] = data[offsets[i] : offsets[i + 1]]
    return ends, out


@njit(cache=True, nogil=True)
def _unpacked(offsets, data):  # type: ignore[no-untyped-def]
    """Inverse: (number of texts of each set, their ends, bytes)."""
    sizes = np.zeros(offsets.size - 1, np.int64)
    for group in range(sizes.size):
        at = offsets[group]
        while at < offsets[group + 1]:
            at += 4 + _length(data, at)
            sizes[group] += 1
    ends = np.zeros(sizes.sum() + 1, np.int64)
    out = np.empty(offsets[-1] - offsets[0] - 4 * (ends.size - 1), np.uint8)
    at = offsets[0]
    for i in range(ends.size - 1):
        size = _length(data, at)
        ends[i + 1] = ends[i] + size
        out[ends[i] : ends[i + 1]] = data[at + 4 : at + 4 + size]
        at += 4 + size
    return sizes, ends, out


@njit(cache=True, nogil=True)
def _length(data, at):  # type: ignore[no-untyped-def]
    return (
        np.int64(data[at]) | np.int64(data[at + 1]) << 8 | np.int64(data[at + 2]) << 16 | np.int64(data[at + 3]) << 24
    )
