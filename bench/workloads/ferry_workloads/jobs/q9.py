"""NEXMark Q9: the winning bid of each auction, when it has closed; Q4 and Q6 are made of these.

Output: id, seller, category, closed_at, price, bidder, bid_ts, bid_seq.
"""

from __future__ import annotations

from typing import Any

import ferry
from ferry_workloads.auctions import AUCTION, BID, WinningBids
from ferry_workloads.jobs import arguments
from ferry_workloads.nexmark import NexmarkGenerator, NexmarkSplits


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """Auctions and bids of NEXMark."""
    made = arguments.generator(NexmarkGenerator, args)
    return {
        "auction": arguments.paced(NexmarkSplits(made, "auction"), args),
        "bid": arguments.paced(NexmarkSplits(made, "bid"), args),
    }


def winners(name: str, streams: Any, args: dict[str, Any]) -> Any:
    """Closed auctions with a valid bid, from an operator of this name."""
    delay = arguments.delay(args, arguments.generator(NexmarkGenerator, args))
    auctions = streams["auction"].event_time("ts", delay=delay).key_by("id")
    bids = streams["bid"].event_time("ts", delay=delay).key_by("auction")
    return auctions.process(name, WinningBids(), bids, columns=[*AUCTION, *BID])


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Emit each winning bid when its auction closes."""
    return winners("q9_winners", streams, args).sink(ferry.parquet("q9"))
