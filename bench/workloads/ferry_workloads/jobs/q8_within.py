"""NEXMark Q8 in the words of BTW'18: every auction that a person opened within 12 h of signing up.

Output: person, auction, person_seq, auction_seq.
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
    """An interval join. A person is kept while an auction may follow."""
    delay = arguments.delay(args, arguments.generator(NexmarkGenerator, args))
    people = streams["person"].event_time("ts", delay=delay).key_by("id")
    auctions = streams["auction"].event_time("ts", delay=delay).key_by("seller")
    left, right = {"person": "id", "person_seq": "seq"}, {"auction": "id", "auction_seq": "seq"}
    within = arguments.duration(args, "window_ms", 12 * 3_600_000)
    return people.join("q8_within_pairs", auctions, left, right, within=within).sink(ferry.parquet("q8_within"))
