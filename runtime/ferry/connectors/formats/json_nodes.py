"""The tree of a schema's columns for JSON: structs, maps, lists and leaves, and the supported types."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as types

from ferry.contract.errors import SpecRefused
from ferry.kernels import json_grammar
from ferry.kernels.json_scan import LEAF, LIST, MAP, STRUCT

UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""Units of time by their number in a second."""


@dataclass(frozen=True, slots=True)
class JsonNode:
    """A column, or a field or element inside of a column."""

    path: str
    field: pa.Field
    children: tuple[int, ...]
    per_second: int
    """Units per second of numbers that are times since 1970. 0: numbers are not times."""
    is_name: bool = False
    """Whether this is the key of a map: a name in a JSON object."""


def wanted(node: JsonNode, kind: int) -> str:
    """The type of a node for a message, with a remedy for a timestamp without a unit."""
    type_ = node.field.type
    if types.is_timestamp(type_) and kind in (json_grammar.INTEGER, json_grammar.DECIMAL) and not node.per_second:
        return f'{type_}: a number needs its unit, epoch={{"{node.path.split(".")[0].split("[")[0]}": "ms"}}'
    return str(type_)


def is_text(type_: pa.DataType) -> bool:
    """Whether this is a type of texts."""
    return types.is_string(type_) or types.is_large_string(type_) or type_ == pa.string_view()


def is_bytes(type_: pa.DataType) -> bool:
    """Whether this is a type of bytes."""
    binary = types.is_binary(type_) or types.is_large_binary(type_) or type_ == pa.binary_view()
    return binary or types.is_fixed_size_binary(type_)


def node_kind(type_: pa.DataType) -> int:
    """STRUCT, MAP, LIST or LEAF."""
    if types.is_struct(type_):
        return STRUCT
    if types.is_map(type_):
        return MAP
    return LIST if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_) else LEAF


def has_timestamp(type_: pa.DataType) -> bool:
    """Whether a type is a timestamp, or contains one."""
    if types.is_dictionary(type_):
        return has_timestamp(type_.value_type)
    if types.is_timestamp(type_):
        return True
    return node_kind(type_) != LEAF and any(has_timestamp(type_.field(i).type) for i in range(type_.num_fields))


def fields_inside(type_: pa.DataType, path: str) -> list[pa.Field]:
    """The fields inside of a type. Raises SpecRefused for a type that JSON values cannot have."""
    column = f"column {path!r} is {type_}, " if path else ""
    kind = node_kind(type_)
    if kind == STRUCT:
        fields = [type_.field(i) for i in range(type_.num_fields)]
        names = [field.name for field in fields]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SpecRefused(f"{column}{twice[0]!r} is the name of two fields; rename one of them")
        return fields
    if kind == MAP:
        key = type_.key_type
        if node_kind(key) != LEAF or types.is_null(key):
            raise SpecRefused(f"{column}but names in a JSON object are texts; give it string keys")
        return [type_.key_field, type_.item_field]
    if kind == LIST:
        return [type_.value_field]
    if types.is_dictionary(type_):
        if type_.index_type.bit_width < 32:
            raise SpecRefused(f"{column}which can hold few values only; give it indices of int32")
        if node_kind(type_.value_type) != LEAF or types.is_null(type_.value_type):
            raise SpecRefused(f"{column}which is not supported in JSON; leave the dictionary out")
        return fields_inside(type_.value_type, path)
    numbers = types.is_boolean, types.is_integer, types.is_floating, types.is_decimal
    others = types.is_date, types.is_time, types.is_timestamp, types.is_duration, types.is_null, is_text, is_bytes
    if isinstance(type_, pa.BaseExtensionType) or not any(is_(type_) for is_ in (*numbers, *others)):
        raise SpecRefused(f"{column}which is not supported in JSON; docs/reference/types.md lists the types")
    return []
