"""Spark's executors on other hosts: warmed up before they get shares of the input, given up as soon as they are silent.

With task slots in the driver there are none, and nothing of this happens. Must know nothing of epochs or groups.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from ferry.contract import variables
from ferry.system import files

log = logging.getLogger("ferry.driver")

LOOK_SECONDS = 0.1

_EXECUTOR_DATA = "org$apache$spark$scheduler$cluster$CoarseGrainedSchedulerBackend$$executorDataMap"


class Executors:
    """Follows the executors of a session.

    The number of task slots that are warm goes to a file: the source deals its shares out by it. `warm_up(slots)` runs a
    small task on each slot, so that an executor that has just come delays no epoch.
    """

    def __init__(self, backend: Backend, slots_file: Path, warm_up: Callable[[int], None]) -> None:
        self._backend = backend
        self._slots_file = slots_file
        self._warm_up = warm_up
        self._warm: frozenset[str] = frozenset()
        self._warming: threading.Thread | None = None
        self._slots = 0
        self._silent: set[int] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()

    def start(self) -> None:
        """Begin to follow."""
        threading.Thread(target=self._run, name="executors", daemon=True).start()

    def silent(self, worker: int) -> None:
        """A worker is silent: what its executors were given goes to others at once. Callable from any thread."""
        with self._lock:
            self._silent.add(worker)
        self._wake.set()

    def _run(self) -> None:
        while True:
            try:
                self.look()
            except Py4JError as error:
                log.debug("no executors to be seen: %s", error)
            self._wake.wait(LOOK_SECONDS)
            self._wake.clear()

    def look(self) -> None:
        """Give up what is silent, follow the rest."""
        with self._lock:
            silent, self._silent = self._silent, set()
        if silent:
            self._give_up(silent)
        self._follow(self._backend.executors())

    def _give_up(self, silent: set[int]) -> None:
        for executor in self._backend.executors():
            worker = self._backend.worker_of(executor)
            if worker in silent:
                log.warning("executor %s is given up: worker %d is silent", executor, worker)
                self._backend.remove(executor)

    def _follow(self, present: frozenset[str]) -> None:
        """Warm up who is new; count who is warm."""
        self._warm &= present
        if self._warming is not None and not self._warming.is_alive():
            self._warming = None
        if present - self._warm and self._warming is None:
            self._warming = threading.Thread(target=self._heat, args=(present,), name="warm-up", daemon=True)
            self._warming.start()
        slots = len(self._warm) * self._backend.cores
        if slots != self._slots:
            with files.replacing(self._slots_file) as new:
                new.write_text(str(slots))
            log.info("%d task slots", slots)
            self._slots = slots

    def _heat(self, present: frozenset[str]) -> None:
        try:
            self._warm_up(len(present) * self._backend.cores)
        except Exception as error:
            log.warning("executors could not be warmed up: %s", str(error)[:300])
        self._warm |= present


class Backend:
    """What of Spark's scheduler is touched: private parts, as they are in the version that is required."""

    def __init__(self, spark: SparkSession, cores: int) -> None:
        """`cores`: task slots of an executor that are used."""
        self._jvm: Any = spark.sparkContext._jvm
        self._scheduler: Any = spark.sparkContext._jsc.sc().schedulerBackend()
        self.cores = cores

    def executors(self) -> frozenset[str]:
        """Ids of the executors that are registered."""
        ids = self._scheduler.getExecutorIds().mkString(",")
        return frozenset(ids.split(",")) if ids else frozenset()

    def worker_of(self, executor: str) -> int | None:
        """The worker that an executor runs beside; None when it is gone."""
        data = getattr(self._scheduler, _EXECUTOR_DATA)().get(executor)
        worker = data.get().attributes().get(variables.WORKER) if data.isDefined() else data
        return int(worker.get()) if worker.isDefined() else None

    def remove(self, executor: str) -> None:
        """Have its tasks run elsewhere now; should it come back, Spark ends it.

        Asking the master alone would not do: it passes the wish on to a worker that does not listen.
        """
        self._scheduler.killExecutors(self._jvm.PythonUtils.toSeq([executor]), False, False, True)
        silent = self._jvm.org.apache.spark.scheduler.ExecutorProcessLost(
            "silent", self._jvm.scala.Option.empty(), False
        )
        self._scheduler.removeExecutor(executor, silent)
