"""Spark's executors on other hosts: warmed up before they get shares of the input, removed when their worker is silent.

With task slots in the driver, no executors exist.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from ferry.contract import variables
from ferry.contract.settings import RunSettings
from ferry.coordinator.loop import Loop
from ferry.driver.program import Program
from ferry.environment import Environment
from ferry.spark.private import Scheduler
from ferry.spark.split_reader import SLOTS
from ferry.spark.tasks.warmup import warm_up
from ferry.system import files

log = logging.getLogger("ferry.driver")

LOOK_SECONDS = 0.1


class Executors:
    """Tracks the executors of a session.

    The number of warm task slots goes to a file: the source cuts its input into as many shares. `warm_up(slots)` runs a
    small task on each slot, so that a new executor does not delay an epoch.
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
        """Remove the executors of silent workers, track the rest."""
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
        """Warm up new executors; count the warm ones."""
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
    """The executors of a session, each with the worker that it belongs to."""

    def __init__(self, spark: SparkSession, cores: int) -> None:
        """`cores`: used task slots of an executor."""
        self._scheduler = Scheduler(spark)
        self.cores = cores
        self.executors = self._scheduler.executors
        self.remove = self._scheduler.remove

    def worker_of(self, executor: str) -> int | None:
        """The worker of an executor; None when the executor is gone."""
        worker = self._scheduler.attribute(executor, variables.WORKER)
        return None if worker is None else int(worker)


def warm(settings: RunSettings, env: Environment, program: Program, loop: Loop) -> None:
    """Start Python processes in all task slots: in local slots now, in slots of executors when these join.

    Loops need no warm-up.
    """
    descriptors = [operator.descriptor for operator in program.plan.operators]
    if program.loops is not None:
        loop.members.on_silent.append(program.loops.silent)
    if env.standalone:
        heat = partial(warm_up, program.spark, descriptors)
        executors = Executors(Backend(program.spark, settings.cores), settings.path / SLOTS, heat)
        loop.members.on_silent.append(executors.silent)
        executors.start()
    if env.standalone or program.loops is not None:
        return

    def warm_here() -> None:
        try:
            warm_up(program.spark, descriptors, settings.cores)
        except Exception as error:
            log.warning("Spark's workers could not be warmed up: %s", str(error)[:300])

    threading.Thread(target=warm_here, name="warm-up", daemon=True).start()
