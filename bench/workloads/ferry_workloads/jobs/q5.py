"""NEXMark Q5: for every window of 60 s (every 1 s) the auctions with the most bids, all ties.

Output: window_start, window_end, auction, num.
"""

from __future__ import annotations

from typing import Any

import ferry
from ferry_workloads.jobs import arguments
from ferry_workloads.nexmark import NexmarkGenerator, NexmarkSplits


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The bids of NEXMark."""
    return {"bid": arguments.paced(NexmarkSplits(arguments.generator(NexmarkGenerator, args), "bid"), args)}


def hottest(counts: Any) -> Any:
    """Rows whose count is the window's greatest: an epoch holds all rows of the windows that it fired."""
    from pyspark.sql import functions as F

    top = counts.groupBy("window_start").agg(F.max("num").alias("top"))
    joined = counts.join(top, "window_start").where("num = top")
    return joined.select("window_start", "window_end", "auction", "num")


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Count per auction and window, then the maximum over all auctions."""
    size, slide = arguments.duration(args, "window_ms", 60_000), arguments.duration(args, "slide_ms", 1_000)
    bids = streams["bid"].event_time("ts", delay=arguments.delay(args, arguments.generator(NexmarkGenerator, args)))
    counts = bids.key_by("auction").window(ferry.sliding(size, slide)).aggregate("counts", num=ferry.count())
    return counts.transform(hottest).sink(ferry.parquet("q5"))
