"""NEXMark Q4: the average price of the closed auctions of each category.

Output: category, num, total, avg_price; when the input has ended.
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


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Count and sum per category."""
    closed = winners("q4_winners", streams, args).event_time("closed_at").key_by("category")
    prices = closed.aggregate("q4_prices", num=ferry.count(), total=ferry.sum("price"))
    return prices.map_batches(averaged).sink(ferry.parquet("q4"))
