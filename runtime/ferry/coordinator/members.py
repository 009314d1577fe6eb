"""Membership: registrations and heartbeats in Redis, and one channel to every instance.

A closed connection is the fast detector, an expired heartbeat detects silence. While Redis is away only connections
count; a worker seen before the outage that stays without a heartbeat after it is silent. Must never decide the
consequences of a loss, nor wait for one instance while others are alive.
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
from ferry.registry import JobRegistry, MemberCache

log = logging.getLogger("ferry.coordinator")

LOOK_SECONDS = 0.1

RETURN_SECONDS = 15.0
"""Redis must have been back for this long: every worker has to find it again, perhaps on another node."""

FORGET_SECONDS = 60.0
"""Registrations of a worker are deleted after this long without a heartbeat; a worker that comes back registers again."""


class Members:
    """Finds instances and keeps the channels to them."""

    def __init__(self, timeout_ms: int, registry: JobRegistry, post: Callable[[core.Event], None]) -> None:
        self._timeout_seconds = timeout_ms / 1000
        self._post = post
        self._registry = registry
        self._member_cache = MemberCache(registry)
        self._registrations: dict[InstanceId, places.Registration] = {}
        """The last registration of each instance: data loss in Redis closes no channel."""
        self._alive: set[int] = set()
        self._silent: set[int] = set()
        """Workers whose heartbeat has expired."""
        self._unseen_since_outage: set[int] = set()
        """Workers seen before the Redis outage and not since."""
        self._silent_since: dict[int, float] = {}
        """Workers without a heartbeat, whether seen before or not."""
        self._trusted_at = 0.0
        self._dialler: Dialler | None = None
        self.endpoint: Endpoint | None = None
        self.on_lost: Callable[[InstanceId], None] = lambda instance: None
        """Called besides the event, on a thread of the channel."""
        self.on_silent: list[Callable[[int], None]] = []
        """Called once when a worker's heartbeat has expired, just before its instances count as lost."""

    def start(self, endpoint: Endpoint) -> None:
        """Begin to poll the registry."""
        self._dial_with(endpoint)
        threading.Thread(target=self._run, name="members", daemon=True).start()

    def _dial_with(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._dialler = Dialler(
            endpoint.name, endpoint.connect, lambda peer: self._post(core.ProcessEnded(InstanceId(peer)))
        )

    def registration(self, instance: InstanceId) -> places.Registration | None:
        """Address and life of an instance, for tasks; None without a channel to that life."""
        entry = self._registrations.get(instance)
        if entry is None or self.endpoint is None or self._dialler is None or self.endpoint.channel(instance) is None:
            return None
        return entry if self._dialler.life(instance) == entry.incarnation else None

    def connected(self, instance: InstanceId) -> bool:
        """Whether there is a channel to an instance now."""
        return self.endpoint is not None and self.endpoint.channel(instance) is not None

    def closed(self, peer: str, reason: str) -> None:
        """The channel to a peer closed. Dial again at once: a refused connection means that the peer has ended."""
        instance = InstanceId(peer)
        self._post(core.Lost(instance, reason))
        if self._dialler is not None:
            self._dialler.closed(peer)
            if (entry := self._registrations.get(instance)) is not None and worker_of(instance) not in self._silent:
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
                self._registry_lost()
                time.sleep(0.5)
            time.sleep(LOOK_SECONDS)

    def _registry_lost(self) -> None:
        """Redis is away. Once back it may have old heartbeats, which may expire before workers are back."""
        self._unseen_since_outage |= self._alive
        self._alive.clear()
        self._silent.clear()
        self._silent_since.clear()
        self._trusted_at = time.monotonic() + self._timeout_seconds

    def _look(self) -> None:
        self._member_cache.look()
        found = self._member_cache.entries
        self._listen(sorted({worker_of(InstanceId(instance)) for instance in found}))
        for entry in found.values():
            self._keep(entry)
        for instance in [instance for instance in self._registrations if instance not in found]:
            self._close_if_silent(instance)

    def _listen(self, workers: list[int]) -> None:
        """Update which workers are alive, by their heartbeats."""
        now = time.monotonic()
        every = sorted({*workers, *self._unseen_since_outage})
        silent, pulses = self._registry.heard(every)
        for pulse in pulses:
            self._post(pulse)
        without_beat = dict.fromkeys(silent)
        self._silent_since = {worker: self._silent_since.get(worker, now) for worker in without_beat}
        late = now >= self._trusted_at + RETURN_SECONDS
        for worker in every:
            if worker not in without_beat:
                if now >= self._trusted_at:
                    self._alive.add(worker)
                    self._unseen_since_outage.discard(worker)
                self._silent.discard(worker)
            elif worker in self._alive or (late and worker in self._unseen_since_outage):
                self._alive.discard(worker)
                self._unseen_since_outage.discard(worker)
                self._silent.add(worker)
                for tell in self.on_silent:
                    tell(worker)

    def _close_if_silent(self, instance: InstanceId) -> None:
        """Close the channel to an instance if its worker is silent."""
        assert self.endpoint is not None
        channel = self.endpoint.channel(instance)
        if channel is None:
            self._registrations.pop(instance, None)
        elif worker_of(instance) in self._silent:
            log.warning("%s: no heartbeat for %.1f s", instance, self._timeout_seconds)
            channel.close("no heartbeat")

    def _keep(self, entry: places.Registration) -> None:
        """Keep a channel to this life of an instance, unless its worker is silent, and to no other life."""
        assert self.endpoint is not None and self._dialler is not None
        instance = InstanceId(entry.instance)
        self._registrations[instance] = entry
        worker, channel = worker_of(instance), self.endpoint.channel(instance)
        if worker in self._silent:
            self._close_if_silent(instance)
        elif channel is None:
            self._dialler.dial(entry)
        elif self._dialler.life(instance) != entry.incarnation:
            log.info("%s has a successor", instance)
            channel.close("it has a successor")
        if channel is None and time.monotonic() - self._silent_since.get(worker, time.monotonic()) > FORGET_SECONDS:
            log.info("%s is gone: it leaves the registry", instance)
            self._registrations.pop(instance, None)
            self._registry.unregister(entry)
