"""NEXMark Q4 as a log: with each auction that closes, the average price of its category until then.

Output: closed_at, auction, category, num, total, avg_price.
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
    average = pc.divide(rows.column("total"), rows.column("num"))
    return rows.rename_columns({"id": "auction"}).append_column("avg_price", average)


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Auctions of a category in the order in which they close."""
    closed = winners("q4_updates_winners", streams, args).event_time("closed_at").key_by("category")
    each = ferry.records("closed_at", "id", "category", order=["closed_at", "id"])
    updates = closed.aggregate("q4_updates", emit=each, num=ferry.count(), total=ferry.sum("price"))
    return updates.map_batches(averaged).sink(ferry.parquet("q4_updates"))
