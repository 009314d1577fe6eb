"""Hash-count and key-count (Megaphone) as a log: with each record the count of its key, with every key preloaded once.

Output: seq, key, num.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import ferry
from ferry_workloads.jobs import arguments
from ferry_workloads.keys import KeysGenerator, KeysSplits


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The keys."""
    return {"keys": arguments.paced(KeysSplits(arguments.generator(KeysGenerator, args)), args)}


def loaded_before(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Add 1 to each count, for the preloaded key."""
    return rows.set_column(rows.schema.get_field_index("num"), "num", pc.add(rows.column("num"), 1))


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """A running count per key, in the order of arrival."""
    delay = arguments.delay(args, arguments.generator(KeysGenerator, args))
    keys = streams["keys"].event_time("ts", delay=delay).key_by("key")
    counts = keys.aggregate("key_counts", emit=ferry.records("seq", "key", order="seq"), num=ferry.count())
    return counts.map_batches(loaded_before).sink(ferry.parquet("count_updates"))
