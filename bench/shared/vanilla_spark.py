"""Vanilla Spark Structured Streaming, which is measured beside Ferry: `python -m bench.shared.vanilla_spark CONF.json`.

It does what one line of JSON on standard input asks for, and answers with one line on standard output. RocksDB state
store with changelog checkpointing. It imports nothing of Ferry.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.shared import spark_queries

MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


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
    builder = SparkSession.builder.master(f"local[{conf['cores']}]").appName("vanilla")
    for key, value in settings.items():
        builder = builder.config(key, value)
    made: SparkSession = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def query_over_files(spark: SparkSession, conf: dict[str, Any]) -> Any:
    """A query over Parquet files: appended rows go to Parquet; updates go nowhere, as Ferry tells counts at the end."""
    rows, mode = spark_queries.rows_of(spark, conf), spark_queries.QUERIES[conf["query"]].mode
    return started(rows, conf, mode, *(("parquet", conf["output"]) if mode == "append" else ("noop", None)))


def query_of_processor(spark: SparkSession, conf: dict[str, Any]) -> Any:
    """A StatefulProcessor over Parquet files; `processor` is the module of its class and of its output."""
    module = importlib.import_module(conf["processor"])
    events = spark.readStream.schema("k long, ts timestamp").option("maxFilesPerTrigger", conf["files_per_batch"])
    keyed = events.parquet(conf["input"]).withWatermark("ts", "0 seconds").groupBy("k")
    rows = keyed.transformWithState(module.RunningCount(), module.OUTPUT, "Append", "None")
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


def query_of_module(spark: SparkSession, conf: dict[str, Any]) -> Any:
    """A query that the function `query` of a module starts."""
    return importlib.import_module(conf["module"]).query(spark, conf)


def started(rows: DataFrame, conf: dict[str, Any], mode: str, sink: str, output: str | None) -> Any:
    """Start a query that writes these rows."""
    writer = rows.writeStream.outputMode(mode).format(sink).option("checkpointLocation", conf["checkpoint"])
    writer = writer.trigger(processingTime=conf.get("interval", "0 seconds"))
    return writer.start(output) if output else writer.start()


class Commands:
    """What can be asked for; each is a method."""

    def __init__(self, conf: dict[str, Any]) -> None:
        self.conf = conf
        self.spark = session(conf)
        self.query: Any = None

    def start(self, **changes: Any) -> dict[str, Any]:
        """Start the query, with changed settings."""
        self.conf.update(changes)
        made = {"module": query_of_module, "query": query_over_files, "processor": query_of_processor}
        found = next((made[word] for word in made if word in self.conf), query_over_keys)
        self.query = found(self.spark, self.conf)
        return {}

    def drain(self) -> dict[str, Any]:
        """Wait until all that is there has been read, then stop."""
        self.query.processAllAvailable()
        made = [
            {"batch": p.batchId, "rows": p.numInputRows, "ms": dict(p.durationMs)} for p in self.query.recentProgress
        ]
        self.query.stop()
        return {"batches": made}

    def write_counts(self) -> dict[str, Any]:
        """Of a stopped query in update mode, write the last count of every key, from its state."""
        if spark_queries.QUERIES[self.conf["query"]].mode == "update":
            state = self.spark.read.format("statestore").load(self.conf["checkpoint"])
            state.selectExpr("key.key", "value.count as num").write.parquet(self.conf["output"])
        return {}

    def stop(self) -> dict[str, Any]:
        """Stop the query; the session stays."""
        self.query.stop()
        return {}

    def alive(self) -> dict[str, Any]:
        """Raise what has ended the query."""
        if (failed := self.query.exception()) is not None:
            raise failed
        return {}

    def progress(self) -> dict[str, Any]:
        """Size of the state as the last batch tells it, and what the first one tells of itself."""
        found = [dict(p.stateOperators[0].customMetrics) for p in self.query.recentProgress if p.stateOperators]
        last, first = (found[-1], found[0]) if found else ({}, {})
        return {"sst_bytes": int(last.get("rocksdbSstFileSize", 0)), "first": first}

    def repartition(self, partitions: int) -> dict[str, Any]:
        """Spark's own offline repartitioning of a stopped query's state.

        A batch that the stop has cut short is skipped, which is refused by default for the sake of exactly-once sinks: there
        is none here, and the refusal would end the measurement.
        """
        self.spark._streamingCheckpointManager.repartition(self.conf["checkpoint"], partitions, False)
        return {}


def main() -> None:
    """Answer commands until standard input ends."""
    with open(sys.argv[1], encoding="utf-8") as file:
        commands = Commands(json.load(file))
    answer({"ready": True})
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer(getattr(commands, command.pop("do"))(**command))
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"[:3000]})
    os._exit(0)


def answer(document: dict[str, Any]) -> None:
    """One line."""
    print(json.dumps({"t": time.time(), **document}), flush=True)


if __name__ == "__main__":
    main()
