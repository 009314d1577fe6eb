"""NEXMark Q6 as a log: with each auction that closes, the average price of its seller's last ten.

Output: closed_at, auction, seller, num, total, avg_price.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import ferry
from ferry_workloads.jobs.q9 import sources as sources
from ferry_workloads.jobs.q9 import winners


def averaged(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Whole cents, rounded down."""
    return rows.append_column("avg_price", pc.divide(rows.column("total"), rows.column("num")))


def last_ten(name: str, streams: Any, args: dict[str, Any]) -> Any:
    """The last ten auctions of each seller in closing order, at the close of each auction."""
    closed = winners(f"{name}_winners", streams, args).event_time("closed_at").key_by("seller")
    columns = {"closed_at": "closed_at", "auction": "id", "seller": "seller"}
    prices = {"num": ferry.count(), "total": ferry.sum("price")}
    window = closed.window(ferry.rows(10))
    return window.aggregate(f"{name}_last_ten", columns, order=["closed_at", "id"], number="nth", **prices)


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Emit the average at the close of each auction."""
    return last_ten("q6_updates", streams, args).map_batches(averaged).sink(ferry.parquet("q6_updates"))
