"""Kinds of elements of keys and encoded rows.

A kind is a text, so that it can travel in descriptors: one of `KINDS`, or "timestamp[UNIT]", "timestamp[UNIT, tz=ZONE]" and
"decimal128(PRECISION, SCALE)" as Arrow writes them. Tags and widths are part of the encoding, which is fixed for ever.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa


class Element(NamedTuple):
    """The encoding of one kind."""

    tag: int
    type: pa.DataType
    width: int
    """bytes of a value; 0: prefixed with its length"""


KINDS: dict[str, Element] = {
    "int": Element(1, pa.int64(), 8),
    "string": Element(2, pa.string(), 0),
    "binary": Element(3, pa.binary(), 0),
    "bool": Element(4, pa.bool_(), 1),
    "date": Element(5, pa.date32(), 4),
    "float": Element(8, pa.float64(), 8),
    "float32": Element(9, pa.float32(), 4),
    "int8": Element(10, pa.int8(), 1),
    "int16": Element(11, pa.int16(), 2),
    "int32": Element(12, pa.int32(), 4),
    "uint8": Element(13, pa.uint8(), 1),
    "uint16": Element(14, pa.uint16(), 2),
    "uint32": Element(15, pa.uint32(), 4),
    "uint64": Element(16, pa.uint64(), 8),
}
_TIMESTAMP_TAG, _DECIMAL_TAG = 6, 7
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:, tz=(.+))?\]")
_DECIMAL = re.compile(r"decimal128\((\d+), (-?\d+)\)")
_NAMES = {element.type: kind for kind, element in KINDS.items()}


def kind_of(arrow: pa.DataType) -> str | None:
    """The kind of a column's elements; None: it cannot be encoded. All texts are "string", and all bytes "binary"."""
    if pa.types.is_dictionary(arrow):
        return kind_of(arrow.value_type)
    if pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow):
        return "string"
    if pa.types.is_large_binary(arrow) or pa.types.is_binary_view(arrow) or pa.types.is_fixed_size_binary(arrow):
        return "binary"
    if pa.types.is_timestamp(arrow) or pa.types.is_decimal128(arrow):
        return str(arrow)
    return _NAMES.get(arrow)


def type_of(kind: str) -> pa.DataType:
    """The Arrow type to which columns of this kind are decoded. Raises ValueError for any other text."""
    return element_of(kind).type


@lru_cache(256)
def element_of(kind: str) -> Element:
    """The encoding of this kind. Raises ValueError for any other text."""
    if kind in KINDS:
        return KINDS[kind]
    if found := _TIMESTAMP.fullmatch(kind):
        return Element(_TIMESTAMP_TAG, pa.timestamp(found[1], found[2]), 8)
    if found := _DECIMAL.fullmatch(kind):
        return Element(_DECIMAL_TAG, pa.decimal128(int(found[1]), int(found[2])), 16)
    raise ValueError(f"{kind!r} is no kind of element")


def key_kind_of(arrow: pa.DataType) -> str | None:
    """The kind of an element of keys; None: it cannot be one. Integers of every width are "int", and are fired as 64
    bits."""
    kind = kind_of(arrow)
    return "int" if kind is not None and pa.types.is_integer(type_of(kind)) else kind


def plain_type(arrow: pa.DataType) -> pa.DataType:
    """The type without a dictionary and without views, from which Arrow cannot take values."""
    if pa.types.is_dictionary(arrow):
        arrow = arrow.value_type
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(arrow, arrow)
