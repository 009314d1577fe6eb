"""Columns as PySpark writes them, a StructType or DDL text, as an Arrow schema; PySpark itself is not needed.

Only types of state and rows: no lists, maps and structs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ferry.contract.errors import SpecRefused

_NAMES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(), "byte": pa.int8(),
    "smallint": pa.int16(), "short": pa.int16(),
    "int": pa.int32(), "integer": pa.int32(),
    "bigint": pa.int64(), "long": pa.int64(),
    "float": pa.float32(), "real": pa.float32(),
    "double": pa.float64(),
    "decimal": pa.decimal128(10, 0), "dec": pa.decimal128(10, 0), "numeric": pa.decimal128(10, 0),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"), "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "string": pa.string(), "varchar": pa.string(), "char": pa.string(),
    "binary": pa.binary(),
}  # fmt: skip
_TYPE = re.compile(r"(\w+)\s*(?:\(([\d\s,]*)\))?")
_FIELD = re.compile(
    r"\s*(?:`((?:[^`]|``)+)`|(\w+))(?:\s*:\s*|\s+)(\w+\s*(?:\([\d\s,]*\))?)"
    r"(?:\s*not\s+null)?(?:\s*comment\s+(?:'[^']*'|\"[^\"]*\"))?\s*(,|$)",
    re.IGNORECASE,
)


def schema_of(schema: Any, purpose: str) -> pa.Schema:
    """A schema from Arrow, a StructType, or DDL text such as "user STRING, n LONG". Raises SpecRefused; `purpose` is
    for errors."""
    if isinstance(schema, pa.Schema):
        return schema
    if not isinstance(schema, str) and not hasattr(schema, "fields"):
        raise SpecRefused(f"{purpose}: {schema!r} is no schema; give a StructType, DDL text or an Arrow schema")
    pairs = (
        _columns(schema, purpose)
        if isinstance(schema, str)
        else ((f.name, f.dataType.simpleString()) for f in schema.fields)
    )
    return pa.schema([(name, _type(text, f"{purpose}: column {name!r}")) for name, text in pairs])


def _columns(text: str, purpose: str) -> Iterator[tuple[str, str]]:
    at, last = 0, ","
    while last:
        match = _FIELD.match(text, at)
        if match is None:
            raise SpecRefused(
                f"{purpose}: {text[at:].strip()!r} in {text!r} is no column; write a name and a type, as in 'user STRING, "
                "n LONG' (lists, maps and structs cannot be kept: make columns of them, or a text)"
            )
        quoted, plain, kind, last = match.groups()
        yield quoted.replace("``", "`") if quoted else plain, kind
        at = match.end()


def _type(text: str, purpose: str) -> pa.DataType:
    match = _TYPE.match(text)
    kind = _NAMES.get(match[1].lower()) if match is not None and "<" not in text else None
    if match is None or kind is None:
        raise SpecRefused(
            f"{purpose} cannot be {text}; integers, floats, decimals, booleans, dates, timestamps, strings and bytes "
            "can be kept"
        )
    if not pa.types.is_decimal(kind) or match[2] is None:
        return kind
    precision, _, scale = match[2].partition(",")
    return pa.decimal128(int(precision), int(scale or 0))
