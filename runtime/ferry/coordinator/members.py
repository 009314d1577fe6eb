"""Who is there: registrations and heartbeats in Redis, and one channel to every instance.

A closed connection is the fast detector; a heartbeat that ran out is the one for silence. While Redis is away only
connections count. Must never decide what a loss means.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ferry.board import Board
from ferry.channel.base import REPLACED, Channel, Endpoint
from ferry.contract import places
from ferry.contract.documents import RunSettings
from ferry.contract.errors import FerryError, Unreachable
from ferry.contract.names import InstanceId, worker_of
from ferry.protocol import coordinator as core

log = logging.getLogger("ferry.coordinator")

LOOK_SECONDS = 0.1


class Members:
    """Finds instances and keeps the channels to them."""

    def __init__(self, settings: RunSettings, board: Board, post: Callable[[core.Event], None]) -> None:
        self._settings = settings
        self._post = post
        self._board = board
        self._known: dict[InstanceId, places.Registration] = {}
        self._beating: set[int] = set()
        self._silent: set[int] = set()
        self._trusted_at = 0.0
        self._lock = threading.Lock()
        self.endpoint: Endpoint | None = None
        self.on_lost: Callable[[InstanceId], None] = lambda instance: None
        """Called besides the event, on a thread of the channel."""
        self.on_silent: Callable[[int], None] = lambda worker: None
        """Called once when a worker's heartbeat has run out, just before its instances count as lost."""

    def start(self, endpoint: Endpoint) -> None:
        """Begin to look."""
        self.endpoint = endpoint
        threading.Thread(target=self._run, name="members", daemon=True).start()

    def registration(self, instance: InstanceId) -> places.Registration | None:
        """Where the tasks reach an instance, and which life of it; None when it is lost."""
        with self._lock:
            return self._known.get(instance)

    def closed(self, peer: str, reason: str) -> None:
        """The channel to a peer closed. When a newer one took over, to a successor say, that one is known already."""
        if reason != REPLACED:
            with self._lock:
                self._known.pop(InstanceId(peer), None)
        self._post(core.Lost(InstanceId(peer), reason))
        self.on_lost(InstanceId(peer))

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
        self._beating.clear()
        self._silent.clear()
        self._trusted_at = time.monotonic() + self._settings.timeout_ms / 1000

    def _look(self) -> None:
        assert self.endpoint is not None
        found = self._board.registrations()
        workers = sorted({worker_of(InstanceId(e.instance)) for e in found})
        beats = self._board.beating(workers)
        for worker, beat in zip(workers, beats, strict=True):
            if beat:
                if time.monotonic() >= self._trusted_at:
                    self._beating.add(worker)
                self._silent.discard(worker)
            elif worker in self._beating:
                self._beating.discard(worker)
                self._silent.add(worker)
                self.on_silent(worker)
        for entry in found:
            instance = InstanceId(entry.instance)
            known = self._known.get(instance)
            if known is not None and known.incarnation == entry.incarnation:
                self._check_silence(instance)
                continue
            try:
                with self._lock:
                    self._known[instance] = entry
                self.endpoint.connect(instance, (entry.host, entry.port), timeout=1.0)
            except FerryError as error:
                log.debug("no channel to %s yet: %s", instance, error)
                with self._lock:
                    self._known.pop(instance, None)

    def _check_silence(self, instance: InstanceId) -> None:
        assert self.endpoint is not None
        channel = self.endpoint.channel(instance)
        if channel is not None and worker_of(instance) in self._silent:
            log.warning("%s: no heartbeat for %.1f s", instance, self._settings.timeout_ms / 1000)
            channel.close("no heartbeat")
