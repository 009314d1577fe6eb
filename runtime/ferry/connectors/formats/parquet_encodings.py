"""The types, encodings and files that a parquet sink writes. Knows types only."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from ferry.system import files

Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)

PART_ROWS = 65_536
"""Least number of rows in each file of a table that is written in several files."""


def for_readers(rows: Rows, of_spark: bool = False) -> Rows:
    """The same values in types that more readers of Parquet support: times in microseconds, half floats as floats.

    `of_spark`: the rows come from Spark. Its times of day are microseconds, which PySpark returns as nanoseconds.
    """
    schema = pa.schema([field.with_type(_known(field.type, of_spark)) for field in rows.schema])
    return rows if schema.equals(rows.schema) else rows.cast(schema)


def _known(kind: pa.DataType, of_spark: bool) -> pa.DataType:
    types = pa.types
    if types.is_time32(kind) or (of_spark and types.is_time64(kind)):
        return pa.time64("us")
    if types.is_float16(kind):
        return pa.float32()
    if types.is_struct(kind):
        return pa.struct([field.with_type(_known(field.type, of_spark)) for field in kind])
    if types.is_map(kind):
        key, item = (field.with_type(_known(field.type, of_spark)) for field in (kind.key_field, kind.item_field))
        return pa.map_(key, item, kind.keys_sorted)
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_known(kind.value_type, of_spark)))
    if types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_known(kind.value_type, of_spark)))
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_known(kind.value_type, of_spark)), kind.list_size)
    return kind


def encodings(schema: pa.Schema) -> dict[str, Any]:
    """Arguments of Arrow's writer.

    Delta encoding of integers and times takes half the time of a dictionary, and less memory. For nested columns and
    repeated names Arrow chooses the encodings, because a name is then not a Parquet column.
    """
    if any(pa.types.is_nested(field.type) for field in schema) or len({*schema.names}) < len(schema):
        return {"compression": "zstd"}
    whole = [field.name for field in schema if pa.types.is_integer(field.type) or pa.types.is_temporal(field.type)]
    return {
        "compression": "zstd",
        "use_dictionary": [name for name in schema.names if name not in whole],
        "column_encoding": dict.fromkeys(whole, "DELTA_BINARY_PACKED"),
    }


def write_parts(rows: pa.Table, folder: Path) -> dict[str, list[int]]:
    """Write a table durably, a large one in a file per CPU. Returns by file: [rows, bytes]."""
    rows = for_readers(rows)
    number = max(1, min(len(os.sched_getaffinity(0)), rows.num_rows // PART_ROWS))
    size = -(-rows.num_rows // number)

    def write(k: int) -> tuple[str, list[int]]:
        path, part = folder / f"part-{k}.parquet", rows.slice(k * size, size)
        pq.write_table(part, path, **encodings(part.schema))
        return path.name, [part.num_rows, files.sync(path)]

    if number == 1:
        return dict([write(0)])
    with ThreadPoolExecutor(number) as pool:
        return dict(pool.map(write, range(number)))
