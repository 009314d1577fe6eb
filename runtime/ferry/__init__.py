"""Ferry: stateful stream jobs on Spark that never stop.

A job is a module with two functions: `sources(spark, args)` returns named streams, `pipeline(streams, args)` turns them
into sinks; see README.md. Everything else in this package may change.

The names below are loaded when they are first used: the operator imports `ferry.contract` on machines that have neither
Spark nor Arrow.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ferry.contract.errors import FerryError, Final, SpecRefused
    from ferry.kernels import aggregates
    from ferry.kernels.aggregates import *  # noqa: F403
    from ferry.spark.files import json_files, parquet_files
    from ferry.spark.sinks import Sink, console, foreach_epoch, parquet
    from ferry.spark.splits import Malformed, Splits
    from ferry.spark.stream import Stream
    from ferry.spark.words import sliding, tumbling

__all__ = [
    "FerryError",
    "Final",
    "Malformed",
    "Sink",
    "SpecRefused",
    "Splits",
    "Stream",
    "console",
    "foreach_epoch",
    "json_files",
    "parquet",
    "parquet_files",
    "sliding",
    "tumbling",
]
if TYPE_CHECKING:
    __all__ += aggregates.__all__

_HOMES = {
    "ferry.contract.errors": ("FerryError", "Final", "SpecRefused"),
    "ferry.spark.files": ("json_files", "parquet_files"),
    "ferry.spark.sinks": ("Sink", "console", "foreach_epoch", "parquet"),
    "ferry.spark.splits": ("Malformed", "Splits"),
    "ferry.spark.stream": ("Stream",),
    "ferry.spark.words": ("sliding", "tumbling"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_AGGREGATES = "ferry.kernels.aggregates"
"""Home of the aggregate functions, each of which is entered there and nowhere else."""


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    # `from ferry import environment` asks here first: rooms must not load Arrow.
    if home is None and not name.startswith("_") and find_spec(f"ferry.{name}") is None:
        home = _AGGREGATES
    module = importlib.import_module(home) if home is not None else None
    if module is None or (home == _AGGREGATES and name not in module.__all__):
        raise AttributeError(f"module 'ferry' has no attribute {name!r}")
    return getattr(module, name)
