"""Columns as PySpark writes them, a StructType or DDL text, as an Arrow schema; PySpark itself is not needed.

Types are those that state and rows can hold: no lists, maps and structs.
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


def schema_of(given: Any, what: str) -> pa.Schema:
    """A schema of Arrow, a StructType, or DDL text such as "user STRING, n LONG". Raises SpecRefused; `what` has it."""
    if isinstance(given, pa.Schema):
        return given
    if not isinstance(given, str) and not hasattr(given, "fields"):
        raise SpecRefused(f"{what}: {given!r} is no schema; give a StructType, DDL text or an Arrow schema")
    pairs = (
        _columns(given, what) if isinstance(given, str) else ((f.name, f.dataType.simpleString()) for f in given.fields)
    )
    return pa.schema([(name, _type(text, f"{what}: column {name!r}")) for name, text in pairs])


def _columns(text: str, what: str) -> Iterator[tuple[str, str]]:
    at, last = 0, ","
    while last:
        found = _FIELD.match(text, at)
        if found is None:
            raise SpecRefused(
                f"{what}: {text[at:].strip()!r} in {text!r} is no column; write a name and a type, as in 'user STRING, "
                "n LONG' (lists, maps and structs cannot be kept: make columns of them, or a text)"
            )
        quoted, plain, kind, last = found.groups()
        yield quoted.replace("``", "`") if quoted else plain, kind
        at = found.end()


def _type(text: str, what: str) -> pa.DataType:
    found = _TYPE.match(text)
    kind = _NAMES.get(found[1].lower()) if found is not None and "<" not in text else None
    if found is None or kind is None:
        raise SpecRefused(
            f"{what} cannot be {text}; integers, floats, decimals, booleans, dates, timestamps, strings and bytes "
            "can be kept"
        )
    if not pa.types.is_decimal(kind) or found[2] is None:
        return kind
    precision, _, scale = found[2].partition(",")
    return pa.decimal128(int(precision), int(scale or 0))
