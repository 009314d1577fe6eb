"""A streaming DataFrame of Spark, SQL before and between operators, two operators, keys of one and two columns.

Bids (changed by SQL) are aggregated per (auction, channel) in windows of 10 s, with every aggregate there is; what fires is
changed by SQL and aggregated again per channel in windows of 20 s.
"""

from __future__ import annotations

from typing import Any

import ferry


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """A streaming DataFrame that Spark reads file by file."""
    schema = spark.read.parquet(args["bids"]).schema
    return {"bid": spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(args["bids"])}


def channels(bids: Any) -> Any:
    """A text column, and every tenth bid left out."""
    from pyspark.sql import functions as F

    channel = F.concat(F.lit("c"), (F.col("bidder") % 3).cast("string"))
    return bids.where("seq % 10 <> 3").select(
        "auction", "price", "ts", (F.col("price") / 4).alias("quarter"), channel.alias("channel")
    )


def dear(rows: Any) -> Any:
    """Only what had more than one bid."""
    return rows.where("num > 1").withColumnRenamed("num", "bids")


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Two operators, one behind the other."""
    first = (
        streams["bid"].transform(channels).event_time("ts", delay="0s").key_by("auction", "channel")
        .window(ferry.sliding("10s", "5s"))
        .aggregate(
            "first", num=ferry.count(), total=ferry.sum("price"), low=ferry.min("price"), high=ferry.max("quarter"),
            mean=ferry.mean("price"), last=ferry.arg_max("price", by="ts"),
        )
    )  # fmt: skip
    second = first.transform(dear).key_by("channel").window(ferry.tumbling("20s"))
    counts = second.aggregate("second", rows=ferry.count(), bids=ferry.sum("bids"), total=ferry.sum("total"), low=ferry.min("low"),
                              high=ferry.max("high"), best=ferry.max("last"), mean=ferry.max("mean"))  # fmt: skip
    return counts.sink(ferry.parquet("frames"))
