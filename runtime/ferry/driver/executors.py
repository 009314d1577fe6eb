"""Spark's executors on other hosts: warmed up before they get shares of the input, removed at once when they are lost.

With task slots in the driver, no executors exist.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from py4j.protocol import Py4JError

from ferry.contract.executors import worker_of
from ferry.contract.settings import RunSettings
from ferry.contract.status import SparkStatus
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.coordinator.loop import Loop
from ferry.driver.program import Program
from ferry.environment import Environment
from ferry.spark.private import Scheduler
from ferry.spark.split_reader import SLOTS
from ferry.spark.tasks.warmup import warm_up
from ferry.system import files

log = logging.getLogger("ferry.driver")

LOOK_SECONDS = 0.1

NO_EXECUTOR = "NoExecutor"
"""Name of the problem in the driver's status."""

QUIET_SECONDS = 15.0
"""Executors that come within this time are not reported: a worker starts one in seconds."""

NO_HEARTBEAT = "most likely it sent no heartbeat for spark.storage.blockManagerHeartbeatTimeoutMs"

WITHOUT_EXECUTORS = "no executor is registered with Spark, so no task runs,"
WHAT_TO_DO = (
    "look at the workers: on Kubernetes whether their pods run, and the log of their container `executor`, which says why "
    "no executor starts, or why executors end"
)


class Executors:
    """Tracks the executors of a session.

    The number of warm task slots goes to a file: the source cuts its input into as many shares. `warm_up(slots)` runs a
    small task on each slot, so that a new executor does not delay an epoch.
    """

    def __init__(
        self, backend: Scheduler, cores: int, slots_file: Path, warm_up: Callable[[int], None], metrics: DriverMetrics
    ) -> None:
        """`cores`: used task slots of an executor."""
        self._backend = backend
        self._cores = cores
        self._metrics = metrics
        self._application = backend.application
        self._lost: frozenset[str] = frozenset()
        self._present: frozenset[str] = frozenset()
        self._removed = set[str]()
        """Removed by this tracker, and perhaps not yet by Spark."""
        self._since: float | None = None
        """When there was first no executor (monotonic)."""
        self._slots_file = slots_file
        self._warm_up = warm_up
        self._warm: frozenset[str] = frozenset()
        self._warming: threading.Thread | None = None
        self._slots = 0
        self._silent: set[int] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()

    def start(self) -> None:
        """Start tracking."""
        threading.Thread(target=self._run, name="executors", daemon=True).start()

    def silent(self, worker: int) -> None:
        """Remove the executors of a silent worker at once; Spark reassigns their tasks. Callable from any thread."""
        with self._lock:
            self._silent.add(worker)
        self._wake.set()

    def _run(self) -> None:
        while True:
            try:
                self.look()
            except Py4JError as error:
                log.debug("executors cannot be listed: %s", error)
            self._wake.wait(LOOK_SECONDS)
            self._wake.clear()

    def look(self) -> None:
        """Remove lost executors and executors of silent workers, track the rest."""
        with self._lock:
            silent, self._silent = self._silent, set()
        try:
            if silent:
                self._give_up(silent)
        except Py4JError:
            with self._lock:
                self._silent |= silent
            raise
        lost = self._backend.disconnected()
        for executor in sorted(lost - self._lost):
            log.warning("executor %s of worker %s has closed its connection", executor, worker_of(executor))
            self._backend.remove(executor, "its connection is closed")
        self._lost = lost
        present = self._backend.executors() - lost
        for executor in sorted(self._present - present - lost - self._removed):
            log.warning("Spark has removed executor %s of worker %s: %s", executor, worker_of(executor), NO_HEARTBEAT)
        self._present, self._removed = present, self._removed & present
        self._tell(present)
        self._follow(present)

    def _give_up(self, silent: set[int]) -> None:
        for executor in self._backend.executors():
            worker = worker_of(executor)
            if worker in silent:
                log.warning("executor %s is given up: worker %d is silent", executor, worker)
                self._backend.remove(executor, "its worker is silent", by_work=False)
                self._removed.add(executor)

    def _tell(self, present: frozenset[str]) -> None:
        """Report the executors; and that Spark has none: epochs wait, and their tasks say only that they read."""
        now, problems = time.monotonic(), self._metrics.problems
        known = sorted((worker, executor) for executor in present if (worker := worker_of(executor)) is not None)
        self._metrics.spark = SparkStatus(self._application, tuple(known))
        if present:
            self._since = None
            problems.mended(NO_EXECUTOR)
            return
        self._since = self._since or now
        if now - self._since > QUIET_SECONDS:
            problems.report(NO_EXECUTOR, f"{WITHOUT_EXECUTORS} for {int(now - self._since)} s: {WHAT_TO_DO}")

    def _follow(self, present: frozenset[str]) -> None:
        """Warm up new executors; count the warm ones."""
        self._warm &= present
        if self._warming is not None and not self._warming.is_alive():
            self._warming = None
        if present - self._warm and self._warming is None:
            self._warming = threading.Thread(target=self._heat, args=(present,), name="warm-up", daemon=True)
            self._warming.start()
        slots = len(self._warm) * self._cores
        if slots != self._slots:
            with files.replacing(self._slots_file) as new:
                new.write_text(str(slots))
            log.info("%d task slots", slots)
            self._slots = slots

    def _heat(self, present: frozenset[str]) -> None:
        try:
            self._warm_up(len(present) * self._cores)
        except Exception as error:
            log.warning("executors could not be warmed up: %s", str(error)[:300])
        self._warm |= present


def warm(settings: RunSettings, env: Environment, program: Program, loop: Loop, metrics: DriverMetrics) -> None:
    """Start Python processes in all task slots: in local slots now, in slots of executors when these join.

    Loops need no warm-up.
    """
    descriptors = [operator.descriptor for operator in program.plan.operators]
    if program.loops is not None:
        loop.members.on_silent.append(program.loops.silent)
    if env.has_executors:
        heat = partial(warm_up, program.spark, descriptors)
        executors = Executors(Scheduler(program.spark), settings.cores, settings.path / SLOTS, heat, metrics)
        loop.members.on_silent.append(executors.silent)
        executors.start()
    if env.has_executors or program.loops is not None:
        return

    def warm_here() -> None:
        try:
            warm_up(program.spark, descriptors, settings.cores)
        except Exception as error:
            log.warning("Spark's workers could not be warmed up: %s", str(error)[:300])

    threading.Thread(target=warm_here, name="warm-up", daemon=True).start()
