"""NB7 (Slash): greatest price and number of bids per auction in tumbling windows of 60 s.

Output: auction, window_start, window_end, max_price, num.
"""

from __future__ import annotations

from typing import Any

import ferry
from ferry_workloads.jobs import arguments
from ferry_workloads.nexmark import NexmarkGenerator, NexmarkSplits


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The bids of NEXMark."""
    return {"bid": arguments.paced(NexmarkSplits(arguments.generator(NexmarkGenerator, args), "bid"), args)}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Maximum and count per auction and window."""
    window = ferry.tumbling(arguments.duration(args, "window_ms", 60_000))
    bids = streams["bid"].event_time("ts", delay=arguments.delay(args, arguments.generator(NexmarkGenerator, args)))
    best = bids.key_by("auction").window(window).aggregate("best", max_price=ferry.max("price"), num=ferry.count())
    return best.sink(ferry.parquet("nb7"))
