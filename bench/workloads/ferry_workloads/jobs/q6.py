"""NEXMark Q6: the average price of each seller's last ten closed auctions.

Output: seller, num, total, avg_price; when the input has ended.
"""

from __future__ import annotations

from typing import Any

import ferry
from ferry_workloads.jobs.q6_updates import averaged, last_ten
from ferry_workloads.jobs.q9 import sources as sources


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """The latest of each seller's averages."""
    sellers = last_ten("q6", streams, args).event_time("closed_at").key_by("seller")
    last = {name: ferry.arg_max(name, by="nth") for name in ("num", "total")}
    return sellers.aggregate("q6_last", **last).map_batches(averaged).sink(ferry.parquet("q6"))
