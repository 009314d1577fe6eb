"""Ferry: stateful stream jobs on Spark that rescale and fail over without stopping.

A job is a module with two functions: `sources(spark, args)` returns named streams, `pipeline(streams, args)` returns sinks;
see docs/tutorial.md. Only the names in `ferry.__all__` are stable; the other modules of this package may change.

The examples in docstrings use the streams of NEXMark: `bids` (seq, ts, auction, bidder, price), `auctions` (id, ts, seller,
reserve) and `people` (id, ts, name). `per_auction` holds the bids of each auction in windows of one minute, `counts` the
number of bids per window.

Each name is loaded on first use, because the operator imports `ferry.contract` on machines without Spark and Arrow.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ferry.api.expressions import filter, select
    from ferry.api.keyed import KeyedStream
    from ferry.api.stream import Stream
    from ferry.api.windowed import WindowedStream
    from ferry.api.windows import at_end, changes, records, rows, session, sliding, tumbling
    from ferry.connectors.console.sink import console
    from ferry.connectors.delta.sink import delta
    from ferry.connectors.files.csv_files import csv_files
    from ferry.connectors.files.json_files import json_files
    from ferry.connectors.files.parquet_files import parquet_files
    from ferry.connectors.files.parquet_sink import parquet
    from ferry.connectors.foreach.sink import foreach_epoch
    from ferry.connectors.http.sink import http
    from ferry.connectors.iceberg.sink import iceberg
    from ferry.connectors.kafka.sink import kafka_sink
    from ferry.connectors.kafka.source import kafka
    from ferry.connectors.poll.source import poll
    from ferry.connectors.postgres.sink import postgres
    from ferry.connectors.sink import Sink
    from ferry.connectors.splits import Flow, FlowSplits, Malformed, Splits
    from ferry.connectors.table.source import table
    from ferry.contract.errors import FerryError, Final, SpecRefused
    from ferry.kernels import aggregates
    from ferry.kernels.aggregates import *  # noqa: F403
    from ferry.process.aggregator import Aggregator
    from ferry.process.api import Process, Work
    from ferry.process.harness import ProcessHarness
    from ferry.process.tables import Entries, StateTable
    from ferry.reading.state import read_state
    from ferry.reading.writing import write_state
    from ferry.testing.pipeline import test
    from ferry.testing.runs import RunFailed, run

    __all__ = [
        "Aggregator",
        "Entries",
        "FerryError",
        "Final",
        "Flow",
        "FlowSplits",
        "KeyedStream",
        "Malformed",
        "Process",
        "ProcessHarness",
        "RunFailed",
        "Sink",
        "SpecRefused",
        "Splits",
        "StateTable",
        "Stream",
        "WindowedStream",
        "Work",
        "at_end",
        "changes",
        "console",
        "csv_files",
        "delta",
        "filter",
        "foreach_epoch",
        "http",
        "iceberg",
        "json_files",
        "kafka",
        "kafka_sink",
        "parquet",
        "parquet_files",
        "poll",
        "postgres",
        "read_state",
        "records",
        "rows",
        "run",
        "select",
        "session",
        "sliding",
        "table",
        "test",
        "tumbling",
        "write_state",
    ]
    __all__ += aggregates.__all__

_HOMES = {
    "ferry.contract.errors": ("FerryError", "Final", "SpecRefused"),
    "ferry.process.aggregator": ("Aggregator",),
    "ferry.process.api": ("Process", "Work"),
    "ferry.process.harness": ("ProcessHarness",),
    "ferry.process.tables": ("Entries", "StateTable"),
    "ferry.reading.state": ("read_state",),
    "ferry.reading.writing": ("write_state",),
    "ferry.connectors.files.csv_files": ("csv_files",),
    "ferry.connectors.delta.sink": ("delta",),
    "ferry.api.expressions": ("filter", "select"),
    "ferry.connectors.files.json_files": ("json_files",),
    "ferry.connectors.files.parquet_files": ("parquet_files",),
    "ferry.connectors.http.sink": ("http",),
    "ferry.connectors.iceberg.sink": ("iceberg",),
    "ferry.connectors.kafka.source": ("kafka",),
    "ferry.connectors.kafka.sink": ("kafka_sink",),
    "ferry.connectors.poll.source": ("poll",),
    "ferry.connectors.postgres.sink": ("postgres",),
    "ferry.connectors.console.sink": ("console",),
    "ferry.connectors.files.parquet_sink": ("parquet",),
    "ferry.connectors.foreach.sink": ("foreach_epoch",),
    "ferry.connectors.sink": ("Sink",),
    "ferry.connectors.splits": ("Flow", "FlowSplits", "Malformed", "Splits"),
    "ferry.api.keyed": ("KeyedStream",),
    "ferry.api.stream": ("Stream",),
    "ferry.connectors.table.source": ("table",),
    "ferry.api.windowed": ("WindowedStream",),
    "ferry.testing.pipeline": ("test",),
    "ferry.testing.runs": ("RunFailed", "run"),
    "ferry.api.windows": ("at_end", "changes", "records", "rows", "session", "sliding", "tumbling"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_OTHERS = {
    "mean": ("avg", "average"), "stddev": ("std", "stdev"), "variance": ("var",), "tumbling": ("window", "tumble"),
    "sliding": ("hop", "hopping", "slide"), "json_files": ("json", "read_json"), "parquet_files": ("read_parquet",),
    "csv_files": ("read_csv", "csv"), "table": ("read_sql", "read_table", "postgres_table", "jdbc_table"),
    "count_distinct": ("countDistinct", "distinct", "nunique"), "console": ("print", "show"),
    "kafka": ("read_kafka", "from_kafka"), "foreach_epoch": ("foreach", "foreach_batch", "foreachBatch"),
    "http": ("post", "webhook", "rest"), "delta": ("deltalake", "write_deltalake", "delta_lake"),
    "postgres": ("jdbc", "postgresql", "to_sql", "sql"),
}  # fmt: skip
"""By Ferry's name: the names of the same function in other libraries."""
_AGGREGATES = "ferry.kernels.aggregates"
"""The module that registers the aggregate functions. No other module names them."""


def __getattr__(name: str) -> Any:
    if name == "__all__":  # read by `from ferry import *`
        return sorted([*_HOME_OF, *importlib.import_module(_AGGREGATES).__all__])
    home = _HOME_OF.get(name)
    # `from ferry import environment` calls this function first: the import of a submodule must not load Arrow.
    if home is None and not name.startswith("_") and find_spec(f"ferry.{name}") is None:
        home = _AGGREGATES
    module = importlib.import_module(home) if home is not None else None
    if module is None or (home == _AGGREGATES and name not in module.__all__):
        raise AttributeError(f"module 'ferry' has no attribute {name!r}{_hint(name) if home else ''}")
    return getattr(module, name)


def _hint(name: str) -> str:
    """The suggestion for a name that `ferry` does not have; "" without one."""
    if other := [own for own, names in _OTHERS.items() if name in names]:
        return f"; use ferry.{other[0]}"
    import difflib

    close = difflib.get_close_matches(name, __getattr__("__all__"), 1)
    return f"; did you mean {close[0]!r}?" if close else ""
