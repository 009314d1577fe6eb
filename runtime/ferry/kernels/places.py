"""Places of entries: byte strings that sort by hash, key, table and entry, in which a store keeps them in order.

    hash, 8 bytes big endian | length of the key, 2 bytes big endian | key | table, 1 byte | entry

Entries of a table are ordered by their bytes: integers are written big endian with the sign flipped. A key or entry of
CUT_BYTES or more is cut to that length, its end replaced by a digest of the whole, so that a place is never longer than
PLACE_BYTES_MAX; the value is then prefixed with the whole (`with_wholes`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import pyarrow as pa
from numba import njit

from ferry.kernels.columns import binary
from ferry.kernels.grouping import NO_BYTES, Bytes, Hashes, Ints

CUT_BYTES = 200
DIGEST_BYTES = 16
PLACE_BYTES_MAX = 8 + 2 + CUT_BYTES + 1 + CUT_BYTES

_SIGN = np.uint64(1 << 63)


@njit(cache=True, nogil=True)
def _write(hashes, key_offsets, keys, tables, entry_offsets, entries):  # type: ignore[no-untyped-def]
    rows = hashes.size
    offsets = np.zeros(rows + 1, np.int64)
    for i in range(rows):
        key, entry = key_offsets[i + 1] - key_offsets[i], entry_offsets[i + 1] - entry_offsets[i]
        offsets[i + 1] = offsets[i] + 11 + key + entry
    out = np.empty(offsets[rows], np.uint8)
    for i in range(rows):
        p = offsets[i]
        for b in range(8):
            out[p + b] = np.uint8((hashes[i] >> np.uint64(56 - 8 * b)) & np.uint64(255))
        begin, end = key_offsets[i], key_offsets[i + 1]
        out[p + 8] = np.uint8((end - begin) >> 8)
        out[p + 9] = np.uint8((end - begin) & 255)
        p += 10
        for q in range(begin, end):
            out[p] = keys[q]
            p += 1
        out[p] = tables[i]
        p += 1
        for q in range(entry_offsets[i], entry_offsets[i + 1]):
            out[p] = entries[q]
            p += 1
    return offsets, out


@njit(cache=True, nogil=True)
def _read(offsets, data):  # type: ignore[no-untyped-def]
    rows = offsets.size - 1
    hashes, tables, lengths = np.empty(rows, np.uint64), np.empty(rows, np.uint8), np.empty(rows, np.int64)
    for i in range(rows):
        p = offsets[i]
        if offsets[i + 1] - p < 11:
            hashes[i], tables[i], lengths[i] = 0, 0, 0
            continue
        x = np.uint64(0)
        for b in range(8):
            x = (x << np.uint64(8)) | np.uint64(data[p + b])
        hashes[i] = x
        lengths[i] = (np.int64(data[p + 8]) << 8) | np.int64(data[p + 9])
        tables[i] = data[p + 10 + lengths[i]]
    return hashes, tables, lengths


def texts(values: Sequence[bytes]) -> tuple[Ints, Bytes]:
    """Byte strings as (offsets int64[n + 1], data)."""
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])
    return offsets, np.frombuffer(bytearray(b"".join(values)), np.uint8)


def lists(offsets: Ints, data: Bytes) -> list[bytes]:
    """Inverse of `texts`."""
    kind = pa.large_binary()
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(kind, offsets.size - 1, buffers).to_pylist()


def ordered_ints(values: Ints) -> tuple[Ints, Bytes]:
    """Integers as byte strings of the same order."""
    turned = (np.ascontiguousarray(values).view(np.uint64) ^ _SIGN).astype(">u8")
    return np.arange(0, 8 * values.size + 1, 8), np.frombuffer(bytearray(turned.tobytes()), np.uint8)


def ordered_int(value: int) -> bytes:
    """One integer as such a byte string."""
    return (value + 2**63).to_bytes(8)


def ints_of(values: Sequence[bytes]) -> Ints:
    """Inverse of `ordered_ints`."""
    turned = np.frombuffer(b"".join(values), ">u8").astype(np.uint64) ^ _SIGN
    return turned.view(np.int64)


def bytes_of(column: pa.Array) -> tuple[Ints, Bytes]:
    """A column of keys, int64 or binary, or of texts, as byte strings; integers in native byte order."""
    if pa.types.is_integer(column.type):
        values = np.ascontiguousarray(column.cast(pa.int64()).to_numpy(zero_copy_only=False))
        return np.arange(0, 8 * values.size + 1, 8), np.frombuffer(bytearray(values.astype("<i8").tobytes()), np.uint8)
    return binary(column)


def entry_bytes(column: pa.Array | None, rows: int) -> tuple[Ints, Bytes]:
    """A column of entries as byte strings of the same order; empty ones without a column."""
    if column is None:
        return np.zeros(rows + 1, np.int64), NO_BYTES
    if pa.types.is_integer(column.type):
        return ordered_ints(column.cast(pa.int64()).to_numpy(zero_copy_only=False))
    return binary(column)


def cut(offsets: Ints, data: Bytes) -> tuple[Ints, Bytes, Ints]:
    """The byte strings with long ones cut, and the numbers of the cut ones."""
    long = np.flatnonzero(np.diff(offsets) >= CUT_BYTES)
    if not long.size:
        return offsets, data, long
    values = lists(offsets, data)
    for i in long.tolist():
        values[i] = cut_one(values[i])
    return *texts(values), long


def cut_one(value: bytes) -> bytes:
    """One byte string, cut if it is long."""
    if len(value) < CUT_BYTES:
        return value
    return value[: CUT_BYTES - DIGEST_BYTES] + blake2b(value, digest_size=DIGEST_BYTES).digest()


def places(hashes: Hashes, keys: tuple[Ints, Bytes], tables: Bytes, entries: tuple[Ints, Bytes]) -> tuple[Ints, Bytes]:
    """The places of entries of these keys, as byte strings. Keys and entries must be cut before."""
    return _write(hashes, *keys, tables, *entries)


def parsed(offsets: Ints, data: Bytes) -> tuple[Hashes, Bytes, Ints]:
    """Hashes, tables, and lengths of keys of these places; a string shorter than a place gives 0 for all."""
    return _read(offsets, data)


def with_wholes(value: bytes, key: bytes | None, entry: bytes | None) -> bytes:
    """The value, prefixed with the cut parts of its place; None: not cut."""
    for whole in (entry, key):
        if whole is not None:
            value = struct.pack(">I", len(whole)) + whole + value
    return value


def split_whole(value: bytes) -> tuple[bytes, bytes]:
    """The prefix of a value, and the rest."""
    end = 4 + struct.unpack_from(">I", value)[0]
    return value[4:end], value[end:]
