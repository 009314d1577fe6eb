"""NEXMark Q7: the bids with the highest price in each window of 60 s, with all ties.

Output: window_start, window_end, auction, bidder, price, ts, seq.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import ferry
from ferry_workloads.jobs import arguments
from ferry_workloads.nexmark import NexmarkGenerator, NexmarkSplits


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The bids of NEXMark."""
    return {"bid": arguments.paced(NexmarkSplits(arguments.generator(NexmarkGenerator, args), "bid"), args)}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """The highest price of each window, and its bids. Each batch passes on only its own highest bids."""
    size = arguments.duration(args, "window_ms", 60_000)
    size_ms = size // arguments.MS

    def highest(bids: pa.RecordBatch) -> pa.RecordBatch:
        starts, price = bids.column("ts").to_numpy() // size_ms * size_ms, bids.column("price").to_numpy()
        windows, window = np.unique(starts, return_inverse=True)
        top = np.zeros(windows.size, np.int64)
        np.maximum.at(top, window, price)
        return bids.append_column("of_window", pa.array(starts)).filter(pa.array(price == top[window]))

    delay = arguments.delay(args, arguments.generator(NexmarkGenerator, args))
    bids = streams["bid"].map_batches(highest).event_time("ts", delay=delay)
    top = bids.key_by("of_window").window(ferry.tumbling(size)).aggregate("q7_top", price=ferry.max("price"))
    reach = bids.key_by("of_window", "price").window(ferry.tumbling(size))
    kept = ["auction", "bidder", "price", "ts", "seq"]
    return reach.join("q7_bids", top.key_by("of_window", "price"), kept, []).sink(ferry.parquet("q7"))
