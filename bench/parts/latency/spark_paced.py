"""Vanilla Spark over a paced stream: `python -m bench.parts.latency.spark_paced CONF.json`, until it is killed.

The records are those of Ferry's generator, made in Spark's own Python data source: Arrow batches, by as many tasks as there
are cores; offsets follow the clock. The query is `shared/spark_queries.py`'s, the sink takes rows and forgets them.
"""

from __future__ import annotations

import importlib
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from bench.shared import spark_queries, vanilla_spark
from bench.shared.spark_source import source_of

COLUMNS = {"nbq5": ["ts", "auction"], "ysb": ["ts", "ad_id", "event_type"], "q11": ["ts", "bidder"]}
STREAMS = {"nbq5": "bid", "ysb": "ysb", "q11": "bid"}


def stream(query: str, arguments: dict[str, Any]) -> Any:
    """The paced stream that the query reads."""
    job = importlib.import_module(f"ferry_workloads.jobs.{query}")
    return job.sources(None, arguments)[STREAMS[query]]


def main() -> None:
    """Run the query of the configuration."""
    conf = json.loads(Path(sys.argv[1]).read_text())
    spark = vanilla_spark.session(conf)
    query = conf["query"]
    spark.dataSource.register(source_of(partial(stream, query, conf["arguments"]), COLUMNS[query], conf["cores"]))
    streams = {STREAMS[query]: spark.readStream.format("paced").load()}
    made = spark_queries.QUERIES[query]
    vanilla_spark.started(made.rows(streams, conf), conf, made.mode, "noop", None).awaitTermination()


if __name__ == "__main__":
    main()
