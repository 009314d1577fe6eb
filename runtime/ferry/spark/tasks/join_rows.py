"""Converts records of a task to rows of a join, with one schema for both inputs; columns of the other side are null."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ferry.contract.descriptors import OperatorDescriptor
from ferry.kernels import columns, schemas
from ferry.kernels.values import named_type
from ferry.spark.tasks.records import KeyedRecords


class JoinRows:
    """Rows of one input of a join."""

    numbers: tuple[str, ...] = ()
    """A join keeps all types of values."""

    def __init__(self, descriptor: OperatorDescriptor, side: int) -> None:
        """`side` is 0 or 1: left or right input."""
        self._descriptor = descriptor
        self._side = side
        self._full: list[pa.RecordBatch] = []

    def add(self, records: KeyedRecords) -> None:
        """Each record becomes a row, except records with a null in their key: a null equals no other key, as in SQL."""
        d, rows = self._descriptor, records.batch.num_rows
        key = pa.array(records.keys) if d.int_key else columns.binary_array(records.offsets, records.data, pa.binary())
        out = [pa.array(records.slices), pa.array(records.hashes), key, pa.array(np.full(rows, self._side, np.int8))]
        for number, side in enumerate(d.sides):
            for name, source, kind in side.columns:
                arrow = named_type(kind)
                if number == self._side:
                    out.append(columns.cast(d, records.batch.column(source), arrow, f"{source} (as {name})"))
                else:
                    out.append(pa.nulls(rows, arrow))
        batch = pa.RecordBatch.from_arrays(out, schema=schemas.rows_schema(d))
        self._full.append(batch if records.nulls is None else batch.filter(pa.array(~records.nulls)))

    def take_full(self) -> list[pa.RecordBatch]:
        """Take the rows since the last call."""
        full, self._full = self._full, []
        return full

    def drain(self) -> list[pa.RecordBatch]:
        """Take the rows since the last call: no rows are held back."""
        return self.take_full()
