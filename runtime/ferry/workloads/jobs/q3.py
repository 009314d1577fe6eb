"""NEXMark Q3: auctions of category 10 by sellers of three states, whoever of both comes first; nothing is ever forgotten.

Output: name, city, state, auction.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import ferry
from ferry.workloads.jobs import arguments
from ferry.workloads.nexmark import NexmarkGenerator, NexmarkSplits


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """People and auctions of NEXMark."""
    made = arguments.generator(NexmarkGenerator, args)
    return {"person": NexmarkSplits(made, "person"), "auction": NexmarkSplits(made, "auction")}


def of_three_states(people: pa.RecordBatch) -> pa.RecordBatch:
    """Oregon, Idaho and California."""
    return people.filter(pc.is_in(people.column("state"), pa.array(["OR", "ID", "CA"])))


def of_category_10(auctions: pa.RecordBatch) -> pa.RecordBatch:
    """One of five."""
    return auctions.filter(pc.equal(auctions.column("category"), 10))


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """A join without bounds; both sides are kept for ever."""
    delay = arguments.delay(args, arguments.generator(NexmarkGenerator, args))
    people = streams["person"].map_batches(of_three_states).event_time("ts", delay=delay).key_by("id")
    auctions = streams["auction"].map_batches(of_category_10).event_time("ts", delay=delay).key_by("seller")
    sales = people.join("q3_sales", auctions, ["name", "city", "state"], {"auction": "id"})
    return sales.sink(ferry.parquet("q3"))
