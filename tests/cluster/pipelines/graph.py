"""Operators in a graph: a branch, a diamond, sources into later operators, a sink at every stage, and one without an operator."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import ferry
from ferry.workloads.jobs import arguments
from ferry.workloads.nexmark import NexmarkGenerator, NexmarkSplits


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """People, auctions and bids of NEXMark."""
    made = arguments.generator(NexmarkGenerator, args)
    return {name: NexmarkSplits(made, name) for name in ("person", "auction", "bid")}


def of_oregon(people: pa.RecordBatch) -> pa.RecordBatch:
    """Some of the people, some of their columns."""
    return people.filter(pc.equal(people["state"], "OR")).select(["seq", "id", "name"])


def named(column: str) -> Any:
    """One column, as `who`, and the event time."""
    return lambda batch: batch.select([column, "ts"]).rename_columns(["who", "ts"])


def cheap(rows: Any) -> Any:
    """Only what was cheap, by SQL."""
    return rows.where("top < 50000000")


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Ten operators: some read nothing but the operator before them, and some read three sources."""
    delay = arguments.delay(args, arguments.generator(NexmarkGenerator, args))
    people, auctions, bids = (streams[name].event_time("ts", delay=delay) for name in ("person", "auction", "bid"))
    minute = ferry.tumbling("60s")
    who = ((people, "id"), (auctions, "seller"), (bids, "bidder"))
    first, *others = [stream.map_batches(named(column)) for stream, column in who]
    short = (
        bids.key_by("auction")
        .window(ferry.tumbling("10s"))
        .aggregate("short", num=ferry.count(), top=ferry.max("price"))
    )
    busy = bids.key_by("bidder").window(ferry.tumbling("20s")).aggregate("busy", num=ferry.count())
    seen = (
        first.union(*others)
        .key_by("who")
        .window(minute)
        .aggregate("seen", num=ferry.count(), times=ferry.count_distinct("ts"))
    )
    once = first.union(first, *others).distinct("who", "ts", within="60s")
    times = once.key_by("who").window(ferry.sliding("60s", "30s")).aggregate("times", num=ferry.count())
    dear = bids.key_by("bidder").window(ferry.sliding("20s", "10s"))
    dearest = dear.top_n("dearest", 3, by="price", columns=["seq", "price"])
    wide = short.transform(cheap).key_by("auction").window(minute).aggregate("wide", total=ferry.sum("num"))
    pairs = (
        short.key_by("auction")
        .window(minute)
        .join("pairs", wide.key_by("auction"), {"auction": "auction", "num": "num"}, {"total": "total"})
    )
    owned = (
        auctions.key_by("id")
        .window(minute)
        .join("owned", short.key_by("auction"), {"auction": "id", "seller": "seller"}, {"num": "num", "top": "top"})
    )
    sold = (
        owned.key_by("seller")
        .window(minute)
        .join("sold", people.key_by("id"), {"auction": "auction", "top": "top"}, {"seller": "id", "name": "name"})
    )
    operators = {
        "short": short,
        "busy": busy,
        "seen": seen,
        "wide": wide,
        "pairs": pairs,
        "owned": owned,
        "sold": sold,
        "once": once,
        "times": times,
        "dearest": dearest,
    }
    ends = [stream.sink(ferry.parquet(name)) for name, stream in operators.items()]
    return [*ends, people.map_batches(of_oregon).sink(ferry.parquet("people"))]
