"""Makes Spark's processes load the classes that a job of Ferry's needs.   usage: class_list.py LIST | --archive FILE

While an image is built: a driver with a master and a worker in it, and an executor beside it; their classes are listed.
While a clone is prepared (`scripts/setup`): a driver alone, whose Java writes an archive of its classes when it ends.
What is missing there costs time when a job starts, never a result.
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


def run(directory: Path, master: str, options: dict[str, str]) -> None:
    """Queries of an epoch: Arrow to Python and back, a local relation, Parquet, a stream with its checkpoint.

    `options`: of Java, by role: driver, executor.
    """
    from pyspark.sql import SparkSession

    os.environ |= {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "localhost",
    }  # a build's host name has no address
    builder = SparkSession.builder.master(master).appName("classes")
    conf = {
        **{f"spark.{role}.extraJavaOptions": text for role, text in options.items()},
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
    java = spark.sparkContext._gateway.proc
    spark.stop()
    java.stdin.close()  # which ends it
    java.wait()


def listed(target: Path) -> None:
    """Both lists in one. Lines with `source:` come from Spark's own loaders, and an archive does not serve these loaders."""
    roles = ("driver", "executor")
    with tempfile.TemporaryDirectory() as directory:
        files = {role: Path(directory, role) for role in roles}
        options = {role: f"-XX:DumpLoadedClassList={file}" for role, file in files.items()}
        run(Path(directory), "local-cluster[1,2,1024]", options)
        lists = [files[role].read_text().splitlines() for role in roles]
    lines = dict.fromkeys(line for listed in lists for line in listed if "source:" not in line and line[:1] != "#")
    target.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} classes: {', '.join(str(len(one)) for one in lists)} in driver and executor")


def archived(target: Path) -> None:
    """The archive of a driver's Java, which needs an option for it: `-XX:SharedArchiveFile`."""
    with tempfile.TemporaryDirectory() as directory:
        options = f"-XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={target} -Xlog:disable"
        run(Path(directory), "local[2]", {"driver": options})


if __name__ == "__main__":
    if sys.argv[1] == "--archive":
        archived(Path(sys.argv[2]))
    else:
        listed(Path(sys.argv[1]))
