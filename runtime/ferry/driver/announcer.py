"""Publishes the address of this life of the driver in the registry: before its generation is claimed, and again after that.

It also journals and publishes the catalogue of the job. It repeats both as long as the driver lives, because the
registry may lose them. Must never claim a generation: the journal decides which driver is current.
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
from ferry.contract.catalogue import Catalogue
from ferry.contract.errors import Unreachable
from ferry.contract.places import DriverPlace
from ferry.contract.routing import Table
from ferry.protocol.coordinator import Coordinator, Phase
from ferry.registry import JobRegistry, JournalStore

log = logging.getLogger("ferry.driver")

RETRY_SECONDS = 0.3

KEEP_SECONDS = 1.0
"""Interval between two checks that the registry still has the published values."""

T = TypeVar("T")


class Announcer:
    """One life of the driver."""

    def __init__(self, registry: JobRegistry, journal: JournalStore, cores: int, life: str | None = None) -> None:
        """`cores`: of an executor; `life`: of a Spark that runs already."""
        self._registry = registry
        self._journal = journal
        self._cores = cores
        self._life = life or secrets.token_hex(8)
        environment.give({variables.LIFE: self._life})
        self._spark = self._executor = ""
        self._place: DriverPlace | None = None
        """The address that the registry must hold; None while workers follow no driver, or another driver."""
        self.catalogue: Catalogue
        """As journaled and published, once `record` was called."""

    def starting(self, spark: str, executor: str) -> None:
        """Announce this Spark to the workers, and how they start an executor. Waits for the journal and for Redis."""
        self._spark, self._executor = spark, executor
        journal = _patiently(self._journal.read)
        generation = (journal.version.generation if journal else 0) + 1
        self._tell(DriverPlace(generation, False, self._life, spark, "", self._cores, executor))

    def journaled(self) -> tuple[Catalogue | None, Table | None]:
        """The catalogue and the routing table in the journal. Waits."""
        return _patiently(self._journal.catalogue), _patiently(self._journal.read)

    def record(self, catalogue: Catalogue, generation: int) -> None:
        """Journal and publish the catalogue, before a table names what it has. Waits. Raises Superseded."""
        _patiently(lambda: self._journal.record(catalogue, generation))
        _patiently(lambda: self._registry.publish(catalogue))
        self.catalogue = catalogue

    def keeps(self) -> None:
        """Publish again what the registry loses, from now on; returns at once."""
        threading.Thread(target=self._keep, name="announcer-keep", daemon=True).start()

    def started(self, machine: Coordinator, control: str) -> None:
        """Announce the address again once the generation is claimed; returns at once."""
        threading.Thread(target=self._started, args=(machine, control), name="announcer", daemon=True).start()

    def _started(self, machine: Coordinator, control: str) -> None:
        while machine.phase is Phase.JOURNAL:
            time.sleep(0.01)
        if machine.phase is not Phase.STOPPED:
            claimed = machine.generation, True, self._life, self._spark, control, self._cores, self._executor
            self._tell(DriverPlace(*claimed))

    def _tell(self, place: DriverPlace) -> None:
        if _patiently(lambda: self._registry.announce(place)):
            self._place = place
            return
        self._place = None
        log.warning("workers follow a newer driver, not generation %d", place.generation)

    def _keep(self) -> None:
        while True:
            time.sleep(KEEP_SECONDS)
            with suppress(Unreachable):
                self.keep()

    def keep(self) -> None:
        """Publish again what the registry has lost. Where a newer driver publishes its own address, this one stops."""
        place = self._place
        if place is not None and not self._registry.announce(place) and self._place is place:
            self._place = None
        published = self._registry.catalogue()
        if published is None or (self._place is not None and published != self.catalogue):
            self._registry.publish(self.catalogue)


def _patiently(ask: Callable[[], T]) -> T:
    while True:
        try:
            return ask()
        except Unreachable as error:
            log.warning("waiting: %s", error)
            time.sleep(RETRY_SECONDS)
