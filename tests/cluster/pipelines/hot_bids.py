"""NEXMark Q5 over bids that a topic of Kafka holds as JSON; what is found goes to files and to another topic."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import ferry
from ferry_workloads.jobs import arguments, q5
from ferry_workloads.nexmark import NexmarkGenerator

BID = pa.schema([(name, pa.int64()) for name in ("seq", "ts", "auction", "bidder", "price")])


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """What the topic held when the job began."""
    return {"bid": ferry.kafka(args["servers"], "bids", BID, beside=["offset"], finite=True)}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """As q5."""
    made = arguments.generator(NexmarkGenerator, {"seed": args["seed"], "group": args["group"]})
    bids = streams["bid"].event_time("ts", delay=f"{made.disorder_bound_ms()}ms").key_by("auction")
    counts = bids.window(ferry.sliding("1m", "1s")).aggregate("counts", num=ferry.count())
    hottest = counts.transform(q5.hottest)
    topic = ferry.kafka_sink(args["servers"], "hottest", key="auction")
    return [hottest.sink(ferry.parquet("q5")), hottest.sink(topic)]
