"""Makes Spark's processes load the classes that a job of Ferry's needs.   usage: class_list.py LIST | --archive FILE

While an image is built: a driver under `k8s://`, as in a pod, and an executor beside it; their classes are listed.
While a clone is prepared (`scripts/setup`): a driver alone, whose Java writes an archive of its classes when it ends.
What is missing there costs time when a job starts, never a result.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def same(batches: Iterable[Any]) -> Iterator[Any]:
    """A task of Python."""
    yield from batches


MASTER = {
    "spark.master": "k8s://https://kubernetes.default.svc",
    "spark.executor.instances": "0",
}
"""The program that starts Spark's JVM must not see these."""

BLIND = {
    "spark.kubernetes.executor.enableApiPolling": "false",
    "spark.kubernetes.executor.enableApiWatcher": "false",
    "spark.kubernetes.executor.disableConfigMap": "true",
    "spark.kubernetes.executor.deleteOnTermination": "false",
    "spark.kubernetes.driver.service.deleteOnTermination": "false",
    "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def executor(context: Any, java: str) -> subprocess.Popen[bytes]:
    """An executor of this context, with an option of Java."""
    conf = context.getConf()
    place = f"spark://CoarseGrainedScheduler@127.0.0.1:{conf.get('spark.driver.port')}"
    home = Path(os.environ.get("SPARK_HOME") or Path(sys.modules["pyspark"].__file__ or "").parent)
    command = [str(Path(os.environ["JAVA_HOME"], "bin", "java")), java, "-XX:+UseSerialGC"]
    command += conf.get("spark.executor.extraJavaOptions").split()
    command += ["-cp", f"{home}/jars/*", "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"]
    command += ["--driver-url", place, "--executor-id", "1", "--cores", "2", "--app-id", "classes"]
    command += ["--hostname", "127.0.0.1", "--resourceProfileId", "0", "--podName", "classes"]
    return subprocess.Popen(command, env={**os.environ, "SPARK_HOME": str(home)})


def run(directory: Path, conf: dict[str, str], options: dict[str, str]) -> None:
    """Queries of an epoch: Arrow to Python and back, a local relation, Parquet, a stream with its checkpoint.

    `options`: of Java, by role: driver, executor. Without the second, there is no executor.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    os.environ |= {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "localhost",
    }  # a build's host name has no address
    conf = {
        **conf,
        "spark.app.name": "classes",
        "spark.driver.extraJavaOptions": options["driver"],
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    launch = SparkConf(loadDefaults=False).setAll([pair for pair in conf.items() if pair[0] not in MASTER])
    SparkContext._ensure_initialized(conf=launch)
    builder = SparkSession.builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    beside = executor(spark.sparkContext, options["executor"]) if "executor" in options else None
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
    if beside is not None:
        beside.wait()
    java.stdin.close()  # which ends it
    java.wait()


def listed(target: Path) -> None:
    """Both lists in one. Lines with `source:` come from Spark's own loaders, and an archive does not serve these loaders."""
    roles = ("driver", "executor")
    with tempfile.TemporaryDirectory() as directory:
        files = {role: Path(directory, role) for role in roles}
        options = {role: f"-XX:DumpLoadedClassList={file}" for role, file in files.items()}
        run(Path(directory), MASTER | BLIND, options)
        lists = [files[role].read_text().splitlines() for role in roles]
    lines = dict.fromkeys(line for listed in lists for line in listed if "source:" not in line and line[:1] != "#")
    target.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} classes: {', '.join(str(len(one)) for one in lists)} in driver and executor")


def archived(target: Path) -> None:
    """The archive of a driver's Java, which needs an option for it: `-XX:SharedArchiveFile`."""
    with tempfile.TemporaryDirectory() as directory:
        options = f"-XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={target} -Xlog:disable"
        run(Path(directory), {"spark.master": "local[2]"}, {"driver": options})


if __name__ == "__main__":
    if sys.argv[1] == "--archive":
        archived(Path(sys.argv[2]))
    else:
        listed(Path(sys.argv[1]))
