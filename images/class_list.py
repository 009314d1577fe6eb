"""Makes Spark's processes load the classes that a job of Ferry's needs, and lists them.   usage: class_list.py LIST

Runs while an image is built: a driver with a master and a worker in it, and an executor beside it. What it misses costs
time when a pod starts, never a result.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def same(batches: Iterable[Any]) -> Iterator[Any]:
    """A task of Python."""
    yield from batches


def run(directory: Path) -> None:
    """Queries such as an epoch has: Arrow to Python and back, a local relation, Parquet, a stream with its checkpoint."""
    from pyspark.sql import SparkSession

    os.environ |= {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "localhost",
    }  # a build's host name has no address
    builder = SparkSession.builder.master("local-cluster[1,2,1024]").appName("classes")
    conf = {
        "spark.driver.extraJavaOptions": f"-XX:DumpLoadedClassList={directory / 'driver'}",
        "spark.executor.extraJavaOptions": f"-XX:DumpLoadedClassList={directory / 'executor'}",
        "spark.ui.enabled": "false",
        "spark.executor.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.range(0, 8, 1, 2).mapInArrow(same, "id long").collect()
    rows = spark.createDataFrame([(1, "a"), (2, "b")], "k long, t string")
    rows.groupBy("t").count().write.parquet(str(directory / "out"))
    spark.read.parquet(str(directory / "out")).orderBy("t").toPandas()
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
    query = (
        stream.writeStream.foreachBatch(lambda frame, _: frame.mapInArrow(same, frame.schema).collect())
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(processingTime="1 second")  # it is stopped while it waits
        .start()
    )
    while (query.lastProgress or {"batchId": -1})["batchId"] < 3:
        query.awaitTermination(0.2)
    query.stop()
    spark.stop()


def main(target: Path) -> None:
    """Both lists as one. Lines with `source:` are of loaders of Spark's own, which an archive does not serve."""
    with tempfile.TemporaryDirectory() as directory:
        run(Path(directory))
        lists = [Path(directory, name).read_text().splitlines() for name in ("driver", "executor")]
    lines = dict.fromkeys(line for listed in lists for line in listed if "source:" not in line and line[:1] != "#")
    target.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} classes: {', '.join(str(len(one)) for one in lists)} in driver and executor")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
