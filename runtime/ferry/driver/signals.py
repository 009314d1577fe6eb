"""What Python said last in a process of Spark's that crashed: the signal, and the statement of the user's that ran then.

Spark passes it on with the failed task, and keeps failed tasks for its user interface, whether that is shown or not.
"""

from __future__ import annotations

import logging

from pyspark.sql import SparkSession

from ferry.contract.user_code import signal_in
from ferry.spark import private

log = logging.getLogger("ferry.driver")


class Crashes:
    """Of the tasks of one session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._known = -1
        """the last failed task"""

    def fresh(self) -> str | None:
        """Signal and statement of the last task that has failed since the last call, empty: no signal; None: none has."""
        try:
            number, error = private.last_failed_task(self._spark)
        except Exception as failed:
            log.info("Spark does not say of what a task died: %s", str(failed)[:200])
            return None
        if number <= self._known:
            return None
        self._known = number
        return signal_in(error) or ""
