"""Orders of a directory, counted by user; functions that a record kills, or that raise, as the arguments say."""

from __future__ import annotations

import os
import signal
from typing import Any

import pyarrow as pa

import ferry

SCHEMA = pa.schema([("user", pa.string()), ("ts", pa.int64())])


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The files that are there when the job begins."""
    return {"orders": ferry.json_files(args["input"], SCHEMA, finite=True)}


def decode(batch: pa.RecordBatch) -> pa.RecordBatch:
    """As a native library does that cannot stand a record."""
    users = batch.column("user").to_pylist()
    if "poison" in users:
        signal.raise_signal(signal.SIGSEGV)  # In this thread: `kill` may reach another one, and this one goes on.
    if "leaves" in users:
        os._exit(0)
    return batch


def price(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Divides by zero for one record."""
    assert all(100 // (ts - 2) for ts in batch.column("ts").to_pylist())
    return batch


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Count by user."""
    if args.get("behind"):
        counts = streams["orders"].key_by("user").aggregate("counts", n=ferry.count(), emit=ferry.at_end())
        return counts.map_batches(decode).sink(ferry.parquet("counts"))
    orders = streams["orders"].map_batches(price if args.get("raises") else decode).key_by("user")
    return orders.aggregate("counts", n=ferry.count(), emit=ferry.at_end()).sink(ferry.parquet("counts"))
