"""NEXMark Q3: auctions of category 10 by sellers of three states, in any order of arrival. No record is forgotten.

Output: name, city, state, auction.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

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


STATES = ferry.filter(pc.is_in(pc.field("state"), pa.array(["OR", "ID", "CA"])))
"""Oregon, Idaho and California."""

CATEGORY = ferry.filter(pc.field("category") == 10)
"""One of five."""


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """A join without bounds; both sides are kept for ever."""
    delay = arguments.delay(args, arguments.generator(NexmarkGenerator, args))
    people = streams["person"].map_batches(STATES).event_time("ts", delay=delay).key_by("id")
    auctions = streams["auction"].map_batches(CATEGORY).event_time("ts", delay=delay).key_by("seller")
    sales = people.join("q3_sales", auctions, ["name", "city", "state"], {"auction": "id"})
    return sales.sink(ferry.parquet("q3"))
