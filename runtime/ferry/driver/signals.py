"""What Python said last in a process of Spark's that crashed: the signal, and the statement of the user's that ran then.

Spark passes it on with the failed task, and keeps failed tasks for its user interface, whether that is shown or not.
"""

from __future__ import annotations

import logging
from typing import Any

from pyspark.sql import SparkSession

from ferry.contract.user_code import signal_in

log = logging.getLogger("ferry.driver")

STAGES, TASKS = 10, 100
"""The newest ones, of which the failed tasks are looked at."""


class Crashes:
    """Of the tasks of one session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._known = -1
        """the last failed task"""

    def fresh(self) -> str | None:
        """Signal and statement of the last task that has failed since the last call, empty: no signal; None: none has."""
        try:
            number, error = self._last_failed()
        except Exception as failed:
            log.info("Spark does not say of what a task died: %s", str(failed)[:200])
            return None
        if number <= self._known:
            return None
        self._known = number
        return signal_in(error) or ""

    def _last_failed(self) -> tuple[int, str]:
        context: Any = self._spark.sparkContext
        java, store = context._jvm.java.util, context._jsc.sc().statusStore()
        status = context._jvm.org.apache.spark.status.api.v1
        nothing = context._gateway.new_array(context._jvm.double, 0)
        stages = store.stageList(java.ArrayList(), False, False, nothing, java.ArrayList())
        last = (-1, "")
        for i in range(min(stages.size(), STAGES)):
            stage = stages.apply(i)
            if stage.numFailedTasks():
                failed = java.ArrayList(java.List.of(status.TaskStatus.FAILED))
                tasks = store.taskList(stage.stageId(), stage.attemptId(), 0, TASKS, status.TaskSorting.ID, failed)
                task = tasks.last()
                last = max(last, (int(task.taskId()), str(task.errorMessage().getOrElse(None))))
        return last
