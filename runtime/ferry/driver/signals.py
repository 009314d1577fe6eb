"""The last output of a crashed Python process of Spark: the signal, and the user's statement that ran then.

Spark attaches it to the failed task. Spark keeps failed tasks for its user interface, even if that is off.
"""

from __future__ import annotations

import logging

from pyspark.sql import SparkSession

from ferry.contract.user_code import signal_in
from ferry.spark import private

log = logging.getLogger("ferry.driver")


class Crashes:
    """Crashes of the tasks of one session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._known = -1
        """the last failed task"""

    def fresh(self) -> str | None:
        """Signal and statement of the last task that failed since the last call; empty: no signal; None: no task failed."""
        try:
            number, error = private.last_failed_task(self._spark)
        except Exception as failed:
            log.info("Spark does not report the cause of a task's death: %s", str(failed)[:200])
            return None
        if number <= self._known:
            return None
        self._known = number
        return signal_in(error) or ""
