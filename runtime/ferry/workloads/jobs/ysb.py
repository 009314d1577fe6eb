"""YSB (Yahoo; Slash): views per campaign in tumbling windows of 10 s.

Output: campaign_id, window_start, window_end, num.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import ferry
from ferry.workloads.jobs import arguments
from ferry.workloads.ysb import YsbGenerator, YsbSplits


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The events of YSB."""
    return {"ysb": arguments.paced(YsbSplits(arguments.generator(YsbGenerator, args)), args)}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Keep views, map the ad to its campaign, count."""
    made = arguments.generator(YsbGenerator, args)
    ads = made.ads_per_campaign

    def views(batch: pa.RecordBatch) -> pa.RecordBatch:
        kept = batch.select(["ts", "ad_id"]).filter(pc.equal(batch.column("event_type"), "view"))
        campaign = pc.divide(kept.column("ad_id"), ads)
        return pa.RecordBatch.from_arrays([kept.column("ts"), campaign], names=["ts", "campaign_id"])

    window = ferry.tumbling(arguments.duration(args, "window_ms", 10_000))
    events = streams["ysb"].map_batches(views).event_time("ts", delay=arguments.delay(args, made))
    counts = events.key_by("campaign_id").window(window).aggregate("views", num=ferry.count())
    return counts.sink(ferry.parquet("ysb"))
