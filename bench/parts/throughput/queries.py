"""Ferry's side of the throughput benchmark: jobs of `ferry.workloads` over directories of Parquet files that end.

The same files are read by vanilla Spark (`bench/shared/spark_queries.py`).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import ferry
from bench.parts.throughput.inputs import CASES


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The files of every stream, below `directory`; a reader leaves columns alone that the schema does not name."""
    case = CASES[args["query"]]
    return {
        stream: ferry.parquet_files(f"{args['directory']}/{stream}", schema=case.schema(stream), finite=True)
        for stream in case.streams
    }


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """The query that `query` names."""
    job = import_module(f"ferry.workloads.jobs.{args['query'].partition('-')[0]}")
    return job.pipeline(streams, {name: args[name] for name in args if name not in ("directory", "query")})
