"""NEXMark Q1: every bid, its price in another currency.

Output: seq, ts, auction, bidder, price.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import ferry
from ferry_workloads.jobs import arguments
from ferry_workloads.nexmark import NexmarkGenerator, NexmarkSplits


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The bids of NEXMark."""
    return {"bid": arguments.paced(NexmarkSplits(arguments.generator(NexmarkGenerator, args), "bid"), args)}


def converted(bids: pa.RecordBatch) -> pa.RecordBatch:
    """Whole cents, rounded down."""
    price = pc.divide(pc.multiply(bids.column("price"), 89), 100)
    return bids.set_column(bids.schema.get_field_index("price"), "price", price)


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """A map without state."""
    return streams["bid"].map_batches(converted).sink(ferry.parquet("q1"))
