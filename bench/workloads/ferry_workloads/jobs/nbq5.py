"""NBQ5 (Rhino): bids per auction in sliding windows of 60 s every 10 s.

Output: auction, window_start, window_end, num.
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
    """Count per auction and window."""
    size, slide = arguments.duration(args, "window_ms", 60_000), arguments.duration(args, "slide_ms", 10_000)
    bids = streams["bid"].event_time("ts", delay=arguments.delay(args, arguments.generator(NexmarkGenerator, args)))
    counts = bids.key_by("auction").window(ferry.sliding(size, slide)).aggregate("counts", num=ferry.count())
    return counts.sink(ferry.parquet("nbq5"))
