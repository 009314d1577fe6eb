"""Counts of each key, with every change, of the files in a directory."""

from __future__ import annotations

from typing import Any

import ferry
from bench.parts.latency.counts import counted
from bench.parts.latency.feed_files import COLUMNS


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """A directory to which files are added."""
    return {"keys": ferry.parquet_files(args["directory"], COLUMNS)}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """After each epoch the counts that it has changed."""
    return counted(streams["keys"].created_at("t")).sink(ferry.parquet("files"))
