"""Ferry: stateful stream jobs on Spark that never stop.

A job is a module with two functions: `sources(spark, args)` returns named streams, `pipeline(streams, args)` turns them
into sinks; see README.md. Everything else in this package may change.

The names below are loaded when they are first used: the operator imports `ferry.contract` on machines that have neither
Spark nor Arrow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ferry.contract.errors import FerryError, Final, SpecRefused
    from ferry.spark.files import json_files, parquet_files
    from ferry.spark.sinks import Sink, console, foreach_epoch, parquet
    from ferry.spark.splits import Malformed, Splits
    from ferry.spark.stream import Stream
    from ferry.spark.words import arg_max, count, max, mean, min, sliding, sum, tumbling

__all__ = [
    "FerryError",
    "Final",
    "Malformed",
    "Sink",
    "SpecRefused",
    "Splits",
    "Stream",
    "arg_max",
    "console",
    "count",
    "foreach_epoch",
    "json_files",
    "max",
    "mean",
    "min",
    "parquet",
    "parquet_files",
    "sliding",
    "sum",
    "tumbling",
]

_HOMES = {
    "ferry.contract.errors": ("FerryError", "Final", "SpecRefused"),
    "ferry.spark.files": ("json_files", "parquet_files"),
    "ferry.spark.sinks": ("Sink", "console", "foreach_epoch", "parquet"),
    "ferry.spark.splits": ("Malformed", "Splits"),
    "ferry.spark.stream": ("Stream",),
    "ferry.spark.words": ("arg_max", "count", "max", "mean", "min", "sliding", "sum", "tumbling"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'ferry' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
