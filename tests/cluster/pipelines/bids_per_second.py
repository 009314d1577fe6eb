"""Bids of each auction in each second, from one topic of Kafka to another."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import ferry

BID = pa.schema([("ts", pa.int64()), ("auction", pa.int64())])


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """A topic without an end."""
    return {"bid": ferry.kafka(args["servers"], "bids", BID)}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Each count once, when its second is over."""
    bids = streams["bid"].event_time("ts", delay="1s").key_by("auction")
    counts = bids.window(ferry.tumbling("1s")).aggregate("counts", num=ferry.count())
    return counts.sink(ferry.kafka_sink(args["servers"], "counts", key="auction"))
