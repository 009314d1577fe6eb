"""Operators in a graph: a branch, a diamond, sources into later operators, a sink at every stage, and one without an operator."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import ferry
from ferry.process.joins import HOW
from ferry_workloads.jobs import arguments
from ferry_workloads.nexmark import NexmarkGenerator, NexmarkSplits


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


def above(bids: pa.RecordBatch) -> pa.RecordBatch:
    """The highest prices."""
    return bids.filter(pc.greater_equal(bids["price"], 50_000_000))


def below(bids: pa.RecordBatch) -> pa.RecordBatch:
    """The lowest."""
    return bids.filter(pc.less(bids["price"], 200))


def placed(rows: pa.RecordBatch) -> pa.RecordBatch:
    """With a time, of an auction or of a bid that has none."""
    return rows.append_column("at", pc.coalesce(rows["opened"], rows["offered"]))


def cheap(rows: Any) -> Any:
    """Only what was cheap, by SQL."""
    return rows.where("top < 50000000")


def cheap_batches(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same without Spark, which then plans no epoch."""
    return rows.filter(pc.less(rows["top"], 50_000_000))


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Twelve operators: some read nothing but the operator before them, and some read three sources.

    The seed says of which side of the join by time rows are there without a partner, and whether epochs may be continuous.
    """
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
    less = short.transform(cheap) if args["seed"] % 2 else short.map_batches(cheap_batches)
    wide = less.key_by("auction").window(minute).aggregate("wide", total=ferry.sum("num"))
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
    how = HOW[1:][args["seed"] % 3]
    near = auctions.key_by("id").join(
        "near",
        bids.map_batches(above).union(bids.map_batches(below)).key_by("auction"),
        {"auction": "id", "opened": "ts", "reserve": "reserve"},
        {"bidder": "bidder", "offered": "ts", "price": "price"},
        within=("-1s", "2s"),
        where=[("reserve", "<=", "price")],
        how=how,
    )
    moments = near.map_batches(placed).event_time("at", delay="2s")
    tally = moments.key_by("bidder").window(ferry.tumbling("10s")).aggregate("tally", num=ferry.count())
    operators = {
        "short": short, "busy": busy, "seen": seen, "wide": wide, "pairs": pairs, "owned": owned, "sold": sold, "near": near,
        "tally": tally, "once": once, "times": times, "dearest": dearest,
    }  # fmt: skip
    ends = [stream.sink(ferry.parquet(name)) for name, stream in operators.items()]
    return [*ends, people.map_batches(of_oregon).sink(ferry.parquet("people"))]
