"""NEXMark Q11: how many bids each bidder made in each session of activity, with gaps of 10 s at most.

Output: bidder, window_start, window_end, num.
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
    """Count per bidder and session."""
    bids = streams["bid"].event_time("ts", delay=arguments.delay(args, arguments.generator(NexmarkGenerator, args)))
    sessions = bids.key_by("bidder").window(ferry.session(arguments.duration(args, "gap_ms", 10_000)))
    return sessions.aggregate("q11_sessions", num=ferry.count()).sink(ferry.parquet("q11"))
