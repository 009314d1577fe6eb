"""A paced stream as a Python data source of Spark: Arrow batches, and offsets that follow the clock."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

ROWS_MAX = 1 << 40
"""An epoch takes all that is due."""


class Part(InputPartition):  # type: ignore[misc]
    """A split of the source."""

    def __init__(self, split: dict[str, Any]) -> None:
        super().__init__(json.dumps(split))
        self.split = split


class PacedReader(DataSourceStreamReader):  # type: ignore[misc]
    """Asks a paced source where it is; tasks read its splits."""

    def __init__(self, make: Callable[[], Any], columns: Sequence[str], tasks: int) -> None:
        """`make` returns the source; it is called in each task."""
        self._make = make
        self._columns = columns
        self._tasks = tasks

    def initialOffset(self) -> dict[str, Any]:
        """Before the first record: the clock begins."""
        return dict(self._make().start())

    def latestOffset(self, start: dict[str, Any], limit: Any = None) -> dict[str, Any]:
        """All that is due."""
        return dict(self._make().latest(start, ROWS_MAX))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """As many as there are tasks."""
        return [Part(split) for split in self._make().plan(start, end, self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one."""
        assert isinstance(partition, Part)
        yield from self._make().read(partition.split, self._columns)


def source_of(make: Callable[[], Any], columns: Sequence[str], tasks: int) -> type[DataSource]:
    """The data source, under the name `paced`, with these columns."""

    class Paced(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return "paced"

        def schema(self) -> Any:
            fields = make().schema()
            return from_arrow_schema(pa.schema([fields.field(name) for name in columns]))

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return PacedReader(make, columns, tasks)

    return Paced
