"""Tells workers where this life of the driver is, in the registry: before its generation is claimed, and again when it is.

And what the job's stateful operators are. Both are said again as long as the driver lives, for a registry that has
forgotten them. Must never claim anything itself: the journal decides which driver is the one.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from ferry import environment
from ferry.contract import variables
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.errors import Unreachable
from ferry.contract.places import DriverPlace
from ferry.protocol.coordinator import Coordinator, Phase
from ferry.registry import JobRegistry, JournalStore

log = logging.getLogger("ferry.driver")

RETRY_SECONDS = 0.3

KEEP_SECONDS = 1.0
"""Between two looks at whether the registry still has what it was told."""

T = TypeVar("T")


class Announcer:
    """One life of the driver."""

    def __init__(self, registry: JobRegistry, journal: JournalStore, cores: int, life: str | None = None) -> None:
        """`cores`: of an executor; `life`: of a Spark that is there already."""
        self._registry = registry
        self._journal = journal
        self._cores = cores
        self._life = life or secrets.token_hex(8)
        environment.give({variables.LIFE: self._life})
        self._spark = ""
        self._place: DriverPlace | None = None
        """What the registry has to say; None as long as workers follow nobody, or another driver."""
        self._descriptors: list[OperatorDescriptor] = []

    def starting(self, spark: str) -> None:
        """Workers may come to this master of Spark. Waits for the journal, and for Redis."""
        self._spark = spark
        journal = _patiently(self._journal.read)
        generation = (journal.version.generation if journal else 0) + 1
        self._tell(DriverPlace(generation, False, self._life, spark, "", self._cores))

    def settle(self, descriptors: list[OperatorDescriptor]) -> None:
        """Have these as the job's operators, and tell the instances. Waits; raises SpecRefused when the job has others."""
        _patiently(lambda: self._journal.settle(descriptors))
        _patiently(lambda: self._registry.publish(descriptors))
        self._descriptors = descriptors
        threading.Thread(target=self._keep, name="announcer-keep", daemon=True).start()

    def started(self, machine: Coordinator, control: str) -> None:
        """Say it again as soon as the generation is claimed; returns at once."""
        threading.Thread(target=self._started, args=(machine, control), name="announcer", daemon=True).start()

    def _started(self, machine: Coordinator, control: str) -> None:
        while machine.phase is Phase.JOURNAL:
            time.sleep(0.01)
        if machine.phase is not Phase.STOPPED:
            self._tell(DriverPlace(machine.generation, True, self._life, self._spark, control, self._cores))

    def _tell(self, place: DriverPlace) -> None:
        if _patiently(lambda: self._registry.announce(place)):
            self._place = place
            return
        self._place = None
        log.warning("workers follow a newer driver than that of generation %d", place.generation)

    def _keep(self) -> None:
        while True:
            time.sleep(KEEP_SECONDS)
            with suppress(Unreachable):
                self.keep()

    def keep(self) -> None:
        """Say again what the registry has forgotten; nothing once a newer driver was there: it says so itself."""
        place = self._place
        if place is not None and not self._registry.announce(place) and self._place is place:
            self._place = None
        self._registry.publish(self._descriptors)


def _patiently(ask: Callable[[], T]) -> T:
    while True:
        try:
            return ask()
        except Unreachable as error:
            log.warning("waiting: %s", error)
            time.sleep(RETRY_SECONDS)
