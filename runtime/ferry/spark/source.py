"""Ferry's sources as a Spark data source, for jobs that also have Spark's own sources."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from ferry.connectors.splits import Splits
from ferry.contract.errors import Fault
from ferry.contract.limits import SLOW_MS
from ferry.spark import private
from ferry.spark.shares import SCHEMA, Batch, rows_of
from ferry.spark.split_reader import SplitsReader
from ferry.system.files import replacing

T = TypeVar("T")

WAIT_SECONDS = 1.0
"""Interval between two attempts to read a failing source."""

PROBLEM = "problem"
"""File of the run's directory: what the source's process waits for, if Spark plans the epochs."""


class Share(InputPartition):
    """The share of one task: (source, split as JSON) rows; with an empty source name, a tick, the flush or flows."""

    def __init__(self, rows: list[tuple[str, str]]) -> None:
        super().__init__(rows)
        self.rows = rows


class WaitingReader(DataSourceStreamReader):
    """Runs in a process of Spark. It waits for a source that fails and reports it in a file: an error would end the query.

    The file also names a slow call of a user's source.
    """

    def __init__(
        self,
        sources: dict[str, Splits],
        max_rows: int,
        tasks: int,
        directory: Path,
        first: Mapping[str, int] = MappingProxyType({}),
        slow_ms: int = SLOW_MS,
    ) -> None:
        self._reader = SplitsReader(sources, max_rows, tasks, directory, False, first, running=self._watched)
        self._first = first
        self._directory = directory
        self._slow_seconds = slow_ms / 1000

    @contextmanager
    def _watched(self, text: str) -> Iterator[None]:
        watch = threading.Timer(self._slow_seconds, self._say, (f"{text} more than {self._slow_seconds:g} s",))
        watch.daemon = True
        watch.start()
        try:
            yield
        finally:
            watch.cancel()
            watch.join()

    def initialOffset(self) -> dict[str, Any]:
        """The offset before the first record, once all sources know it."""
        return self._waited(self._reader.initial_offset)

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        """The next offset; while a source cannot be read, the same offset with new ticks.

        Waits here for sources of initial states, because Spark's own sources would not wait.
        """
        ask = partial(self._reader.latest_offset, start)
        now = start["positions"]
        if any(not self._reader.ended(name, now) for name in self._first):
            later = self._waited(ask)
        else:
            try:
                later = ask()
            except Fault as wrong:
                self._say(str(wrong))
                return self._reader.ticked(start)
        self._say("; ".join(self._reader.problems()))
        return later

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Share]:
        """The shares between these offsets, once all sources can plan them."""
        return [Share(rows) for rows in self._waited(lambda: self._reader.shares(start, end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a share."""
        assert isinstance(partition, Share)
        yield rows_of(partition.rows)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do."""

    def _waited(self, ask: Callable[[], T]) -> T:
        while True:
            try:
                return ask()
            except Fault as wrong:
                self._say(str(wrong))
                time.sleep(WAIT_SECONDS)

    def _say(self, text: str) -> None:
        file = self._directory / PROBLEM
        if text:
            with replacing(file) as new:
                new.write_text(text)
        else:
            file.unlink(missing_ok=True)


class QueryBatch(Batch):
    """The batch of a Spark streaming query, with Spark's own sources and Ferry's sources."""

    def __init__(self, frame: DataFrame) -> None:
        super().__init__(frame.sparkSession, ())
        self.frame = frame

    def shares(self) -> list[list[tuple[str, str]]]:
        """The shares that Spark has planned, for a query of `ferry` rows alone.

        Reads the partitions of the plan instead of a run of the plan, in which each task would need a second Python worker
        just to get its share. The pickled `Share` objects come from Spark's own process on this machine.
        """
        return [share.rows for share in private.planned_partitions(self.frame)]


def splits_source(
    sources: dict[str, Splits], max_rows: int, tasks: int, directory: Path, first: Mapping[str, int], slow_ms: int
) -> type[DataSource]:
    """A Spark data source named `ferry` for these sources, used together with sources that never end.

    `first`: the sources that are read before all others, with their rows per epoch.
    """

    class FerrySplits(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ferry"

        def schema(self) -> str:
            return SCHEMA

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return WaitingReader(sources, max_rows, tasks, directory, first, slow_ms)

    return FerrySplits
