"""How often each key has occurred since it was forgotten last: after every epoch, and of those that are left at the end."""

from __future__ import annotations

from typing import Any

import ferry
from ferry_workloads.jobs import arguments
from ferry_workloads.keys import KeysGenerator, KeysSplits


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    return {"keys": KeysSplits(arguments.generator(KeysGenerator, args))}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    keys, ttl = streams["keys"].event_time("ts", delay=f"{args['delay_ms']}ms").key_by("key"), f"{args['gap_ms']}ms"
    counts = keys.aggregate("counts", num=ferry.count(), emit=ferry.changes(), ttl=ttl)
    left = keys.aggregate("left", num=ferry.count(), last=ferry.max("ts"), ttl=ttl)
    return [counts.sink(ferry.parquet("recent")), left.sink(ferry.parquet("left"))]
