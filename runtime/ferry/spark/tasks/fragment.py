"""The contribution of an ingest task to an operator of any kind; each kind has its own file in this room.

A new kind of operator needs a class that implements the protocol `Contribution`, and a branch in `open_contribution`. It
runs inside the Spark task. Must never import pyspark or open a socket. It routes nothing: the helper sorts by virtual node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, assert_never

import pyarrow as pa

from ferry.contract.descriptors import OperatorDescriptor, Span
from ferry.spark.tasks.join_rows import JoinRows
from ferry.spark.tasks.partial_aggregates import GROUPS_MAX, PartialAggregates
from ferry.spark.tasks.process_rows import Condense, ProcessRows
from ferry.spark.tasks.records import EVENT_TIME_MAX, KeyedRecords, RecordReader


class Contribution(Protocol):
    """Records of one input, converted to batches of the operator's fragment schema (`ferry.kernels.schemas`)."""

    @property
    def numbers(self) -> Sequence[str]:
        """Columns whose integers are kept: they must fit into signed 64-bit integers."""

    def add(self, records: KeyedRecords) -> None:
        """Add records. Raises SpecRefused for columns of wrong types."""

    def take_full(self) -> list[pa.RecordBatch]:
        """Take the complete batches."""

    def drain(self) -> list[pa.RecordBatch]:
        """Take all remaining batches; the contribution is empty afterwards."""


def open_contribution(
    descriptor: OperatorDescriptor, side: int, groups_max: int, condense: Condense | None
) -> Contribution:
    """An empty contribution, for one input of the operator."""
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
        """`side`: number of the input, 1 for the right input of a join; `condense`: the result of `condensing`."""
        self._contribution = open_contribution(descriptor, side, groups_max, condense)
        self._reader = RecordReader(descriptor, descriptor.columns(side), self._contribution.numbers)

    def add(
        self,
        batch: pa.RecordBatch,
        key_columns: list[str],
        time_column: str | None,
        latest: int = EVENT_TIME_MAX,
        span: Span | None = None,
    ) -> int:
        """Add records; event time is int64 milliseconds or a timestamp, at most `latest`. Only windows need an event time.

        Returns the greatest event time of the records, also of records outside of `span`, which are not added;
        WATERMARK_NONE without records. Raises SpecRefused for columns of wrong types.
        """
        records, greatest = self._reader.read(batch, key_columns, time_column, latest, span)
        if records is not None:
            self._contribution.add(records)
        return greatest

    def read(
        self, batch: pa.RecordBatch, key_columns: list[str], time_column: str | None, span: Span | None = None
    ) -> KeyedRecords | None:
        """The records that `add` would add, without adding them; None: no records."""
        return self._reader.read(batch, key_columns, time_column, EVENT_TIME_MAX, span)[0]

    def take_full(self) -> list[pa.RecordBatch]:
        """Take the complete output batches. Call it after every `add`, because they stay in memory until then."""
        return self._contribution.take_full()

    def drain(self) -> list[pa.RecordBatch]:
        """Take all remaining output; the fragmenter is empty afterwards."""
        return self._contribution.drain()

    def malformed(self) -> list[tuple[pa.RecordBatch, str]]:
        """Unchanged records that were refused since the last call, with the reasons."""
        return self._reader.malformed()
