"""Sales of shops per window of 10 s: a folder of JSON files for each shop, which is a flow of its own."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import ferry

SCHEMA = pa.schema([("shop", pa.string()), ("ts", pa.int64()), ("amount", pa.int64())])


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """One folder a shop."""
    return {"sales": ferry.json_files(args["sales"], SCHEMA, flow="{flow}/*.json")}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Sums by shop and window."""
    sales = streams["sales"].event_time("ts", delay="1s", idle=args.get("idle"))
    sums = sales.key_by("shop").window(ferry.tumbling("10s")).aggregate("sums", total=ferry.sum("amount"))
    return sums.sink(ferry.parquet("shops"))
