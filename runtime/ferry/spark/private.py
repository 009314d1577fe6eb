"""All private parts of Spark that Ferry uses, for PySpark 4.3, and a check that they exist.

Another version of Spark may lack a part: `check` reports it when a job starts, and only this file must change. Must never
be imported by a process without Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext, SparkFiles
from pyspark.serializers import CPickleSerializer
from pyspark.sql import DataFrame, SparkSession

from ferry.contract.errors import SpecRefused

SCHEDULER = "CoarseGrainedScheduler"
"""Name of the endpoint at which executors register."""

EXECUTOR = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
"""Class of an executor's process, as `ferry.worker.launch` starts it."""

STAGES, TASKS = 10, 100
"""Number of newest stages, and of failed tasks per stage, that `last_failed_task` reads."""

PARTS: dict[str, tuple[str, ...]] = {
    "org.apache.spark.sql.classic.Dataset": ("queryExecution",),
    "org.apache.spark.sql.execution.QueryExecution": ("analyzed", "executedPlan", "toRdd"),
    "org.apache.spark.sql.catalyst.optimizer.InlineCTE": ("apply",),
    "org.apache.spark.sql.catalyst.plans.logical.LogicalPlan": ("children", "subqueries", "isStreaming", "deterministic"),
    "org.apache.spark.sql.catalyst.plans.logical.Join": ("joinType",),
    "org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias": ("alias",),
    "org.apache.spark.sql.execution.SparkPlan": ("children", "subqueries", "nodeName"),
    "org.apache.spark.rdd.RDD": ("partitions",),
    "org.apache.spark.sql.execution.datasources.v2.DataSourceRDDPartition": ("inputPartition",),
    "org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition": ("pickedPartition",),
    "org.apache.spark.SparkContext": ("schedulerBackend", "statusStore", "executorMemory"),
    "org.apache.spark.status.AppStatusStore": ("stageList", "taskList"),
    "org.apache.spark.scheduler.cluster.CoarseGrainedSchedulerBackend": (
        "getExecutorIds", "executorsPendingLossReason",
    ),
    "org.apache.spark.scheduler.cluster.k8s.KubernetesClusterSchedulerBackend": ("doRemoveExecutor",),
    EXECUTOR: ("main",),
    "org.apache.spark.scheduler.ExecutorProcessLost": (),
}  # fmt: skip
"""Classes of Spark by name, and the methods of each that Ferry calls."""


TRIED = "4.3.0"
"""The PySpark version in the tests of this release. It needs no check, which saves half a second at each start."""


def files_of_task() -> Path | None:
    """The folder where Spark puts the files of `SparkContext.addFile`; None outside of a task."""
    return Path(SparkFiles.getRootDirectory()) if SparkFiles._is_running_on_worker else None


def check(spark: SparkSession, parts: Mapping[str, tuple[str, ...]] = PARTS, tried: str = TRIED) -> None:
    """Raise SpecRefused, naming the part, if this version of Spark lacks a part that Ferry uses."""
    if pyspark.__version__ == tried:
        return
    class_of, show = jvm(spark).java.lang.Class.forName, jvm(spark).org.apache.commons.lang3.ArrayUtils.toString
    for name, methods in parts.items():
        try:
            there = show(class_of(name).getMethods())
        except Py4JJavaError:
            raise _lacks(name) from None
        for method in methods:
            if f".{method}(" not in there:
                raise _lacks(f"{name}.{method}")


def _lacks(part: str) -> SpecRefused:
    return SpecRefused(f"PySpark {pyspark.__version__} lacks {part}, which Ferry needs; install PySpark 4.3")


def serve_workers() -> None:
    """Run the daemon of Spark's Python workers until Spark ends."""
    from pyspark.daemon import manager  # reads the process's standard input

    manager()


def load_worker() -> None:
    """Import the modules of Spark's Python workers."""
    import pyspark.worker

    assert pyspark.worker


def launch(conf: SparkConf | None = None) -> None:
    """Start the JVM of Spark, or, if environment variables name a running JVM, connect to it."""
    SparkContext._ensure_initialized(conf=conf)


def gateway() -> Any:
    """The connection to the JVM; None: there is no JVM yet."""
    return SparkContext._gateway


def jvm(spark: SparkSession | None = None) -> Any:
    """The JVM's packages."""
    packages: Any = spark.sparkContext._jvm if spark is not None else SparkContext._jvm
    assert packages is not None
    return packages


def running_session() -> SparkSession:
    """A session of the running SparkContext in the JVM."""
    packages = jvm()
    java = packages.JavaSparkContext.fromSparkContext(packages.org.apache.spark.SparkContext.getOrCreate())
    conf = SparkConf(_jconf=java.getConf())
    return SparkSession(SparkContext(gateway=gateway(), jsc=java, conf=conf))


def executor_memory(spark: SparkSession) -> int:
    """The heap of an executor, in MiB, as Spark reads its settings."""
    context: Any = spark.sparkContext
    return int(context._jsc.sc().executorMemory())


def inlined_plan(frame: DataFrame) -> Any:
    """The analyzed plan of a DataFrame, with common table expressions inlined."""
    inline = jvm(frame.sparkSession).org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False, False)
    return inline.apply(frame._jdf.queryExecution().analyzed())


def execution(frame: DataFrame) -> Any:
    """The plans of a DataFrame: `analyzed()`, `executedPlan()`."""
    return frame._jdf.queryExecution()


def planned_partitions(frame: DataFrame) -> list[Any]:
    """The partitions of a DataFrame of a Python source, from the plan of its reader.

    The pickled bytes come from Spark's own process on this machine.
    """
    partitions = execution(frame).toRdd().partitions()
    spark = CPickleSerializer()
    return [spark.loads(bytes(partition.inputPartition().get().pickedPartition())) for partition in partitions]


def last_failed_task(spark: SparkSession) -> tuple[int, str]:
    """Number and error text of the last failed task; (-1, ""): no task has failed."""
    context: Any = spark.sparkContext
    java, store = context._jvm.java.util, context._jsc.sc().statusStore()
    status = context._jvm.org.apache.spark.status.api.v1
    no_quantiles = context._gateway.new_array(context._jvm.double, 0)
    stages = store.stageList(java.ArrayList(), False, False, no_quantiles, java.ArrayList())
    last = (-1, "")
    for i in range(min(stages.size(), STAGES)):
        stage = stages.apply(i)
        if stage.numFailedTasks():
            failed = java.ArrayList(java.List.of(status.TaskStatus.FAILED))
            tasks = store.taskList(stage.stageId(), stage.attemptId(), 0, TASKS, status.TaskSorting.ID, failed)
            task = tasks.last()
            last = max(last, (int(task.taskId()), str(task.errorMessage().getOrElse(None))))
    return last


class Scheduler:
    """Spark's scheduler of a session: its executors."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm = jvm(spark)
        self._backend: Any = spark.sparkContext._jsc.sc().schedulerBackend()
        self.application = str(spark.sparkContext.applicationId)

    def executors(self) -> frozenset[str]:
        """Ids of the registered executors."""
        return _ids(self._backend.getExecutorIds())

    def disconnected(self) -> frozenset[str]:
        """Ids of executors whose connection is closed. Spark waits for Kubernetes to say what became of their pods."""
        return _ids(self._backend.executorsPendingLossReason())

    def remove(self, executor: str, why: str, by_work: bool = True) -> None:
        """Have the tasks of an executor run elsewhere at once. If the executor comes back, Spark ends it.

        `by_work`: its work may be the cause: its tasks count as failed."""
        nothing = self._jvm.scala.Option.empty()
        lost = self._jvm.org.apache.spark.scheduler.ExecutorProcessLost(why, nothing, by_work)
        self._backend.doRemoveExecutor(executor, lost)


def _ids(of: Any) -> frozenset[str]:
    """A collection of Scala, read in one call."""
    ids = of.mkString(",")
    return frozenset(ids.split(",")) if ids else frozenset()
