"""NBQ8 (Rhino; NB8 in Slash): every (person, auction) pair with person.id = auction.seller in one tumbling window of 12 h.

Output: window_start, window_end, person, person_seq, auction, reserve, auction_seq.
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
    """A windowed join; both sides are kept until the window is final."""
    delay = arguments.delay(args, arguments.generator(NexmarkGenerator, args))
    window = ferry.tumbling(arguments.duration(args, "window_ms", 12 * 3_600_000))
    people = streams["person"].event_time("ts", delay=delay).key_by("id").window(window)
    auctions = streams["auction"].event_time("ts", delay=delay).key_by("seller")
    pairs = people.join(
        "pairs",
        auctions,
        left={"person": "id", "person_seq": "seq"},
        right={"auction": "id", "reserve": "reserve", "auction_seq": "seq"},
    )
    return pairs.sink(ferry.parquet("nbq8"))
