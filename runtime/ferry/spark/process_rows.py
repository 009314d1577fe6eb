"""What the records of a task are to a process: rows of one schema for all inputs; the columns of another side are null."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.errors import SpecRefused
from ferry.kernels import columns, schemas
from ferry.spark.records import KeyedRecords

FIRST = -(2**63)
"""A record without a value in the order's column comes before all others of its key."""


class ProcessRows:
    """Rows of one input of a process."""

    numbers: tuple[str, ...] = ()
    """Values are kept as they are."""

    def __init__(self, descriptor: OperatorDescriptor, side: int) -> None:
        """`side` is the number of the input."""
        self._descriptor = descriptor
        self._side = side
        self._schema = schemas.records_schema(descriptor)
        self._inputs = schemas.process_inputs(descriptor)
        self._full: list[pa.RecordBatch] = []

    def add(self, records: KeyedRecords) -> None:
        """Each record is a row."""
        d, rows = self._descriptor, records.batch.num_rows
        key = pa.array(records.keys) if d.int_key else columns.binary_array(records.offsets, records.data, pa.binary())
        times = pa.array(records.slices)
        side = pa.array(np.full(rows, self._side, np.int8))
        out = [pa.array(records.hashes), key, self._order(records), times, side]
        for number, schema in enumerate(self._inputs):
            for field in schema:
                mine = number == self._side
                column = columns.cast(d, records.batch.column(field.name), field.type, field.name) if mine else None
                out.append(column if column is not None else pa.nulls(rows, field.type))
        self._full.append(pa.RecordBatch.from_arrays(out, schema=self._schema))

    def _order(self, records: KeyedRecords) -> pa.Array:
        order = self._descriptor.shape.order
        if order is None:
            return pa.array(records.slices)
        column = records.batch.column(order)
        if not (pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type)):
            raise SpecRefused(
                f"operator {self._descriptor.name}: order column {order} is {column.type}, not an integer"
            )
        return column.cast(pa.int64()).fill_null(FIRST)

    def take_full(self) -> list[pa.RecordBatch]:
        """Rows since the last call."""
        full, self._full = self._full, []
        return full

    def drain(self) -> list[pa.RecordBatch]:
        """The same: nothing is held back."""
        return self.take_full()
