"""Tells workers where this life of the driver is, in the registry: before its generation is claimed, and again when it is.

Must never claim anything itself: the journal decides which driver is the one.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from ferry.contract.errors import Unreachable
from ferry.contract.places import DriverPlace
from ferry.protocol.coordinator import Coordinator, Phase
from ferry.registry import JobRegistry

log = logging.getLogger("ferry.driver")

RETRY_SECONDS = 0.3

T = TypeVar("T")


class Announcer:
    """One life of the driver."""

    def __init__(self, registry: JobRegistry, cores: int) -> None:
        """`cores`: of an executor."""
        self._registry = registry
        self._cores = cores
        self._life = secrets.token_hex(8)
        self._spark = ""

    def starting(self, spark: str) -> None:
        """Workers may come to this master of Spark. Waits for Redis."""
        self._spark = spark
        journal = _patiently(self._registry.journal)
        generation = (journal.version.generation if journal else 0) + 1
        self._tell(DriverPlace(generation, False, self._life, spark, "", self._cores))

    def started(self, machine: Coordinator, control: str) -> None:
        """Say it again as soon as the generation is claimed; returns at once."""
        threading.Thread(target=self._started, args=(machine, control), name="announcer", daemon=True).start()

    def _started(self, machine: Coordinator, control: str) -> None:
        while machine.phase is Phase.JOURNAL:
            time.sleep(0.01)
        if machine.phase is not Phase.STOPPED:
            self._tell(DriverPlace(machine.generation, True, self._life, self._spark, control, self._cores))

    def _tell(self, place: DriverPlace) -> None:
        if not _patiently(lambda: self._registry.announce(place)):
            log.warning("workers follow a newer driver than that of generation %d", place.generation)


def _patiently(ask: Callable[[], T]) -> T:
    while True:
        try:
            return ask()
        except Unreachable as error:
            log.warning("waiting: %s", error)
            time.sleep(RETRY_SECONDS)
