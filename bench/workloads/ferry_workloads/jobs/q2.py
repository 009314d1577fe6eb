"""NEXMark Q2: the bids on every 123rd auction.

Output: seq, auction, price.
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


def chosen(bids: pa.RecordBatch) -> pa.RecordBatch:
    """The bids on every 123rd auction, with three columns."""
    auction = bids.column("auction")
    rest = pc.subtract(auction, pc.multiply(pc.divide(auction, 123), 123))
    return bids.filter(pc.equal(rest, 0)).select(["seq", "auction", "price"])


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """A filter without state."""
    return streams["bid"].map_batches(chosen).sink(ferry.parquet("q2"))
