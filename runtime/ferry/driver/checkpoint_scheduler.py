"""Schedules durable checkpoints: starts the next checkpoint, publishes its manifest, and removes old checkpoints.

    due, or requested --> TakeCheckpoint ... [the leaders write] ... Publish --> manifest --> Published --> collect

It runs on its own thread, so that epochs do not wait. Must never decide the content of a checkpoint: the coordinator does.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ferry.contract.catalogue import Catalogue
from ferry.contract.errors import FerryError, Refusal, StateUnavailable
from ferry.contract.manifest import Chain, Manifest, chain_from_wire, is_of_run
from ferry.contract.settings import CheckpointSettings, RunSettings
from ferry.contract.status import CHECKPOINT_DELAYED, CheckpointStatus
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.coordinator.loop import Loop
from ferry.durable.catalog import CheckpointCatalog
from ferry.protocol import coordinator as core

log = logging.getLogger("ferry.driver")

LATE_SECONDS = 20.0
"""A checkpoint is reported as late after this time, or after two checkpoint intervals if these are longer."""

FORGOTTEN_SECONDS = 24 * 3600.0
"""After this time, a file of this run that no manifest names is garbage."""

LOOK_SECONDS = 0.2
RETRY_SECONDS = 2.0
"""Interval between two attempts to write a manifest."""


@dataclass(frozen=True, slots=True)
class RequestedCheckpoint:
    """A checkpoint that is due, or that the user requested."""

    number: int
    name: str | None = None
    hold: bool = False


class CheckpointScheduler:
    """Takes checkpoints until the driver ends. `suspended` is set when the last checkpoint is complete."""

    def __init__(
        self,
        settings: RunSettings,
        where: CheckpointSettings,
        catalogue: Callable[[], Catalogue],
        catalog: CheckpointCatalog,
        loop: Loop,
        metrics: DriverMetrics,
        on_published: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_published` is called after each complete checkpoint."""
        self._settings = settings
        self._where = where
        self._catalogue = catalogue
        self.catalog = catalog
        self._loop = loop
        self._metrics = metrics
        self._on_published = on_published
        self.suspended = threading.Event()
        self._orders: queue.SimpleQueue[RequestedCheckpoint | core.Publish] = queue.SimpleQueue()
        self._wanted: RequestedCheckpoint | None = None
        self._since = time.monotonic()
        """when the pending checkpoint was requested, or the last checkpoint completed"""
        self._damaged = False
        """A file that leaders believe to be in the store is missing: the next checkpoint is a full one."""
        self._published_epoch = -1
        self._published_rows = -1
        self._lineage = settings.run
        self._named: set[str] = set()
        """Files in manifests of this driver."""
        self._numbers = threading.Lock()
        self._number = 0
        self._last: RequestedCheckpoint | None = None
        """The checkpoint that suspends the job."""

    def start(self) -> None:
        """Start to take checkpoints."""
        self._metrics.checkpoint = CheckpointStatus()
        self._loop.on_publish = self._orders.put
        threading.Thread(target=self._run, name="checkpoints", daemon=True).start()

    # ---- requests, on any thread
    def take(self, name: str | None) -> int:
        """Request a checkpoint; returns its number. Raises Refusal if the name is taken, or the job is being suspended."""
        if self._last is not None:
            raise Refusal(f"the job is suspended with checkpoint {self._last.number}, and takes no other checkpoint")
        if name is not None and any(m.name == name for m in self.catalog.manifests()):
            raise Refusal(
                f"there is a checkpoint named {name!r} already; choose another name, or delete that checkpoint"
            )
        wanted = RequestedCheckpoint(self._next(), name)
        self._orders.put(wanted)
        return wanted.number

    def suspend(self) -> int:
        """Request the last checkpoint: no epoch begins after it. A repeated request returns the same number."""
        with self._numbers:
            if self._last is None:
                self._last = RequestedCheckpoint(self._following(), hold=True)
                self._orders.put(self._last)
            return self._last.number

    def _next(self) -> int:
        with self._numbers:
            return self._following()

    def _following(self) -> int:
        self._number = max(self._number + 1, self.catalog.next_number())
        return self._number

    # ---- the thread
    def _run(self) -> None:
        self._begin()
        while True:
            try:
                order = self._orders.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                order = None
            if isinstance(order, core.Publish):
                self._publish(order)
            elif order is not None:
                self._ask(order)
            elif self._is_due():
                try:
                    self._ask(RequestedCheckpoint(self._next()))
                except FerryError as error:
                    self._late(str(error))
                    time.sleep(RETRY_SECONDS)
            elif self._wanted is not None:
                self._say_late()

    def _begin(self) -> None:
        """Continue from the newest checkpoint of the previous driver."""
        while True:
            try:
                mine = [m for m in self.catalog.manifests() if m.run == self._settings.run]
                break
            except FerryError as error:
                self._late(str(error))
                time.sleep(RETRY_SECONDS)
        if mine:
            self._lineage = mine[0].lineage
            self._published_epoch = mine[0].epoch
            self._say(mine[0], 0)

    def _is_due(self) -> bool:
        every = self._where.every_ms
        if every is None or self._wanted is not None or time.monotonic() - self._since < every / 1000:
            return False
        epoch, rows = self._metrics.epoch, self._metrics.rows
        return epoch > self._published_epoch + 1 or rows != self._published_rows

    def _ask(self, wanted: RequestedCheckpoint) -> None:
        if self._wanted is None or wanted.hold:
            if self._wanted is not None and wanted.name is None:
                wanted = replace(wanted, name=self._wanted.name)  # the request for that name must be fulfilled
            self._wanted, self._since = wanted, time.monotonic()
            self._loop.post(core.TakeCheckpoint(wanted.number, wanted.hold, self._damaged))
            if self._metrics.checkpoint is not None:
                self._metrics.checkpoint = replace(self._metrics.checkpoint, under_way=True)
        else:
            # Leaders write one checkpoint at a time.
            threading.Timer(LOOK_SECONDS, self._orders.put, (wanted,)).start()

    def _say_late(self) -> None:
        # Without the seconds of delay: a changed text would be logged again.
        every = (self._where.every_ms or 0) / 1000
        if self._wanted is not None and time.monotonic() - self._since > max(LATE_SECONDS, 2 * every):
            under_way = self._loop.machine.checkpoints.under_way
            cause = (
                f"instances {', '.join(sorted(under_way.waiting))} have not written"
                if under_way
                else "it has not begun"
            )
            self._late(f"checkpoint {self._wanted.number} is not complete: {cause}")

    def _late(self, why: str) -> None:
        self._metrics.problems.delayed(CHECKPOINT_DELAYED, f"{self.catalog.location.text}: {why}")

    # ---- a manifest
    def _publish(self, order: core.Publish) -> None:
        wanted = self._wanted
        if wanted is None or wanted.number != order.number:
            self._loop.post(core.Published(order.number, "the checkpoint is no longer wanted"))
            return
        manifest = self._manifest(order, wanted.name)
        while True:
            try:
                self.catalog.check(manifest)
                self.catalog.publish(manifest)
                break
            except (Refusal, StateUnavailable) as error:  # A retry would fail in the same way.
                self._damaged = True
                log.error("checkpoint %d is incomplete: %s", order.number, error)
                self._late(str(error))
                if wanted.hold:
                    time.sleep(RETRY_SECONDS)  # No epoch follows: the checkpoint is written again until it is complete.
                self._end(order.number, str(error))
                return
            except FerryError as error:
                self._late(str(error))
                time.sleep(RETRY_SECONDS)
        self._damaged = False
        self._end(order.number, "")
        self._complete(manifest)
        if wanted.hold:
            self.suspended.set()

    def _end(self, number: int, reason: str) -> None:
        if not (reason and self._wanted is not None and self._wanted.hold):
            self._wanted, self._since = None, time.monotonic()
        self._loop.post(core.Published(number, reason))

    def _manifest(self, order: core.Publish, name: str | None) -> Manifest:
        catalogue = self._catalogue().as_of(order.program)
        chains: list[Chain] = [chain_from_wire(chain) for text in order.chains for chain in json.loads(text)]
        return Manifest(
            number=order.number,
            name=name,
            job=self._settings.job,
            run=self._settings.run,
            lineage=self._lineage,
            generation=self._loop.machine.generation,
            made_at=time.time(),
            commit_id=order.commit_id,
            results=order.results,
            meta=order.meta,
            virtual_nodes=self._settings.virtual_nodes,
            operators=catalogue.operators,
            void=catalogue.void,
            programs=(order.program,),
            chains=tuple(chains),
        )

    def _complete(self, manifest: Manifest) -> None:
        """Report a complete checkpoint, and remove older ones."""
        fresh = sum(file.bytes for file in manifest.files if file.name not in self._named)
        self._named.update(file.name for file in manifest.files)
        self._published_epoch, self._published_rows = manifest.epoch, self._metrics.rows
        self._metrics.problems.caught_up(CHECKPOINT_DELAYED)
        self._say(manifest, fresh)
        named = f" {manifest.name!r}" if manifest.name else ""
        self._metrics.note(
            "checkpoint",
            f"{manifest.number}{named} of epoch {manifest.epoch}, {fresh} of {manifest.total_bytes} bytes written",
        )
        self._on_published()
        try:
            self.catalog.collect(self._lineage, self._where.keep, self._in_flight)
        except FerryError as error:
            log.warning("old checkpoints stay for now: %s", error)

    def _say(self, manifest: Manifest, fresh: int) -> None:
        self._metrics.checkpoint = CheckpointStatus(
            manifest.number, manifest.name, manifest.epoch, manifest.made_at, fresh, manifest.total_bytes
        )

    def _in_flight(self, name: str, age: float) -> bool:
        """Whether a file may still become part of a checkpoint of this run; `age` is in seconds."""
        return is_of_run(name, self._settings.run) and age < FORGOTTEN_SECONDS and name not in self._named
