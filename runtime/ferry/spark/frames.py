"""Arrow data as Spark's DataFrames have it: timestamps in microseconds, of UTC where they have a zone.

What Spark has not is made what Spark reads from a Parquet file of it, at any depth: unsigned integers are wider ones, or
decimal(20, 0); half floats are floats; views, large lists and texts, dictionaries and runs are plain; what is finer than a
microsecond is rounded down. A type that has no such one is refused before anything runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from ferry.contract.errors import DataRefused, SpecRefused
from ferry.kernels.retyped import has_times, is_list, retyped
from ferry.kernels.values import DIGITS_MAX

Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)

_WIDER = {
    pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(), pa.date64(): pa.date32(), pa.string_view(): pa.string(), pa.large_string(): pa.string(),
    pa.binary_view(): pa.binary(), pa.large_binary(): pa.binary(),
}  # fmt: skip


class _NotInSpark(Exception):
    """There is no type of Spark for this one."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Of the batches that Spark gives out."""
    return to_arrow_schema(schema, timezone="UTC")


def spark_schema(schema: pa.Schema) -> StructType:
    """Of the DataFrame that rows are made. Raises SpecRefused for a type that Spark has nothing for."""
    fields = []
    for column in schema:
        try:
            fields.append(column.with_type(_taken(column.type)))
        except _NotInSpark as missing:
            raise SpecRefused(_no_type(column, missing)) from None
    return from_arrow_schema(pa.schema(fields))


def for_spark(rows: Rows) -> Rows:
    """The rows with types that Spark takes. Raises DataRefused for a value that they have not, with its column."""
    wanted = arrow_schema(spark_schema(rows.schema))
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


def frame_of(spark: SparkSession, table: pa.Table) -> DataFrame:
    """The table as a DataFrame, a timestamp without a zone as one."""
    return spark.createDataFrame(for_spark(table), spark_schema(table.schema))


def require_types(schema: pa.Schema, what: str) -> None:
    """Refuse columns of types that no DataFrame has. Raises SpecRefused."""
    try:
        spark_schema(schema)
    except SpecRefused as refused:
        raise SpecRefused(f"{what}: {refused}") from None


def holds(kind: pa.DataType, is_one: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type is one of these, or has one within it."""
    return is_one(kind) or any(holds(kind.field(i).type, is_one) for i in range(kind.num_fields))


def require_names(schema: pa.Schema, what: str) -> None:
    """Refuse columns whose names Spark cannot tell apart. Raises SpecRefused."""
    if alike := [name for name, n in Counter(name.lower() for name in schema.names).items() if n > 1]:
        named = [name for name in schema.names if name.lower() == alike[0]]
        raise SpecRefused(
            f"{what}: columns {named} have one name for Spark, which knows no capitals; rename one of them"
        )


def _no_type(column: pa.Field, missing: _NotInSpark) -> str:
    inner = f" ({missing})" if str(missing) != str(column.type) else ""
    return (
        f"column {column.name!r} is {column.type}{inner}, which Spark has not; cast it, or leave it out, in "
        ".map_batches(...) before the operator or the sink"
    )


def _taken(kind: pa.DataType) -> pa.DataType:
    """The type that Spark takes in place of this one. Raises _NotInSpark."""
    if kind in _WIDER:
        return _WIDER[kind]
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == "arrow.json":
            return _taken(kind.storage_type)
        raise _NotInSpark(str(kind))
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _taken(kind.value_type)
    if types.is_decimal(kind):
        digits = kind.precision - min(kind.scale, 0)
        if digits > DIGITS_MAX or kind.scale > digits:
            raise _NotInSpark(str(kind))
        return pa.decimal128(digits, max(kind.scale, 0))
    if types.is_time(kind):
        return pa.time64("ns")
    if types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_taken(key.type)), item.with_type(_taken(item.type)))
    if types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        if len({field.name.lower() for field in fields}) < len(fields) or not fields:
            raise _NotInSpark(f"{kind}: its fields have no names of their own")
        return pa.struct([field.with_type(_taken(field.type)) for field in fields])
    if is_list(kind):
        return pa.list_(kind.value_field.with_type(_taken(kind.value_type)))
    try:
        from_arrow_schema(pa.schema([("column", kind)]))
    except PySparkTypeError:
        raise _NotInSpark(str(kind)) from None
    return kind
