"""The Arrow schemas that follow from a descriptor (see ferry.contract.descriptors), in one place for task and instance.

Pure: values in, schemas out.
"""

from __future__ import annotations

import base64
from functools import lru_cache
from typing import assert_never

import pyarrow as pa

from ferry.contract.descriptors import OperatorDescriptor
from ferry.kernels.aggregates import result_type, state_columns
from ferry.kernels.changes import CHANGES
from ferry.kernels.kinds import type_of
from ferry.kernels.values import named_type


def key_type(descriptor: OperatorDescriptor) -> pa.DataType:
    """Stored type of the key: int64 for a single integer, else its encoded bytes."""
    return pa.int64() if descriptor.int_key else pa.binary()


def partials_schema(descriptor: OperatorDescriptor) -> pa.Schema:
    """Partials and after-images of an aggregate: one row per (slice, key)."""
    assert descriptor.kind == "aggregate", descriptor
    fields = [("slice", pa.int64()), ("hash", pa.uint64()), ("key", key_type(descriptor)), ("n", pa.int64())]
    fields += [(f"s{i}", column.type) for i, column in enumerate(state_columns(descriptor))]
    return pa.schema(fields)


def rows_schema(descriptor: OperatorDescriptor) -> pa.Schema:
    """Rows of a join: one row per record; the columns of the other side are null."""
    assert descriptor.kind == "join", descriptor
    left, right = descriptor.sides
    fields = [("slice", pa.int64()), ("hash", pa.uint64()), ("key", key_type(descriptor)), ("side", pa.int8())]
    fields += [(f"l_{name}", named_type(kind)) for name, _, kind in left.columns]
    fields += [(f"r_{name}", named_type(kind)) for name, _, kind in right.columns]
    return pa.schema(fields)


def process_inputs(descriptor: OperatorDescriptor) -> list[pa.Schema]:
    """The schema of each input as a process sees it."""
    return [from_text(text) for text in descriptor.shape.inputs]


def process_rows(descriptor: OperatorDescriptor) -> list[pa.Schema]:
    """The schema of each input of a process on the wire: the same, or the parts that tasks make of records."""
    parts = descriptor.shape.parts
    return process_inputs(descriptor) if parts is None else [from_text(parts)]


def records_schema(descriptor: OperatorDescriptor, inputs: list[pa.Schema] | None = None) -> pa.Schema:
    """Rows of a process, or others with the columns of `inputs`; columns of the other side are null."""
    fields = [("hash", pa.uint64()), ("key", key_type(descriptor)), ("order", pa.int64()), ("time", pa.int64())]
    fields.append(("side", pa.int8()))
    sides = enumerate(process_rows(descriptor) if inputs is None else inputs)
    return pa.schema(fields + [(f"{side}_{field.name}", field.type) for side, schema in sides for field in schema])


def to_text(schema: pa.Schema) -> str:
    """The text of a schema in descriptors."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


@lru_cache(256)
def from_text(text: str) -> pa.Schema:
    """Inverse of `to_text`."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def fragment_schema(descriptor: OperatorDescriptor) -> pa.Schema:
    """Schema of the tasks' contributions to this operator."""
    return records_schema(descriptor) if descriptor.kind == "process" else state_schema(descriptor)


def state_schema(descriptor: OperatorDescriptor) -> pa.Schema:
    """Schema of deltas and snapshots of this operator."""
    match descriptor.kind:
        case "aggregate":
            return partials_schema(descriptor)
        case "join":
            return rows_schema(descriptor)
        case "process":
            return CHANGES
        case _:
            assert_never(descriptor.kind)


def fired_schema(descriptor: OperatorDescriptor) -> pa.Schema:
    """Rows of a finished window, or rows that a process emits: the input of the SQL after the operator."""
    window = [("window_start", pa.int64()), ("window_end", pa.int64())] if descriptor.windowed else []
    match descriptor.kind:
        case "aggregate":
            keys = [(name, type_of(kind)) for name, kind in descriptor.key]
            return pa.schema(keys + window + [(a.name, result_type(a)) for a in descriptor.aggregates])
        case "join":
            return pa.schema(window + [(n, named_type(t)) for s in descriptor.sides for n, _, t in s.columns])
        case "process":
            return from_text(descriptor.shape.output)
        case _:
            assert_never(descriptor.kind)
