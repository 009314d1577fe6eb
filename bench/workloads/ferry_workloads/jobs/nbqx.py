"""NBQX (Rhino): five joins of auctions and bids at once: four in sessions of 30 to 120 minutes' gap, one in windows of 4 h.

Output: part, window_start, window_end, key, left_seq, right_seq; each part has a sink of its own, `nbqx_PART`.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import ferry
from ferry_workloads.jobs import arguments
from ferry_workloads.nexmark import NexmarkGenerator, NexmarkSplits

GAPS = (30, 60, 90, 120)
LEFT, RIGHT = {"key": "id", "left_seq": "seq"}, {"right_seq": "seq"}


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """Auctions and bids of NEXMark."""
    made = arguments.generator(NexmarkGenerator, args)
    return {
        "auction": arguments.paced(NexmarkSplits(made, "auction"), args),
        "bid": arguments.paced(NexmarkSplits(made, "bid"), args),
    }


def sink(part: str, pairs: Any) -> Any:
    """Write the pairs of a join, with the join's name in the column `part`."""

    def named(rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.append_column("part", pa.array([part] * rows.num_rows, pa.string()))

    return pairs.map_batches(named).sink(ferry.parquet(f"nbqx_{part}"))


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Five joins with separate state. `min_ms`: length of a minute."""
    delay = arguments.delay(args, arguments.generator(NexmarkGenerator, args))
    minute = arguments.duration(args, "min_ms", 60_000)
    auctions = streams["auction"].event_time("ts", delay=delay).key_by("id")
    bids = streams["bid"].event_time("ts", delay=delay).key_by("auction")
    windows: dict[str, Any] = {f"session_{gap}m": ferry.session(gap * minute) for gap in GAPS}
    windows["tumbling_4h"] = ferry.tumbling(240 * minute)
    pairs = {part: auctions.window(window).join(part, bids, LEFT, RIGHT) for part, window in windows.items()}
    return [sink(part, joined) for part, joined in pairs.items()]
