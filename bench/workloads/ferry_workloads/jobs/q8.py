"""NEXMark Q8: the people who opened an auction in the tumbling window of 12 h in which they signed up, each once.

Output: window_start, window_end, id, name.
"""

from __future__ import annotations

from typing import Any

import ferry
from ferry_workloads.jobs import arguments
from ferry_workloads.nexmark import NexmarkGenerator, NexmarkSplits


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """People and auctions of NEXMark."""
    made = arguments.generator(NexmarkGenerator, args)
    return {
        "person": arguments.paced(NexmarkSplits(made, "person"), args),
        "auction": arguments.paced(NexmarkSplits(made, "auction"), args),
    }


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """A windowed join, with each person once. An epoch has all rows of a fired window, so `distinct` is complete."""
    delay = arguments.delay(args, arguments.generator(NexmarkGenerator, args))
    window = ferry.tumbling(arguments.duration(args, "window_ms", 12 * 3_600_000))
    people = streams["person"].event_time("ts", delay=delay).key_by("id").window(window)
    sellers = streams["auction"].event_time("ts", delay=delay).key_by("seller")
    opened = people.join("opened", sellers, left=["id", "name"], right=[])
    return opened.transform(lambda rows: rows.distinct()).sink(ferry.parquet("q8"))
