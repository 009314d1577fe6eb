"""Vanilla Spark counts keys: `python -m bench.parts.latency.spark_counts CONF.json`, until it is killed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import functions as F

from bench.parts.latency.feed import IN, OUT
from bench.shared import vanilla_spark


def main() -> None:
    """Run the query of the configuration."""
    conf = json.loads(Path(sys.argv[1]).read_text())
    spark = vanilla_spark.session(conf)
    kafka = {"kafka.bootstrap.servers": conf["servers"]}
    read = spark.readStream.format("kafka").options(**kafka, subscribe=IN, startingOffsets="earliest").load()
    keys = read.select(F.from_json(F.col("value").cast("string"), "k long").alias("v")).select("v.k")
    counts = keys.groupBy("k").agg(F.count("*").alias("n"))
    rows = counts.select(F.col("k").cast("string").alias("key"), F.to_json(F.struct("k", "n")).alias("value"))
    trigger = {"realTime": conf["realtime"]} if conf["realtime"] else {"processingTime": "0 seconds"}
    writer = rows.writeStream.format("kafka").options(**kafka, topic=OUT, checkpointLocation=conf["checkpoint"])
    writer.outputMode("update").trigger(**trigger).start().awaitTermination()


if __name__ == "__main__":
    main()
