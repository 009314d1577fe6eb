"""SMQ with a filter that starts at run time: from `switch_seq` on only every fifth number reaches the map instances.

Output: seq, ts, instance, num.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import ferry
from ferry_workloads.jobs import arguments
from ferry_workloads.jobs.smq import counted
from ferry_workloads.jobs.smq import sources as sources


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """The counters of `smq` behind the filter."""
    switch = arguments.whole(args, "switch_seq", 0, 0)

    def passing(numbers: pa.RecordBatch) -> pa.RecordBatch:
        seq = numbers.column("seq").to_numpy()
        return numbers.filter(pa.array(np.logical_or(seq < switch, seq % 5 == 0)))

    filtered = streams["smq"].map_batches(passing)
    return counted("smq_filter_counters", filtered, args).sink(ferry.parquet("smq_filter"))
