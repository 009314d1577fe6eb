"""NB11 (Slash): every (person, bid) pair with person.id = bid.bidder in one session, with gaps of 10 s at most.

Output: window_start, window_end, person, person_seq, bid_seq.
"""

from __future__ import annotations

from typing import Any

import ferry
from ferry_workloads.jobs import arguments
from ferry_workloads.nexmark import NexmarkGenerator, NexmarkSplits


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """People and bids of NEXMark."""
    made = arguments.generator(NexmarkGenerator, args)
    return {
        "person": arguments.paced(NexmarkSplits(made, "person"), args),
        "bid": arguments.paced(NexmarkSplits(made, "bid"), args),
    }


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """A join in sessions; both sides are kept until the session is final."""
    delay = arguments.delay(args, arguments.generator(NexmarkGenerator, args))
    sessions = ferry.session(arguments.duration(args, "gap_ms", 10_000))
    people = streams["person"].event_time("ts", delay=delay).key_by("id").window(sessions)
    bids = streams["bid"].event_time("ts", delay=delay).key_by("bidder")
    pairs = people.join("nb11_pairs", bids, {"person": "id", "person_seq": "seq"}, {"bid_seq": "seq"})
    return pairs.sink(ferry.parquet("nb11"))
