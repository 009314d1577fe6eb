"""Converts records of a task to rows of a process, with one schema for all inputs; columns of other sides are null.

A process may have its records condensed: the task buffers records, and condenses a buffer to parts.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa

from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.errors import SpecRefused
from ferry.contract.limits import WATERMARK_END
from ferry.kernels import columns, schemas
from ferry.kernels.grouping import NO_BYTES, NO_INTS
from ferry.kernels.numbering import numbered
from ferry.process.aggregator import of_operator
from ferry.process.api import SideRows
from ferry.process.condensing import condensed
from ferry.process.shapes import process_of
from ferry.spark.tasks.records import KeyedRecords

FIRST = -(2**63)
"""The order of a record with a null in the order column: before all other records of its key."""

HELD_ROWS = 1 << 18
"""Number of records that are condensed at a time."""

HELD_BYTES = 64 * 1024 * 1024
"""Approximate bytes of records that are condensed at a time."""


class Condense(Protocol):
    """The function that condenses rows of a process; `low` is its watermark before the epoch."""

    def __call__(self, rows: SideRows, *, low: int = ...) -> SideRows: ...


def condensing(descriptor: OperatorDescriptor, low: int = WATERMARK_END) -> Condense | None:
    """The function that condenses records of an operator; None: they are not condensed. Call it where the pipeline's
    classes are known.

    `low` is the operator's watermark before the epoch, or a higher one: then less is condensed.
    """
    if descriptor.kind != "process" or descriptor.shape.parts is None:
        return None
    return partial(condensed, process_of(descriptor), low=low)


class ProcessRows:
    """Rows of one input of a process."""

    numbers: tuple[str, ...] = ()
    """A process keeps all types of values."""

    def __init__(self, descriptor: OperatorDescriptor, side: int, condense: Condense | None = None) -> None:
        """`side`: number of the input; `condense`: the result of `condensing` with a known watermark."""
        self._descriptor = descriptor
        self._side = side
        self._condense = condense
        self._inputs = schemas.process_inputs(descriptor)
        self._records = schemas.records_schema(descriptor, self._inputs)
        self._full: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0

    def add(self, records: KeyedRecords) -> None:
        """Each record becomes a row."""
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
        self._full.append(batch := pa.RecordBatch.from_arrays(out, schema=self._records))
        self._held_rows += rows
        self._held_bytes += batch.nbytes

    def _order(self, records: KeyedRecords) -> pa.Array:
        order = self._descriptor.shape.order
        if order is None or order not in self._descriptor.columns(self._side):
            return pa.array(records.slices)
        column = records.batch.column(order)
        if not (pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type)):
            raise SpecRefused(
                f"operator {self._descriptor.name}: order column {order} is {column.type}, not an integer"
            )
        return column.cast(pa.int64()).fill_null(FIRST)

    def take_full(self) -> list[pa.RecordBatch]:
        """Take the rows since the last call; rows that are condensed stay until a buffer is full."""
        many = self._held_rows >= HELD_ROWS or self._held_bytes >= HELD_BYTES
        return self.drain() if many or self._descriptor.shape.parts is None else []

    def drain(self) -> list[pa.RecordBatch]:
        """Take all remaining rows."""
        full, self._full = self._full, []
        self._held_rows = self._held_bytes = 0
        if self._descriptor.shape.parts is None or not full:
            return full
        return [self._condensed(columns.concatenated(full))]

    def _condensed(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Condense records to parts. A part has one key, so the first record of each key provides the key."""
        condense = self._condense or condensing(self._descriptor)
        assert condense is not None, self._descriptor.name
        hashes, key, _, time, _, *values = records.columns
        int_key, (offsets, data) = self._descriptor.int_key, (NO_INTS, NO_BYTES)
        if not int_key:
            offsets, data = columns.binary(key)
        number, firsts = numbered(
            np.require(hashes.to_numpy(), np.uint64, ["C", "W"]),
            columns.integers(key) if int_key else NO_INTS,
            offsets,
            data,
        )
        (schema,) = self._inputs
        batch = pa.RecordBatch.from_arrays(values, schema=schema)
        with of_operator(self._descriptor.name):
            parts = condense(SideRows.arranged(batch, number, columns.integers(time)))
        of, start, side = pa.array(firsts[parts.key]), pa.array(parts.times), np.zeros(parts.key.size, np.int8)
        out = [hashes.take(of), key.take(of), start, start, pa.array(side), *parts.batch.columns]
        return pa.RecordBatch.from_arrays(out, schema=schemas.records_schema(self._descriptor))
