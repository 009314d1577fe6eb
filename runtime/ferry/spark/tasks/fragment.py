"""What one ingest task contributes to an operator, whatever its kind; one file of this room for each kind.

A new kind of operator is a class that keeps the protocol `Contribution`, and its branch in `open_contribution`. Runs inside
the Spark task. Imports contract and kernels; never pyspark, never a socket. Nothing is routed here: the helper beside the
task sorts by virtual node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, assert_never

import pyarrow as pa

from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.limits import WATERMARK_NONE
from ferry.spark.tasks.join_rows import JoinRows
from ferry.spark.tasks.partial_aggregates import GROUPS_MAX, PartialAggregates
from ferry.spark.tasks.process_rows import Condense, ProcessRows
from ferry.spark.tasks.records import EVENT_TIME_MAX, KeyedRecords, RecordReader


class Contribution(Protocol):
    """What records of one input are to an operator: batches of its state's schema (`ferry.kernels.schemas`)."""

    @property
    def numbers(self) -> Sequence[str]:
        """Columns of which integers are kept: they must have 64 bits, with a sign."""

    def add(self, records: KeyedRecords) -> None:
        """Take records. Raises SpecRefused for columns that do not fit."""

    def take_full(self) -> list[pa.RecordBatch]:
        """Batches that are complete."""

    def drain(self) -> list[pa.RecordBatch]:
        """All that is left; nothing is, afterwards."""


def open_contribution(
    descriptor: OperatorDescriptor, side: int, groups_max: int, condense: Condense | None
) -> Contribution:
    """An empty one, for one input of the operator."""
    assert 0 <= side < descriptor.inputs, (descriptor.kind, side)
    match descriptor.kind:
        case "aggregate":
            return PartialAggregates(descriptor, groups_max)
        case "join":
            return JoinRows(descriptor, side)
        case "process":
            return ProcessRows(descriptor, side, condense)
        case _:
            assert_never(descriptor.kind)


class Fragmenter:
    """Turns the record batches of one task and one input into fragments of one operator."""

    def __init__(
        self,
        descriptor: OperatorDescriptor,
        side: int = 0,
        groups_max: int = GROUPS_MAX,
        condense: Condense | None = None,
    ) -> None:
        """`side` is the number of the input: 0, or 1 for the right one of a join; `condense` is what `condensing` makes."""
        self._contribution = open_contribution(descriptor, side, groups_max, condense)
        self._reader = RecordReader(descriptor, descriptor.columns(side), self._contribution.numbers)

    def add(
        self, batch: pa.RecordBatch, key_columns: list[str], time_column: str | None, latest: int = EVENT_TIME_MAX
    ) -> int:
        """Take records; event time is int64 milliseconds or a timestamp, `latest` at most. Windows alone need one.

        Returns the greatest event time of those that are taken, WATERMARK_NONE when none is. Raises SpecRefused for columns
        that do not fit.
        """
        records = self.read(batch, key_columns, time_column, latest)
        if records is None:
            return WATERMARK_NONE
        self._contribution.add(records)
        return records.greatest

    def read(
        self, batch: pa.RecordBatch, key_columns: list[str], time_column: str | None, latest: int = EVENT_TIME_MAX
    ) -> KeyedRecords | None:
        """The records that `add` would take; None: there are none. They are not taken."""
        return self._reader.read(batch, key_columns, time_column, latest)

    def take_full(self) -> list[pa.RecordBatch]:
        """Output batches that are complete: call it after every `add`, for they are kept in memory until then."""
        return self._contribution.take_full()

    def drain(self) -> list[pa.RecordBatch]:
        """All remaining output; the fragmenter is empty afterwards."""
        return self._contribution.drain()

    def malformed(self) -> list[tuple[pa.RecordBatch, str]]:
        """Records refused since the last call, as they came, and why."""
        return self._reader.malformed()
