"""Counts of each key, with every change, from one topic of Kafka to another."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import ferry
from bench.parts.latency.feed import IN, OUT


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """A topic without an end."""
    return {"keys": ferry.kafka(args["servers"], IN, pa.schema([("k", pa.int64())]))}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """After each epoch the counts that it has changed."""
    return counted(streams["keys"]).sink(
        ferry.kafka_sink(args["servers"], OUT, key="k", exactly_once=args["exactly_once"])
    )


def counted(keys: Any) -> Any:
    """How often each `k` has come; a row when that changes."""
    return keys.key_by("k").aggregate("counts", n=ferry.count(), emit=ferry.changes())
