"""Ferry's side of the throughput benchmark: jobs of `ferry_workloads` over directories of Parquet files that end.

The same files are read by vanilla Spark (`bench/shared/spark_queries.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import ferry
from bench.parts.throughput.inputs import CASES
from ferry.process.aggregator import Functions


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The files of every stream, below `directory`; a reader leaves columns alone that the schema does not name."""
    case = CASES[args["query"]]
    return {
        stream: ferry.parquet_files(f"{args['directory']}/{stream}", schema=case.schema(stream), finite=True)
        for stream in case.streams
    }


@dataclass(frozen=True, slots=True)
class Repartitioned:
    """A stream whose aggregates are made of the records themselves, which go to where their key is led (Slash's UpPar).

    Tasks aggregate nothing beforehand: an aggregator makes a process of an operator, and a process is sent its records.
    """

    stream: Any

    def __getattr__(self, name: str) -> Any:
        made = getattr(self.stream, name)
        return lambda *args, **named: Repartitioned(made(*args, **named))

    def aggregate(self, name: str, **functions: Any) -> Any:
        """The same functions, at one place only."""
        return self.stream.aggregate(name, aggregator=Functions(functions))


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """The query that `query` names; with `repartitioned`, as `Repartitioned` says."""
    job = import_module(f"ferry_workloads.jobs.{args['query'].partition('-')[0]}")
    if args.get("repartitioned"):
        streams = {name: Repartitioned(stream) for name, stream in streams.items()}
    own = ("directory", "query", "repartitioned")
    return job.pipeline(streams, {name: args[name] for name in args if name not in own})
