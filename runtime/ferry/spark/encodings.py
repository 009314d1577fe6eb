"""How a parquet sink writes columns, and the files of a table. Knows types only."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ferry.system import files

PART_ROWS = 65_536
"""Of a table that is written in several files: none has fewer."""


def encodings(schema: pa.Schema) -> dict[str, Any]:
    """How columns are written: integers as differences, in half the time of a dictionary, and with little memory.

    Where columns are nested, or two have one name, it is left to Arrow: to Parquet a name is not a column then.
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
    """Write a table, durably: (rows, bytes) of each file. A large one is cut, for as many processors as there are."""
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
