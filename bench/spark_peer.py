"""Vanilla Spark Structured Streaming, the peer of the benchmarks, in a process of its own: `spark_peer.py CONF.json`.

It does what one line of JSON on standard input asks for, and answers with one line on standard output. RocksDB state
store with changelog checkpointing. It imports nothing of Ferry.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
NBQ5 = "ts long, auction long"
YSB = "ts long, ad_id long, event_type string"


def session(conf: dict[str, Any]) -> SparkSession:
    """Local mode, tuned: as many shuffle partitions as cores, no row counting in the state store."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "3g",
        "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(conf["partitions"]),
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
        "spark.sql.streaming.stateStore.maintenanceInterval": "20s",
        "spark.sql.streaming.minBatchesToRetain": "200",
        "spark.sql.streaming.numRecentProgressUpdates": "2000",
        "spark.sql.streaming.pollingDelay": "5ms",
        "spark.local.dir": conf["directory"] + "/local",
        "spark.sql.warehouse.dir": conf["directory"] + "/warehouse",
        **conf.get("spark", {}),
    }
    if conf["tuned_files"]:
        # As Ferry's own session: no `chmod` process for every file. Offline repartitioning fails with these two.
        settings["spark.hadoop.fs.file.impl"] = "org.apache.hadoop.fs.RawLocalFileSystem"
        settings["spark.sql.streaming.checkpointFileManagerClass"] = MANAGER
    builder = SparkSession.builder.master(f"local[{conf['cores']}]").appName("peer")
    for key, value in settings.items():
        builder = builder.config(key, value)
    made: SparkSession = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def query_over_files(spark: SparkSession, conf: dict[str, Any]) -> Any:
    """NBQ5 or YSB over Parquet files, append mode, Parquet out."""
    events = (
        spark.readStream.schema(NBQ5 if conf["query"] == "nbq5" else YSB)
        .option("maxFilesPerTrigger", conf["files_per_batch"])
        .parquet(conf["input"])
    )
    late = f"{conf['delay_ms']} milliseconds"
    if conf["query"] == "nbq5":
        stamped = events.select(F.timestamp_millis("ts").alias("t"), "auction").withWatermark("t", late)
        counted = stamped.groupBy(F.window("t", "60 seconds", "10 seconds"), "auction")
        key = "auction"
    else:
        views = events.where("event_type = 'view'")
        campaign = F.expr(f"ad_id div {conf['ads_per_campaign']}").alias("campaign_id")
        stamped = views.select(F.timestamp_millis("ts").alias("t"), campaign)
        window = F.window("t", f"{conf['window_ms']} milliseconds")
        counted = stamped.withWatermark("t", late).groupBy(window, "campaign_id")
        key = "campaign_id"
    rows = counted.agg(F.count("*").alias("num")).select(
        key, F.unix_millis("window.start").alias("window_start"), F.unix_millis("window.end").alias("window_end"), "num"
    )
    return started(rows, conf, "append", "parquet", conf["output"])


def query_over_keys(spark: SparkSession, conf: dict[str, Any]) -> Any:
    """Count per text key of 224 bytes; update mode without a window, so that Spark never looks through all keys."""
    made = (
        spark.readStream.format("rate-micro-batch").option("rowsPerBatch", conf["rows"])
        .option("numPartitions", conf["cores"]).option("advanceMillisPerBatch", 1000).load()
    )  # fmt: skip
    number = (F.col("value") * F.lit(2654435761)) % F.lit(conf["keys"])
    half = [F.sha2((number * 2 + i).cast("string"), 512) for i in (0, 1)]
    key = F.concat(*half).substr(F.lit(1), F.lit(224))
    return started(made.select(key.alias("key")).groupBy("key").count(), conf, "update", "noop", None)


def started(rows: DataFrame, conf: dict[str, Any], mode: str, sink: str, output: str | None) -> Any:
    """Start a query that writes these rows."""
    writer = rows.writeStream.outputMode(mode).format(sink).option("checkpointLocation", conf["checkpoint"])
    writer = writer.trigger(processingTime=conf.get("interval", "0 seconds"))
    return writer.start(output) if output else writer.start()


class Peer:
    """The commands."""

    def __init__(self, conf: dict[str, Any]) -> None:
        self.conf = conf
        self.spark = session(conf)
        self.query: Any = None

    def start(self, **changes: Any) -> dict[str, Any]:
        """Start the query, with changed settings."""
        self.conf.update(changes)
        self.query = (query_over_files if "query" in self.conf else query_over_keys)(self.spark, self.conf)
        return {}

    def drain(self) -> dict[str, Any]:
        """Wait until all that is there has been read, then stop."""
        self.query.processAllAvailable()
        made = [
            {"batch": p.batchId, "rows": p.numInputRows, "ms": dict(p.durationMs)} for p in self.query.recentProgress
        ]
        self.query.stop()
        return {"batches": made}

    def stop(self) -> dict[str, Any]:
        """Stop the query; the session stays."""
        self.query.stop()
        return {}

    def progress(self) -> dict[str, Any]:
        """Size of the state as the last batch tells it."""
        last = self.query.lastProgress
        states = last.stateOperators if last is not None else []
        return {"sst_bytes": int(dict(states[0].customMetrics).get("rocksdbSstFileSize", 0)) if states else 0}

    def repartition(self, partitions: int) -> dict[str, Any]:
        """Spark's own offline repartitioning of a stopped query's state."""
        self.spark._streamingCheckpointManager.repartition(self.conf["checkpoint"], partitions)
        return {}


def main() -> None:
    """Answer commands until standard input ends."""
    with open(sys.argv[1], encoding="utf-8") as file:
        peer = Peer(json.load(file))
    answer({"ready": True})
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer(getattr(peer, command.pop("do"))(**command))
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"[:3000]})
    os._exit(0)


def answer(document: dict[str, Any]) -> None:
    """One line."""
    print(json.dumps({"t": time.time(), **document}), flush=True)


if __name__ == "__main__":
    main()
