"""A process with timers of the clock: each record rings once, some time after it was read, though no other record comes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import ferry


@dataclass
class Alarms(ferry.Process):
    """Rows: the key, and by how many milliseconds its timer was late."""

    after_ms: int
    tables = {"at": ferry.StateTable(pa.schema([("at", pa.int64())]))}
    output = pa.schema([("k", pa.int64()), ("late", pa.int64())])

    def process(self, work: ferry.Work) -> None:
        heard = np.unique(work.key_of())
        work.put("at", heard, {"at": np.full(heard.size, work.now)})
        work.set_processing_timer(heard, np.full(heard.size, work.now + self.after_ms))
        key, time = work.processing_timers()
        work.emit(key, {"k": work.keys.column("k").take(pa.array(key)), "late": work.now - time})


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """Files that are there, and those that come."""
    return {"records": ferry.parquet_files(args["records"])}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """All that rings."""
    records = streams["records"].event_time("ts").key_by("k")
    return records.process("alarms", Alarms(args["after_ms"])).sink(ferry.parquet("alarms"))
