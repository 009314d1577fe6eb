"""The Arrow types of a DataFrame's columns, without Spark.

A column of another type becomes the type that Spark reads from a Parquet file of the column, at any depth: unsigned integers
become wider integers or decimal(20, 0); half floats become floats; views, large lists, large texts, dictionaries and runs
become plain; times of less than a microsecond are rounded down. Some types have no such counterpart and are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from ferry.contract.errors import DataRefused, SpecRefused
from ferry.kernels.retyped import has_times, is_list, retyped
from ferry.kernels.values import DIGITS_MAX

Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)

_SAME = (
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
    pa.date32(), pa.null(),
)  # fmt: skip

_WIDER = {
    pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(), pa.date64(): pa.date32(), pa.string_view(): pa.string(), pa.large_string(): pa.string(),
    pa.binary_view(): pa.binary(), pa.large_binary(): pa.binary(),
}  # fmt: skip


class _NotInSpark(Exception):
    """Spark has no type for a value of this type."""


def frame_type(kind: pa.DataType) -> pa.DataType:
    """The type of a DataFrame's column for values of `kind`. Raises _NotInSpark.

    Example:
        >>> frame_type(pa.timestamp("s", "Europe/Berlin")), frame_type(pa.uint64())
        (TimestampType(timestamp[us, tz=UTC]), Decimal128Type(decimal128(20, 0)))
    """
    if kind in _SAME:
        return kind
    if kind in _WIDER:
        return _WIDER[kind]
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == "arrow.json":
            return frame_type(kind.storage_type)
        raise _NotInSpark(str(kind))
    types = pa.types
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    if types.is_duration(kind):
        return pa.duration("us")
    if types.is_time(kind):
        return pa.time64("ns")
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_decimal(kind):
        digits = kind.precision - min(kind.scale, 0)
        if digits > DIGITS_MAX or kind.scale > digits:
            raise _NotInSpark(str(kind))
        return pa.decimal128(digits, max(kind.scale, 0))
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return frame_type(kind.value_type)
    return _nested(kind)


def _nested(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_map(kind):
        key = pa.field("key", frame_type(kind.key_type), nullable=False)
        return pa.map_(key, pa.field("value", frame_type(kind.item_type), nullable=kind.item_field.nullable))
    if types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        if len({field.name.lower() for field in fields}) < len(fields) or not fields:
            raise _NotInSpark(f"{kind}: its fields have no names of their own")
        return pa.struct([field.with_type(frame_type(field.type)) for field in fields])
    if is_list(kind):
        return pa.list_(pa.field("element", frame_type(kind.value_type), nullable=kind.value_field.nullable))
    raise _NotInSpark(str(kind))


def frame_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of a DataFrame of such rows. Raises SpecRefused for a type that Spark has no counterpart for."""
    fields = []
    for column in schema:
        try:
            fields.append(column.with_type(frame_type(column.type)))
        except _NotInSpark as missing:
            raise SpecRefused(_no_type(column, missing)) from None
    return pa.schema(fields)


def for_frame(rows: Rows) -> Rows:
    """The rows in the types of a DataFrame. Raises DataRefused, naming the column, for a value beyond its type."""
    wanted = frame_schema(rows.schema)
    if all(own == kind and not has_times(kind) for own, kind in zip(rows.schema.types, wanted.types, strict=True)):
        return rows
    columns = []
    for field, column, kind in zip(rows.schema, rows.columns, wanted.types, strict=True):
        try:
            if isinstance(column, pa.ChunkedArray):
                columns.append(pa.chunked_array([retyped(chunk, kind) for chunk in column.chunks], kind))
            else:
                columns.append(retyped(column, kind))
        except pa.ArrowInvalid as error:
            raise DataRefused(
                f"column {field.name!r} has a value of {field.type} that Spark's {kind} cannot hold: {error}; leave such "
                "records out, or cast the column, in .map_batches(...)"
            ) from error
    return type(rows).from_arrays(columns, names=rows.schema.names)


def require_types(schema: pa.Schema, subject: str) -> None:
    """Refuse columns of types that no DataFrame has. Raises SpecRefused."""
    try:
        frame_schema(schema)
    except SpecRefused as refused:
        raise SpecRefused(f"{subject}: {refused}") from None


def require_names(schema: pa.Schema, subject: str) -> None:
    """Refuse columns whose names differ in capitals alone: Spark cannot tell the columns apart. Raises SpecRefused."""
    if alike := [name for name, n in Counter(name.lower() for name in schema.names).items() if n > 1]:
        named = [name for name in schema.names if name.lower() == alike[0]]
        raise SpecRefused(
            f"{subject}: columns {named} have one name for Spark, which knows no capitals; rename one of them"
        )


def holds(kind: pa.DataType, matches: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type, or a type nested in it, matches."""
    return matches(kind) or any(holds(kind.field(i).type, matches) for i in range(kind.num_fields))


def _no_type(column: pa.Field, missing: _NotInSpark) -> str:
    inner = f" ({missing})" if str(missing) != str(column.type) else ""
    return (
        f"column {column.name!r} is {column.type}{inner}, which Spark has not; cast it, or leave it out, in "
        ".map_batches(...) before the operator or the sink"
    )
