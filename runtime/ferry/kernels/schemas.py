"""The Arrow schemas that follow from a shape (see ferry.contract.shapes), in one place for task and instance.

Pure: values in, schemas out.
"""

from __future__ import annotations

import pyarrow as pa

from ferry.contract.shapes import OperatorDescriptor
from ferry.kernels.aggregates import NUMBER_TYPES, result_type, state_types


def key_type(shape: OperatorDescriptor) -> pa.DataType:
    """Stored type of the key: int64 for a single integer, else its encoded bytes."""
    return pa.int64() if shape.int_key else pa.binary()


def partials_schema(shape: OperatorDescriptor) -> pa.Schema:
    """Partials and after-images of an aggregate: one row per (slice, key)."""
    assert shape.kind == "aggregate", shape
    fields = [("slice", pa.int64()), ("hash", pa.uint64()), ("key", key_type(shape)), ("n", pa.int64())]
    fields += [(f"s{i}", NUMBER_TYPES[number]) for i, number in enumerate(state_types(shape))]
    return pa.schema(fields)


def rows_schema(shape: OperatorDescriptor) -> pa.Schema:
    """Rows of a join: one row per record; the columns of the other side are null."""
    assert shape.kind == "join" and shape.left is not None and shape.right is not None, shape
    fields = [("slice", pa.int64()), ("hash", pa.uint64()), ("key", key_type(shape)), ("side", pa.int8())]
    fields += [(f"l_{name}", pa.type_for_alias(kind)) for name, _, kind in shape.left.columns]
    fields += [(f"r_{name}", pa.type_for_alias(kind)) for name, _, kind in shape.right.columns]
    return pa.schema(fields)


def state_schema(shape: OperatorDescriptor) -> pa.Schema:
    """Schema of fragments, deltas and snapshots of this operator."""
    return partials_schema(shape) if shape.kind == "aggregate" else rows_schema(shape)


def fired_schema(shape: OperatorDescriptor) -> pa.Schema:
    """Rows of a finished window: what the SQL after the operator sees."""
    window = [("window_start", pa.int64()), ("window_end", pa.int64())]
    if shape.kind == "aggregate":
        keys = [(name, pa.int64() if kind == "int" else pa.string()) for name, kind in shape.key]
        return pa.schema(keys + window + [(a.name, result_type(a)) for a in shape.aggregates])
    assert shape.left is not None and shape.right is not None
    return pa.schema(window + [(n, pa.type_for_alias(t)) for n, _, t in (*shape.left.columns, *shape.right.columns)])
