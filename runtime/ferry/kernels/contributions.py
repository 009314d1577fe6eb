"""Contributions of records to the state of an aggregate's groups: a row of cells for each record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ferry.contract.descriptors import Aggregate, OperatorDescriptor, ValueType
from ferry.contract.errors import SpecRefused
from ferry.kernels import aggregates, columns, sketch, values
from ferry.kernels.grouping import Ints
from ferry.kernels.kept import StateColumn

CELLS_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of state that records are converted to at a time."""

Has = np.bool_ | npt.NDArray[np.bool_]


def records_at_once(descriptor: OperatorDescriptor) -> int:
    """Number of records that are converted to state at a time."""
    return max(1, CELLS_BYTES_MAX // (8 * max(1, aggregates.merge_codes(descriptor).size)))


def contribute(descriptor: OperatorDescriptor, batch: pa.RecordBatch, times: pa.Array | None, cells: Ints) -> None:
    """Fill cells int64[rows, words of state] with these records' contributions; `times`: for functions that need event
    times."""
    values_end = aggregates.words_of(aggregates.value_columns(descriptor))
    cells[:, values_end:] = 0
    if descriptor.ttl_ms is not None:
        cells[:, values_end] = columns.integers(times)
    for place in aggregates.places(descriptor):
        valid = _valid(batch, place.aggregate)
        has = np.True_ if valid is None else valid.to_numpy(zero_copy_only=False)
        contribution, at = _Contribution(descriptor, batch, times, place.aggregate, valid, has), place.word
        for state in place.columns:
            into = cells[:, at] if state.words == 1 else cells[:, at : at + state.words]
            into[:] = contribution.to(state)
            at += state.words
        if place.function.nullable:
            cells[:, -1] |= np.int64(1 << place.first) * has


@dataclass(frozen=True, slots=True)
class _Contribution:
    """Contributions of records to the state of one aggregate."""

    descriptor: OperatorDescriptor
    batch: pa.RecordBatch
    times: pa.Array | None
    aggregate: Aggregate
    valid: pa.Array | None
    has: Has
    """`valid` as numpy: records that are not left out"""

    def to(self, state: StateColumn) -> Ints | Has | int:
        """Cells of one state column."""
        match state.source:
            case "column" | "-column":
                return self._values(self.aggregate.column, self.aggregate.number, state)
            case "by":
                return self._values(self.aggregate.by, self.aggregate.by_number, state)
            case "one":
                return self.has
            case "zero":
                return 0
            case "time":
                return self._timely(columns.integers(self.times), state)
            case "-time":
                return self._timely(-columns.integers(self.times), state)
            case "sketch":
                return self._sketches(self.aggregate.column)
            case _:
                assert_never(state.source)

    def _timely(self, times: Ints, state: StateColumn) -> Ints:
        return times if self.valid is None else np.where(self.has, times, np.int64(state.neutral))

    def _values(self, name: str | None, value: ValueType, state: StateColumn) -> Ints:
        """One word of a column's values; left-out records have the neutral value."""
        assert name is not None
        column = self.batch.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if value == "int" and pa.types.is_floating(column.type):
            raise SpecRefused(
                f"operator {self.descriptor.name}: column {name} is {column.type}: declare the aggregate as float"
            )
        kind = values.arrow_type("float" if state.number == "float" else value)
        if state.number == "float" and (pa.types.is_integer(column.type) or pa.types.is_decimal(column.type)):
            column = column.cast(kind, safe=False)  # A mean of large integers has the precision of a double.
        words = values.cells(columns.cast(self.descriptor, column, kind, name), state.word)
        if state.source == "-column":
            words = pc.bit_wise_not(words)
        if self.valid is not None:
            words = pc.if_else(self.valid, words, pa.scalar(state.neutral, words.type))
        found: Ints = words.to_numpy(zero_copy_only=True).view(np.int64)
        return found

    def _sketches(self, name: str | None) -> Ints:
        assert name is not None
        column = self.batch.column(name)
        if not columns.hashable(column.type):
            raise SpecRefused(f"operator {self.descriptor.name}: column {name} is {column.type}, which has no hash")
        counted = np.broadcast_to(self.has, len(column)).copy()
        sketches: Ints = sketch.singles(columns.value_hashes(column), counted)
        return sketches


def _valid(batch: pa.RecordBatch, aggregate: Aggregate) -> pa.Array | None:
    """Records that have all columns of an aggregate; None: all records."""
    used = (batch.column(name) for name in (aggregate.column, aggregate.by) if name is not None)
    valid = None
    for column in used:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()  # The dictionary itself may have nulls.
        if column.null_count:
            valid = column.is_valid() if valid is None else pc.and_(valid, column.is_valid())
    return valid
