"""Cuts short what waits for an instance that is gone: a frozen one would keep a task, and the epoch, for ever.

A dead instance closes its sockets; one that is frozen, or behind a broken network, does not. The channels find that out
(no heartbeat), and here it is passed on to Spark's jobs and to the driver's own reads. Must never decide what a loss means.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from ferry.contract.names import InstanceId

log = logging.getLogger("ferry.driver")


GRACE_SECONDS = 1.5
"""Who waits for a dead instance fails by itself within this time; the rest is cancelled then."""


class EpochWatch:
    """`gone` is set when one of the watched instances is lost; `cancel` is called when that alone has not helped."""

    def __init__(self, cancel: Callable[[], None], connected: Callable[[InstanceId], bool]) -> None:
        self.gone = threading.Event()
        self._cancel = cancel
        self._connected = connected
        self._watched: frozenset[InstanceId] = frozenset()
        self._number = 0
        self._lock = threading.Lock()
        self.losses = 0
        """Instances that were lost so far, whoever watches them."""

    @contextmanager
    def on(self, instances: Iterable[InstanceId]) -> Iterator[None]:
        """Watch these instances meanwhile; one that was lost since it was chosen is lost now."""
        with self._lock:
            self._watched = watched = frozenset(instances)
            self._number += 1
            self.gone.clear()
        for instance in watched:
            if not self._connected(instance):
                self.lost(instance)
        try:
            yield
        finally:
            with self._lock:
                self._watched = frozenset()
                self._number += 1

    def lost(self, instance: InstanceId) -> None:
        """An instance was lost; callable from any thread."""
        with self._lock:
            self.losses += 1
            if instance not in self._watched:
                return
            self.gone.set()
            timer = threading.Timer(GRACE_SECONDS, self._cut, (self._number, instance))
        timer.daemon = True
        timer.start()

    def _cut(self, number: int, instance: InstanceId) -> None:
        with self._lock:
            if number != self._number:
                return
        log.warning("%s was lost, and something still waits for it: cancelled", instance)
        self._cancel()
