"""Writes and reads one element of many encoded rows: a tag, then bytes of a fixed width, or a length and bytes.

A null is only the tag 0. `position` is where each row continues, and is advanced; an empty `valid` means no nulls.
ferry.kernels.kinds defines the tags.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

NULL = 0


@njit(cache=True, nogil=True)
def write_fixed(values: Bytes, valid: Flags, tag: int, position: Ints, out: Bytes) -> None:
    """Write values uint8[n, width]."""
    width = values.shape[1]
    for i in range(position.size):
        p = position[i]
        if valid.size and not valid[i]:
            out[p] = NULL
            position[i] = p + 1
            continue
        out[p] = tag
        if width == 8:  # A loop of a known length compiles to one move.
            for b in range(8):
                out[p + 1 + b] = values[i, b]
        else:
            for b in range(width):
                out[p + 1 + b] = values[i, b]
        position[i] = p + 1 + width


@njit(cache=True, nogil=True)
def write_bytes(offsets: Ints, data: Bytes, valid: Flags, tag: int, position: Ints, out: Bytes) -> None:
    """Write texts: row i is data[offsets[i]:offsets[i + 1]], after its length uint32 little endian."""
    for i in range(position.size):
        p = position[i]
        if valid.size and not valid[i]:
            out[p] = NULL
            position[i] = p + 1
            continue
        begin = offsets[i]
        length = offsets[i + 1] - begin
        out[p] = tag
        for b in range(4):
            out[p + 1 + b] = np.uint8((length >> (8 * b)) & 255)
        into, text = out[p + 5 : p + 5 + length], data[begin : begin + length]
        for q in range(length):
            into[q] = text[q]
        position[i] = p + 5 + length


@njit(cache=True, nogil=True)
def read_fixed(data: Bytes, tag: int, width: int, position: Ints) -> tuple[Bytes, Flags]:
    """Inverse of `write_fixed`: values, 0 for a null, and the flags of non-nulls; another tag raises ValueError."""
    values = np.zeros((position.size, width), np.uint8)
    valid = np.ones(position.size, np.bool_)
    for i in range(position.size):
        p = position[i]
        if data[p] == NULL:
            valid[i] = False
            position[i] = p + 1
            continue
        if data[p] != tag:
            raise ValueError("encoded row: an element of another type was expected")
        if width == 8:
            for b in range(8):
                values[i, b] = data[p + 1 + b]
        else:
            for b in range(width):
                values[i, b] = data[p + 1 + b]
        position[i] = p + 1 + width
    return values, valid


@njit(cache=True, nogil=True)
def read_bytes(data: Bytes, tag: int, position: Ints) -> tuple[Ints, Bytes, Flags]:
    """Inverse of `write_bytes`: (offsets int64[n + 1], bytes), and the flags of non-nulls; another tag raises
    ValueError."""
    rows = position.size
    offsets = np.zeros(rows + 1, np.int64)
    valid = np.ones(rows, np.bool_)
    for i in range(rows):
        p = position[i]
        length = np.int64(0)
        if data[p] == NULL:
            valid[i] = False
        elif data[p] != tag:
            raise ValueError("encoded row: an element of another type was expected")
        else:
            for b in range(4):
                length |= np.int64(data[p + 1 + b]) << (8 * b)
        offsets[i + 1] = offsets[i] + length
    out = np.empty(offsets[rows], np.uint8)
    for i in range(rows):
        p, o = position[i] + 5, offsets[i]
        length = offsets[i + 1] - o
        into, text = out[o : o + length], data[p : p + length]
        for q in range(length):
            into[q] = text[q]
        position[i] = p + length if valid[i] else p - 4
    return offsets, out, valid
