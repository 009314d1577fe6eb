"""UniMiCo Q3: with each pair of Q1, in order of creation, the sum over the last five pairs.

Output: row, ts, s_seq, t_seq, n, total.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import ferry
from ferry_workloads.jobs.uq1 import matched
from ferry_workloads.jobs.uq1 import sources as sources
from ferry_workloads.jobs.uq2 import of_one_key

ORDER = {"by_seq": pc.max_element_wise, "old_seq": pc.min_element_wise}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """A window of five rows, of all pairs."""

    def in_order(pairs: pa.RecordBatch) -> pa.RecordBatch:
        for name, function in ORDER.items():
            pairs = pairs.append_column(name, function(pairs.column("s_seq"), pairs.column("t_seq")))
        return of_one_key(pairs)

    pairs = matched("uq3_pairs", streams, args).map_batches(in_order).event_time("ts")
    last, columns = pairs.key_by("all").window(ferry.rows(5)), ["ts", "s_seq", "t_seq"]
    sums = {"n": ferry.count(), "total": ferry.sum("s_m")}
    return last.aggregate("uq3_last_five", columns, order=[*ORDER], number="row", **sums).sink(ferry.parquet("uq3"))
