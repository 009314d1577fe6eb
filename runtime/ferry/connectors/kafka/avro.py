"""Avro values as rows for Arrow, exactly. Must never use Python's datetime. Must never import Kafka.

fastavro converts times to datetimes, which end with the year 9999. Therefore the writer's schema is rewritten for the
columns to read: where a value needs a conversion, the rewritten schema names the function of the conversion.
"""

from __future__ import annotations

import io
import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as types

from ferry.connectors.formats.json_nodes import UNITS, is_bytes, is_text, node_kind
from ferry.connectors.kafka.schemas import Unfit
from ferry.contract.errors import SpecRefused
from ferry.kernels.json_scan import LIST

MARK = "ferry"
"""Logical type of values with a conversion of Ferry, and key of the conversion in the schema."""

NAMED = "record", "error", "enum", "fixed"
KINDS = (*NAMED, "null", "boolean", "int", "long", "float", "double", "bytes", "string", "array", "map")
SCHEMAS_MAX = 1000

_LONG_UNITS = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}
_INSTANTS = {f"{of}timestamp-{name}": per_second for of in ("", "local-") for name, per_second in _LONG_UNITS.items()}
_CLOCKS = {("int", "time-millis"): 1_000, ("long", "time-micros"): 1_000_000}
_LOGICAL = {("int", "date"), *_CLOCKS, *(("long", name) for name in _INSTANTS)}
_LOGICAL |= {
    (kind, name) for name, kinds in (("decimal", "bytes fixed"), ("uuid", "string fixed")) for kind in kinds.split()
}
_FLOAT_ENDS = {16: 65_520.0, 32: 2.0**128 * (1 - 2.0**-25), 64: math.inf}
"""By number of bits, the least number that rounds to infinity."""

Convert: TypeAlias = Callable[[Any], Any]
Read: TypeAlias = Callable[[bytes], dict[str, Any]]


def require() -> None:
    """Raise SpecRefused if fastavro is not installed."""
    try:
        import fastavro  # noqa: F401
    except ImportError as missing:
        raise SpecRefused("kafka: the package fastavro is not installed: ferry-stream[kafka]") from missing


def parsed(text: str) -> Any:
    """A parsed Avro schema. Raises fastavro's errors for an invalid schema."""
    import fastavro

    return fastavro.parse_schema(json.loads(text))


@lru_cache(SCHEMAS_MAX)
def reader_of(text: str, fields: pa.Schema, epochs: tuple[tuple[str, str], ...]) -> Read:
    """The function that reads values of a schema as rows of these fields. `epochs`: units of numbers that are times."""
    import fastavro
    from fastavro.read import LOGICAL_READERS

    for kind in KINDS:
        LOGICAL_READERS[f"{kind}-{MARK}"] = _converted
    schema = fastavro.parse_schema(_Rewritten(parsed(text), dict(epochs)).schema(fields))

    def read(data: bytes) -> dict[str, Any]:
        try:
            row = fastavro.schemaless_reader(io.BytesIO(data), schema, None)
        except Unfit:
            raise
        except (ValueError, EOFError, IndexError, KeyError, TypeError, ArithmeticError, RecursionError) as wrong:
            raise Unfit(f"{type(wrong).__name__}: {wrong}") from wrong
        if not isinstance(row, dict):
            raise Unfit("not a record")
        return row

    return read


def table_of(rows: Sequence[tuple[int, dict[str, Any]]], fields: pa.Schema, bad: dict[int, str]) -> pa.Table:
    """The rows that fit the fields, in order. The reasons of the others are added to `bad`, by their number."""
    table = _table(rows, pa.schema([field.with_type(_plain(field.type)) for field in fields]), bad)
    for i, field in enumerate(fields):
        if types.is_dictionary(field.type):
            table = table.set_column(i, field, table.column(i).dictionary_encode().cast(field.type))
    return table.cast(fields) if table.schema != fields else table


def _table(rows: Sequence[tuple[int, dict[str, Any]]], fields: pa.Schema, bad: dict[int, str]) -> pa.Table:
    """The rows that fit. Rows that do not fit together are halved until single rows remain."""
    try:
        return pa.Table.from_pylist([row for _, row in rows], fields)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as wrong:
        if len(rows) == 1:
            bad[rows[0][0]] = str(wrong)
            return fields.empty_table()
    middle = len(rows) // 2
    return pa.concat_tables([_table(rows[:middle], fields, bad), _table(rows[middle:], fields, bad)])


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if types.is_dictionary(kind) else kind


def _converted(value: Any, schema: Mapping[str, Any], _: Any) -> Any:
    return schema[MARK](value)


class _Rewritten:
    """A writer's schema, rewritten for the fields to read. A named type is defined once for each field that reads it."""

    def __init__(self, written: Any, epochs: Mapping[str, str]) -> None:
        self._written = written
        self._named = written.get("__named_schemas", {}) if isinstance(written, dict) else _all_named(written)
        self._epochs = epochs
        self._names: dict[tuple[str, str, pa.Field | None], str] = {}

    def schema(self, fields: pa.Schema) -> Any:
        """The schema for rows of these fields."""
        return self._of(self._written, pa.field("", pa.struct(list(fields)), nullable=False), "")

    def _of(self, schema: Any, field: pa.Field | None, path: str) -> Any:
        """A schema rewritten for the field at `path`. None: the value is skipped."""
        if isinstance(schema, list):
            return [self._of(branch, field, path) for branch in schema]
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind not in KINDS:
            return self._of(self._named[kind], field, path)
        rewritten = {"type": kind}
        if kind in NAMED:
            place = schema["name"], path if field is not None else "", field
            if place in self._names:
                return self._names[place]
            rewritten["name"] = self._names[place] = f"{MARK}{len(self._names)}"
        convert = _same if field is None else self._inside(kind, schema, field, path)
        if kind in ("record", "error"):
            rewritten["fields"] = [
                {"name": inner["name"], "type": self._of(inner["type"], *_field_in(field, path, inner["name"]))}
                for inner in schema["fields"]
            ]
        elif kind in ("array", "map"):
            inside = "items" if kind == "array" else "values"
            rewritten[inside] = self._of(schema[inside], *_element_in(field, path, kind))
        rewritten |= {name: schema[name] for name in ("symbols", "size") if isinstance(schema, dict) and name in schema}
        return rewritten if convert is _same else rewritten | {"logicalType": MARK, MARK: convert}

    def _inside(self, kind: str, schema: Any, field: pa.Field, path: str) -> Convert:
        """The conversion of a value after the conversion of its inner values."""
        wanted = _plain(field.type)
        if not path and kind not in ("record", "error"):
            return _refusing("not a record")
        if kind == "null":
            return _same if field.nullable else _refusing(f"field {path!r} is missing or null")
        if kind in ("record", "error") and types.is_struct(wanted):
            has = {inner["name"] for inner in schema["fields"]}
            lacking = [inner.name for inner in wanted if not inner.nullable and inner.name not in has]
            where = f"{path}.{lacking[0]}" if path and lacking else "".join(lacking[:1])
            return _refusing(f"field {where!r} is missing or null") if lacking else _same
        if kind in ("record", "error", "map") and types.is_map(wanted) and is_text(wanted.key_type):
            return _same
        if kind == "array" and node_kind(wanted) == LIST:
            return _same
        logical = schema.get("logicalType") if isinstance(schema, dict) else None
        column = path.split(".")[0].split("[")[0]
        if (kind, logical) in _LOGICAL:
            convert, name, unit = _logical_value(kind, str(logical), schema, wanted), logical, ""
        else:
            convert, name = _plain_value(kind, wanted, UNITS.get(self._epochs.get(column, ""), 0)), kind
            number = kind in ("int", "long") and types.is_timestamp(wanted)
            unit = f': a number needs its unit, epoch={{"{column}": "ms"}}' if number else ""
        return convert or _refusing(f"field {path!r}: {name} does not fit {field.type}{unit}")


def _all_named(union: Any) -> dict[str, Any]:
    """The named types of a union at the top."""
    branches = [branch for branch in union if isinstance(branch, dict)] if isinstance(union, list) else []
    return {name: schema for branch in branches for name, schema in branch.get("__named_schemas", {}).items()}


def _field_in(field: pa.Field | None, path: str, name: str) -> tuple[pa.Field | None, str]:
    """(the field as which a record's field is read, its path). None: the field is skipped."""
    kind = pa.null() if field is None else _plain(field.type)
    below = f"{path}.{name}" if path else name
    if types.is_map(kind):
        return kind.item_field, below
    at = kind.get_field_index(name) if types.is_struct(kind) else -1
    return (None if at < 0 else kind.field(at)), below


def _element_in(field: pa.Field | None, path: str, kind: str) -> tuple[pa.Field | None, str]:
    """(the field as which the elements of an array or a map are read, their path), as for `_field_in`."""
    wanted = pa.null() if field is None else _plain(field.type)
    if kind == "map":
        return (wanted.item_field if types.is_map(wanted) else None), f"{path}.value"
    return (wanted.value_field if node_kind(wanted) == LIST else None), f"{path}[]"


def _same(value: Any) -> Any:
    return value


def _refusing(why: str) -> Convert:
    def refuse(_: Any) -> Any:
        raise Unfit(why)

    return refuse


def _logical_value(kind: str, logical: str, schema: Any, wanted: pa.DataType) -> Convert | None:
    """The conversion of values of a logical type. None: the values do not fit."""
    if (kind, logical) == ("int", "date"):
        if types.is_timestamp(wanted):
            return _scaled(86_400 * UNITS[wanted.unit], 1)
        return _same if wanted == pa.date32() else _scaled(86_400_000, 1) if wanted == pa.date64() else None
    if kind == "long" and logical in _INSTANTS and types.is_timestamp(wanted):
        return _scaled(UNITS[wanted.unit], _INSTANTS[logical])
    if (kind, logical) in _CLOCKS and types.is_time(wanted):
        return _clock(UNITS[wanted.unit], _CLOCKS[kind, logical])
    if kind in ("bytes", "fixed") and logical == "decimal" and types.is_decimal(wanted):
        return _decimal(schema.get("scale", 0))
    if kind in ("string", "fixed") and logical == "uuid":
        text = kind == "string"
        if is_text(wanted):
            return _same if text else lambda value: str(uuid.UUID(bytes=value))
        if wanted == pa.binary(16):
            return (lambda value: uuid.UUID(value).bytes) if text else _same
    return None


def _plain_value(kind: str, wanted: pa.DataType, per_second: int) -> Convert | None:
    """The conversion of values of a plain type. None: they do not fit. `per_second`: unit of times; 0: no times."""
    integer, floating = kind in ("int", "long"), kind in ("float", "double")
    if types.is_timestamp(wanted) and per_second and integer:
        return _scaled(UNITS[wanted.unit], per_second)
    if types.is_timestamp(wanted) and per_second == 1 and floating:
        return lambda value: math.floor(Decimal(repr(value)) * UNITS[wanted.unit])
    if types.is_floating(wanted) and (integer or floating):
        return _rounded(_FLOAT_ENDS[wanted.bit_width])
    whole = types.is_integer(wanted) or types.is_decimal(wanted) or types.is_duration(wanted) or wanted == pa.date32()
    texts = kind in ("string", "enum") and (is_text(wanted) or is_bytes(wanted))
    binary = kind in ("bytes", "fixed") and (is_text(wanted) or is_bytes(wanted))
    return _same if (integer and whole) or texts or binary or (kind == "boolean" and types.is_boolean(wanted)) else None


def _scaled(wanted: int, written: int) -> Convert:
    """The conversion of an integer between units per second, rounded down."""
    return _same if wanted == written else lambda value: value * wanted // written


def _clock(wanted: int, written: int) -> Convert:
    """The conversion of a time of day between units per second."""

    def time_of_day(value: int) -> int:
        if not 0 <= value < 86_400 * written:
            raise Unfit(f"{value} is not a time of day")
        return value * wanted // written

    return time_of_day


def _decimal(scale: int) -> Convert:
    def number(value: bytes) -> Decimal:
        whole = int.from_bytes(value, signed=True)
        return Decimal((int(whole < 0), tuple(map(int, str(abs(whole)))), -scale))

    return number


def _rounded(end: float) -> Convert:
    def number(value: float) -> float:
        if end <= abs(value) != math.inf:
            raise Unfit(f"{value} is beyond the range of the column")
        return float(value)

    return number
