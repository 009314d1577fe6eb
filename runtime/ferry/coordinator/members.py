"""Who is there: registrations and heartbeats in Redis, and one channel to every instance.

A closed connection is the fast detector; a heartbeat that ran out is the one for silence. While Redis is away only
connections count; who was heard before, and is not when it has been back for a while, is silent. Must never decide what a
loss means, nor wait for one instance while others are there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ferry.channel.base import Channel, Endpoint
from ferry.channel.dialling import Dialler
from ferry.contract import places
from ferry.contract.errors import Unreachable
from ferry.contract.names import InstanceId, worker_of
from ferry.protocol import coordinator as core
from ferry.registry import JobRegistry, Roll

log = logging.getLogger("ferry.coordinator")

LOOK_SECONDS = 0.1

RETURN_SECONDS = 15.0
"""Redis has to have been back for so long, for every worker has to find it again, and it may be on another node."""

FORGET_SECONDS = 60.0
"""Registrations of a worker leave the registry when it had no heartbeat for so long; who comes back says so anew."""


class Members:
    """Finds instances and keeps the channels to them."""

    def __init__(self, timeout_ms: int, registry: JobRegistry, post: Callable[[core.Event], None]) -> None:
        self._timeout_seconds = timeout_ms / 1000
        self._post = post
        self._registry = registry
        self._roll = Roll(registry)
        self._met: dict[InstanceId, places.Registration] = {}
        """The last registration of each instance: a Redis that has forgotten it takes no channel away."""
        self._beating: set[int] = set()
        self._silent: set[int] = set()
        """Those of whom a heartbeat was heard before it ran out."""
        self._unheard: set[int] = set()
        """Those of whom a heartbeat was heard before Redis was away, and none since."""
        self._mute_since: dict[int, float] = {}
        """Workers without a heartbeat, heard of before or not."""
        self._trusted_at = 0.0
        self._dialler: Dialler | None = None
        self.endpoint: Endpoint | None = None
        self.on_lost: Callable[[InstanceId], None] = lambda instance: None
        """Called besides the event, on a thread of the channel."""
        self.on_silent: list[Callable[[int], None]] = []
        """Called once when a worker's heartbeat has run out, just before its instances count as lost."""

    def start(self, endpoint: Endpoint) -> None:
        """Begin to look."""
        self._dial_with(endpoint)
        threading.Thread(target=self._run, name="members", daemon=True).start()

    def _dial_with(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._dialler = Dialler(
            endpoint.name, endpoint.connect, lambda peer: self._post(core.ProcessEnded(InstanceId(peer)))
        )

    def registration(self, instance: InstanceId) -> places.Registration | None:
        """Where the tasks reach an instance, and which life of it; None when there is no channel to that."""
        entry = self._met.get(instance)
        if entry is None or self.endpoint is None or self._dialler is None or self.endpoint.channel(instance) is None:
            return None
        return entry if self._dialler.life(instance) == entry.incarnation else None

    def connected(self, instance: InstanceId) -> bool:
        """Whether there is a channel to an instance now."""
        return self.endpoint is not None and self.endpoint.channel(instance) is not None

    def closed(self, peer: str, reason: str) -> None:
        """The channel to a peer closed. It is dialled at once: a peer that has ended is one that nobody has to wait for."""
        instance = InstanceId(peer)
        self._post(core.Lost(instance, reason))
        if self._dialler is not None:
            self._dialler.closed(peer)
            if (entry := self._met.get(instance)) is not None and worker_of(instance) not in self._silent:
                self._dialler.dial(entry)
        self.on_lost(instance)

    def opened(self, peer: str, channel: Channel) -> None:
        """A channel to a peer is open."""
        self._post(core.Connected(InstanceId(peer)))

    def _run(self) -> None:
        while True:
            try:
                self._look()
            except Unreachable:
                self._forget()
                time.sleep(0.5)
            time.sleep(LOOK_SECONDS)

    def _forget(self) -> None:
        """Nobody can be heard. A Redis that comes back has old heartbeats: they may run out before workers are back."""
        self._unheard |= self._beating
        self._beating.clear()
        self._silent.clear()
        self._mute_since.clear()
        self._trusted_at = time.monotonic() + self._timeout_seconds

    def _look(self) -> None:
        self._roll.look()
        found = self._roll.entries
        self._listen(sorted({worker_of(InstanceId(instance)) for instance in found}))
        for entry in found.values():
            self._keep(entry)
        for instance in [instance for instance in self._met if instance not in found]:
            self._part_from(instance)

    def _listen(self, workers: list[int]) -> None:
        """Whose heartbeat there is."""
        now = time.monotonic()
        every = sorted({*workers, *self._unheard})
        silent, pulses = self._registry.heard(every)
        for pulse in pulses:
            self._post(pulse)
        mute = dict.fromkeys(silent)
        self._mute_since = {worker: self._mute_since.get(worker, now) for worker in mute}
        late = now >= self._trusted_at + RETURN_SECONDS
        for worker in every:
            if worker not in mute:
                if now >= self._trusted_at:
                    self._beating.add(worker)
                    self._unheard.discard(worker)
                self._silent.discard(worker)
            elif worker in self._beating or (late and worker in self._unheard):
                self._beating.discard(worker)
                self._unheard.discard(worker)
                self._silent.add(worker)
                for tell in self.on_silent:
                    tell(worker)

    def _part_from(self, instance: InstanceId) -> None:
        """Close the channel to an instance if its worker is silent."""
        assert self.endpoint is not None
        channel = self.endpoint.channel(instance)
        if channel is None:
            self._met.pop(instance, None)
        elif worker_of(instance) in self._silent:
            log.warning("%s: no heartbeat for %.1f s", instance, self._timeout_seconds)
            channel.close("no heartbeat")

    def _keep(self, entry: places.Registration) -> None:
        """Have a channel to this life of an instance, if its worker can be heard, and to no other life."""
        assert self.endpoint is not None and self._dialler is not None
        instance = InstanceId(entry.instance)
        self._met[instance] = entry
        worker, channel = worker_of(instance), self.endpoint.channel(instance)
        if worker in self._silent:
            self._part_from(instance)
        elif channel is None:
            self._dialler.dial(entry)
        elif self._dialler.life(instance) != entry.incarnation:
            log.info("%s has a successor", instance)
            channel.close("it has a successor")
        if channel is None and time.monotonic() - self._mute_since.get(worker, time.monotonic()) > FORGET_SECONDS:
            log.info("%s is gone: it leaves the registry", instance)
            self._met.pop(instance, None)
            self._registry.unregister(entry)
