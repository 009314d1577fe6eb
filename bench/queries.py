"""Ferry's side of the throughput benchmark: NBQ5 and YSB over a directory of Parquet files that ends.

The same files are read by vanilla Spark (`spark_peer.py`). Must hold the query and nothing else.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import ferry

# The schema names the columns a query needs: a Parquet reader leaves the others alone, as Spark's does.
BID = pa.schema([("ts", pa.int64()), ("auction", pa.int64())])
# The type of an event is one of three words: read as the file keeps it, a number and a dictionary.
WORD = pa.dictionary(pa.int32(), pa.string())
YSB = pa.schema([("ts", pa.int64()), ("ad_id", pa.int64()), ("event_type", WORD)])


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The files of `directory`."""
    schema = BID if args["query"] == "nbq5" else YSB
    return {"events": ferry.parquet_files(args["directory"], schema=schema, finite=True)}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """The query that `query` names."""
    return (_nbq5 if args["query"] == "nbq5" else _ysb)(streams["events"], args)


def _nbq5(events: Any, args: dict[str, Any]) -> Any:
    keyed = events.event_time("ts", delay=args["delay_ms"]).key_by("auction")
    return keyed.window(ferry.sliding("60s", "10s")).aggregate("counts", num=ferry.count()).sink(ferry.parquet("rows"))


def _ysb(events: Any, args: dict[str, Any]) -> Any:
    def views(batch: pa.RecordBatch) -> pa.RecordBatch:
        kept = batch.select(["ts", "ad_id"]).filter(pc.equal(batch.column("event_type"), "view"))
        campaign = pc.divide(kept.column("ad_id"), args["ads_per_campaign"])
        return pa.RecordBatch.from_arrays([kept.column("ts"), campaign], names=["ts", "campaign_id"])

    keyed = events.map_batches(views).event_time("ts", delay=args["delay_ms"]).key_by("campaign_id")
    window = ferry.tumbling(args["window_ms"])
    return keyed.window(window).aggregate("views", num=ferry.count()).sink(ferry.parquet("rows"))
