"""The Arrow schemas that follow from a descriptor (see ferry.contract.descriptors), in one place for task and instance.

Pure: values in, schemas out.
"""

from __future__ import annotations

from typing import assert_never

import pyarrow as pa

from ferry.contract.descriptors import OperatorDescriptor
from ferry.kernels.aggregates import NUMBER_TYPES, result_type, state_types


def key_type(descriptor: OperatorDescriptor) -> pa.DataType:
    """Stored type of the key: int64 for a single integer, else its encoded bytes."""
    return pa.int64() if descriptor.int_key else pa.binary()


def partials_schema(descriptor: OperatorDescriptor) -> pa.Schema:
    """Partials and after-images of an aggregate: one row per (slice, key)."""
    assert descriptor.kind == "aggregate", descriptor
    fields = [("slice", pa.int64()), ("hash", pa.uint64()), ("key", key_type(descriptor)), ("n", pa.int64())]
    fields += [(f"s{i}", NUMBER_TYPES[number]) for i, number in enumerate(state_types(descriptor))]
    return pa.schema(fields)


def rows_schema(descriptor: OperatorDescriptor) -> pa.Schema:
    """Rows of a join: one row per record; the columns of the other side are null."""
    assert descriptor.kind == "join" and descriptor.left is not None and descriptor.right is not None, descriptor
    fields = [("slice", pa.int64()), ("hash", pa.uint64()), ("key", key_type(descriptor)), ("side", pa.int8())]
    fields += [(f"l_{name}", pa.type_for_alias(kind)) for name, _, kind in descriptor.left.columns]
    fields += [(f"r_{name}", pa.type_for_alias(kind)) for name, _, kind in descriptor.right.columns]
    return pa.schema(fields)


def state_schema(descriptor: OperatorDescriptor) -> pa.Schema:
    """Schema of fragments, deltas and snapshots of this operator."""
    match descriptor.kind:
        case "aggregate":
            return partials_schema(descriptor)
        case "join":
            return rows_schema(descriptor)
        case _:
            assert_never(descriptor.kind)


def fired_schema(descriptor: OperatorDescriptor) -> pa.Schema:
    """Rows of a finished window: what the SQL after the operator sees."""
    window = [("window_start", pa.int64()), ("window_end", pa.int64())]
    if descriptor.kind == "aggregate":
        keys = [(name, pa.int64() if kind == "int" else pa.string()) for name, kind in descriptor.key]
        return pa.schema(keys + window + [(a.name, result_type(a)) for a in descriptor.aggregates])
    assert descriptor.left is not None and descriptor.right is not None
    return pa.schema(
        window + [(n, pa.type_for_alias(t)) for n, _, t in (*descriptor.left.columns, *descriptor.right.columns)]
    )
