"""Partition columns: columns whose values are in the folder names of a path. Their types and values in Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from ferry.connectors.files.listing import partitions
from ferry.contract.errors import Fault

NOTHING = "__HIVE_DEFAULT_PARTITION__"
"""Folder value for null and for an empty text."""

UTC_TIMES = pa.timestamp("us", "UTC")

INFERRED = (pa.int32(), pa.int64(), pa.float64(), pa.date32(), UTC_TIMES)
"""Types that Spark tries for undeclared partition columns, in this order. The last resort is text."""


def inferred(paths: Iterable[str]) -> pa.Schema:
    """The partition columns of these files, with the first type that fits all their values."""
    values: dict[str, list[str]] = {}
    for path in paths:
        for name, text in partitions(path).items():
            values.setdefault(name, []).append(text)
    return pa.schema([(name, _type_of(set(texts) - {NOTHING})) for name, texts in values.items()])


def _type_of(texts: set[str]) -> pa.DataType:
    for kind in INFERRED if texts else ():
        try:
            for text in texts:
                _value(text, kind)
        except (pa.ArrowException, ValueError):
            continue
        return kind
    return pa.string()


def constants(path: str, columns: pa.Schema) -> dict[str, pa.Scalar]:
    """The values of a file's partition columns. Raises Fault for a value that does not fit its column's type."""
    values = {}
    for name, text in partitions(path).items():
        if name in columns.names:
            kind = columns.field(name).type
            if text == NOTHING and not columns.field(name).nullable:
                raise Fault(f"{path}: the folder says {name}={text}, a null: declare column {name!r} nullable")
            try:
                values[name] = pa.scalar(None, kind) if text == NOTHING else _value(text, kind)
            except (pa.ArrowException, ValueError) as wrong:
                raise Fault(
                    f"{path}: the folder says {name}={text}, which is not of type {kind}: rename the folder, or declare "
                    f"column {name!r} as string ({wrong})"
                ) from wrong
    return values


def _value(text: str, kind: pa.DataType) -> pa.Scalar:
    plain = pa.array([text])
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        try:
            return plain.cast(kind)[0]
        except pa.ArrowInvalid:  # Spark writes times in its session's zone, which is UTC here.
            return pc.assume_timezone(plain.cast(pa.timestamp(kind.unit)), "UTC").cast(kind)[0]
    if pa.types.is_dictionary(kind):
        return plain.cast(kind.value_type).dictionary_encode().cast(kind)[0]
    return plain.cast(kind)[0]


def with_constants(batch: pa.RecordBatch, wanted: pa.Schema, values: Mapping[str, pa.Scalar]) -> pa.RecordBatch:
    """The batch with its partition columns, in the order of `wanted`."""
    if not values:
        return batch
    if not wanted.names:
        return batch.select([])  # The empty selection keeps the number of rows.
    columns = [
        pa.repeat(values[f.name], batch.num_rows).cast(f.type) if f.name in values else batch.column(f.name)
        for f in wanted
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)
