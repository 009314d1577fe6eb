"""The input of an epoch: one share of splits per task, with control rows among the splits.

A tick marks an epoch without records, requested by the coordinator. The flush means that all sources are finite and ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from ferry.connectors.splits import RangeSplits
from ferry.contract.notes import RecordPlace
from ferry.spark.attempts import died_before
from ferry.spark.cuts import without

SCHEMA = "source string, split string"


class Batch:
    """The input of an epoch: shares for tasks that read them, or the `ferry` rows of a DataFrame for Spark SQL."""

    def __init__(
        self,
        spark: SparkSession,
        shares: Sequence[Sequence[tuple[str, str]]],
        again: Callable[[str], Sequence[Sequence[tuple[str, str]]]] | None = None,
    ) -> None:
        """`shares`: planned by the driver. `again`: plans them again when they could not be read."""
        self._spark = spark
        self._shares = [list(share) for share in shares]
        self._again = again

    def failed(self, reason: str) -> None:
        """Plan again after tasks failed to read, with `reason` as the cause: a file may have been fixed. Raises Fault."""
        if self._again is not None:
            self._shares = [list(share) for share in self._again(reason)]
            self.__dict__.pop("frame", None)

    def shares(self) -> list[list[tuple[str, str]]]:
        """Rows (source, split) for one task each."""
        return self._shares

    def without(self, records: Iterable[RecordPlace], sources: Mapping[str, Any]) -> Batch:
        """The batch without these records, which are set aside."""
        numbers: dict[str, dict[str, list[int]]] = {}
        for name, split, number in records:
            numbers.setdefault(name, {}).setdefault(split, []).append(number)
        if not numbers:
            return self
        shares = [
            [
                (name, part)
                for name, split in share
                for part in (
                    without(split, numbers[name], isinstance(sources.get(name), RangeSplits))
                    if name in numbers
                    else [split]
                )
            ]
            for share in self.shares()
        ]
        return Batch(self._spark, shares)

    @cached_property
    def frame(self) -> DataFrame:
        """The batch as a DataFrame, with a partition per share, and a column per Spark source."""
        return shares_frame(self._spark, self._shares)


def shares_frame(spark: SparkSession, shares: Sequence[Sequence[tuple[str, str]]]) -> DataFrame:
    """A DataFrame of (source, split) with a partition for each share."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in [] if died_before() else batches:
            for i in batch.column(0).to_pylist():
                yield rows_of(shares[i])

    return spark.range(0, len(shares), 1, len(shares)).mapInArrow(read, SCHEMA)


def rows_of(share: Sequence[Sequence[str]]) -> pa.RecordBatch:
    """The rows (source, split) of a share."""
    names, splits = zip(*share, strict=True)
    return pa.RecordBatch.from_pydict({"source": list(names), "split": list(splits)})
