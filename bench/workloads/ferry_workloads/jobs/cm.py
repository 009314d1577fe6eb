"""CM (Slash): the CPU requests of each job of a cluster, in tumbling windows of 2 s.

Output: job_id, window_start, window_end, num, total_cpu, avg_cpu.
"""

from __future__ import annotations

from typing import Any

import ferry
from ferry_workloads.cm import CmGenerator, CmSplits
from ferry_workloads.jobs import arguments


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The events of tasks."""
    return {"cm": arguments.paced(CmSplits(arguments.generator(CmGenerator, args)), args)}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Count, sum and mean per job and window; `mean` is the sum divided by the count, in double precision."""
    window = ferry.tumbling(arguments.duration(args, "window_ms", 2_000))
    events = streams["cm"].event_time("ts", delay=arguments.delay(args, arguments.generator(CmGenerator, args)))
    requests = events.key_by("job_id").window(window)
    usage = requests.aggregate("cpu", num=ferry.count(), total_cpu=ferry.sum("cpu"), avg_cpu=ferry.mean("cpu"))
    return usage.sink(ferry.parquet("cm"))
