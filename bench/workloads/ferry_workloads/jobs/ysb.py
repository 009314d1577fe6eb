"""YSB (Yahoo; Slash): views per campaign in tumbling windows of 10 s.

Output: campaign_id, window_start, window_end, num.
"""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc

import ferry
from ferry_workloads.jobs import arguments
from ferry_workloads.ysb import YsbGenerator, YsbSplits


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The events of YSB."""
    return {"ysb": arguments.paced(YsbSplits(arguments.generator(YsbGenerator, args)), args)}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Keep views, map the ad to its campaign, count."""
    generator = arguments.generator(YsbGenerator, args)
    views = ferry.filter(pc.field("event_type") == "view")
    campaigns = ferry.select("ts", campaign_id=pc.divide(pc.field("ad_id"), generator.ads_per_campaign))
    window = ferry.tumbling(arguments.duration(args, "window_ms", 10_000))
    events = (
        streams["ysb"]
        .map_batches(views)
        .map_batches(campaigns)
        .event_time("ts", delay=arguments.delay(args, generator))
    )
    counts = events.key_by("campaign_id").window(window).aggregate("views", num=ferry.count())
    return counts.sink(ferry.parquet("ysb"))
