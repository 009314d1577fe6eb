"""An aggregate, a join, sessions and a process side by side, as the papers' queries have them."""

from __future__ import annotations

from typing import Any

import ferry
from ferry_workloads.auctions import AUCTION, BID, WinningBids
from ferry_workloads.jobs import arguments
from ferry_workloads.nexmark import NexmarkGenerator, NexmarkSplits


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """People, auctions and bids of NEXMark."""
    made = arguments.generator(NexmarkGenerator, args)
    return {name: NexmarkSplits(made, name) for name in ("person", "auction", "bid")}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """NBQ5, NBQ8 with a window of a minute, Q11 and Q9."""
    delay = arguments.delay(args, arguments.generator(NexmarkGenerator, args))
    people, auctions, bids = (streams[name].event_time("ts", delay=delay) for name in ("person", "auction", "bid"))
    by_auction, by_bidder = bids.key_by("auction"), bids.key_by("bidder")
    counts = by_auction.window(ferry.sliding("60s", "10s")).aggregate("counts", num=ferry.count())
    pairs = (
        people.key_by("id")
        .window(ferry.tumbling("60s"))
        .join("pairs", auctions.key_by("seller"), {"person": "seq"}, {"auction": "id", "reserve": "reserve"})
    )
    active = by_bidder.window(ferry.session("10s")).aggregate("active", num=ferry.count(), top=ferry.max("price"))
    winners = auctions.key_by("id").process("winners", WinningBids(), by_auction, columns=[*AUCTION, *BID])
    named = {"counts": counts, "pairs": pairs, "active": active, "winners": winners}
    return [stream.sink(ferry.parquet(name)) for name, stream in named.items()]
