"""Keys of records and of groups: conversion between columns of elements and stored keys.

Keys are compared as SQL groups them: a null is a value of its own, -0.0 equals 0.0, and NaN is one value. A single
integer is stored as itself, every other key as the bytes of `ferry.kernels.row_codec`. The null among single integers
is stored as 0 with a hash that 0 does not have: hash and key together identify an integer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ferry.contract.descriptors import OperatorDescriptor
from ferry.kernels import columns, hashing, row_codec
from ferry.kernels.columns import same_floats
from ferry.kernels.grouping import NO_BYTES, NO_INTS, Bytes, Hashes, Ints

NULL_HASH = np.uint64(0x7AB40E090F363A7D)
"""Hash of the null among single integers: the hash of its bytes. Fixed for ever."""


KEY_MAX = 120
"""Longest text of a key in messages, in characters."""


class KeyArrays(NamedTuple):
    """Keys of some records; depending on the type of the key `keys` are in use, or (`offsets`, `data`)."""

    hashes: Hashes
    keys: Ints
    offsets: Ints
    data: Bytes


def stored(descriptor: OperatorDescriptor, elements: Sequence[pa.Array]) -> KeyArrays:
    """Keys of these columns, which have the descriptor's types."""
    if descriptor.int_key:
        (column,) = elements
        keys = columns.integers(column.fill_null(0))
        hashes = hashing.hash_ints(keys)
        if column.null_count:
            hashes[column.is_null().to_numpy(zero_copy_only=False)] = NULL_HASH
        return KeyArrays(hashes, keys, NO_INTS, NO_BYTES)
    elements = [same_floats(e) if pa.types.is_floating(e.type) else e for e in elements]
    offsets, data = row_codec.encode_rows(elements, [kind for _, kind in descriptor.key])
    return KeyArrays(hashing.hash_bytes(offsets, data), NO_INTS, offsets, data)


def fired(descriptor: OperatorDescriptor, hashes: Hashes, keys: Ints, heap: Bytes) -> list[pa.Array]:
    """The columns of stored keys: integers unchanged, else the keys at these heap offsets."""
    return elements_of(descriptor, hashes, columns.key_array(descriptor, keys, heap))


def elements_of(descriptor: OperatorDescriptor, hashes: Hashes, stored_keys: pa.Array) -> list[pa.Array]:
    """The columns of stored keys, int64 or binary: inverse of `stored`."""
    if descriptor.int_key:
        keys = columns.integers(stored_keys)
        return [pa.array(keys, mask=(keys == 0) & (hashes == NULL_HASH))]
    return row_codec.decode_rows(*columns.binary(stored_keys), [kind for _, kind in descriptor.key])


def text_of(elements: Sequence[pa.Array], row: int) -> str:
    """One key as text for users, on one line, cut if long."""
    key = []
    for column in elements:
        element = column.slice(row, 1)
        try:
            text = (
                element.cast(pa.string())[0].as_py()
                if not pa.types.is_binary(element.type)
                else repr(element[0].as_py())
            )
        except (pa.ArrowException, UnicodeDecodeError):
            text = f"a {element.type}"
        key.append("null" if text is None else repr(text) if pa.types.is_string(element.type) else text)
    return ", ".join(key)[:KEY_MAX]
