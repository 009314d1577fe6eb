"""SMQ (on-the-fly reconfiguration): each number with the count of numbers that its map instance has received.

Output: seq, ts, instance, num.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import ferry
from ferry_workloads.jobs import arguments
from ferry_workloads.smq import SmqGenerator, SmqSplits


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The numbers."""
    return {"smq": arguments.paced(SmqSplits(arguments.generator(SmqGenerator, args)), args)}


def counted(name: str, numbers: Any, args: dict[str, Any]) -> Any:
    """Numbers distributed round-robin to `parallelism` map instances. An operator of this name holds their counters."""
    generator = arguments.generator(SmqGenerator, args)
    instances = arguments.whole(args, "parallelism", 80, 1)
    assigned = numbers.map_batches(assigning(instances)).event_time("ts", delay=arguments.delay(args, generator))
    each = ferry.records("seq", "ts", "instance", order="seq")
    return assigned.key_by("instance").aggregate(name, emit=each, num=ferry.count())


def assigning(instances: int) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function that adds the map instance of each number."""

    def assign(numbers: pa.RecordBatch) -> pa.RecordBatch:
        seq = numbers.column("seq")
        instance = pc.subtract(seq, pc.multiply(pc.divide(seq, instances), instances))
        return numbers.append_column("instance", instance)

    return assign


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """A counter for each map instance."""
    return counted("smq_counters", streams["smq"], args).sink(ferry.parquet("smq"))
