"""Vanilla Spark over a paced stream: `python -m bench.parts.latency.spark_paced CONF.json`, until it is killed.

The records are those of Ferry's generator, made in Spark's own Python data source: Arrow batches, by as many tasks as there
are cores; offsets follow the clock. The query is `shared/spark_queries.py`'s, the sink takes rows and forgets them.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from bench.shared import spark_queries, vanilla_spark

COLUMNS = {"nbq5": ["ts", "auction"], "ysb": ["ts", "ad_id", "event_type"], "q11": ["ts", "bidder"]}
STREAMS = {"nbq5": "bid", "ysb": "ysb", "q11": "bid"}

ROWS_MAX = 1 << 40
"""An epoch takes all that is due."""


class Part(InputPartition):  # type: ignore[misc]
    """A split of the source."""

    def __init__(self, split: dict[str, Any]) -> None:
        super().__init__(json.dumps(split))
        self.split = split


class PacedReader(DataSourceStreamReader):  # type: ignore[misc]
    """Asks a paced source where it is; tasks read its splits."""

    def __init__(self, query: str, arguments: dict[str, Any], tasks: int) -> None:
        self._query = query
        self._arguments = arguments
        self._tasks = tasks

    def _source(self) -> Any:
        job = importlib.import_module(f"ferry_workloads.jobs.{self._query}")
        return job.sources(None, self._arguments)[STREAMS[self._query]]

    def initialOffset(self) -> dict[str, Any]:
        """Before the first record: the clock begins."""
        return dict(self._source().start())

    def latestOffset(self, start: dict[str, Any], limit: Any = None) -> dict[str, Any]:
        """All that is due."""
        return dict(self._source().latest(start, ROWS_MAX))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """As many as there are tasks."""
        return [Part(split) for split in self._source().plan(start, end, self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one."""
        assert isinstance(partition, Part)
        yield from self._source().read(partition.split, COLUMNS[self._query])


def source_of(query: str, arguments: dict[str, Any], tasks: int) -> type[DataSource]:
    """The data source, under the name `paced`."""

    class Paced(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return "paced"

        def schema(self) -> Any:
            reader = PacedReader(query, arguments, tasks)
            fields = reader._source().schema()
            return from_arrow_schema(pa.schema([fields.field(name) for name in COLUMNS[query]]))

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return PacedReader(query, arguments, tasks)

    return Paced


def main() -> None:
    """Run the query of the configuration."""
    conf = json.loads(Path(sys.argv[1]).read_text())
    spark = vanilla_spark.session(conf)
    query = conf["query"]
    spark.dataSource.register(source_of(query, conf["arguments"], conf["cores"]))
    streams = {STREAMS[query]: spark.readStream.format("paced").load()}
    made = spark_queries.QUERIES[query]
    vanilla_spark.started(made.rows(streams, conf), conf, made.mode, "noop", None).awaitTermination()


if __name__ == "__main__":
    main()
