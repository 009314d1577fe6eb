"""Cancels work that waits for a lost instance: a frozen instance would block a task, and the epoch, for ever.

A dead instance closes its sockets. A frozen or unreachable instance does not: the channels detect it by its missing
heartbeat, and this module cancels Spark's jobs and the driver's reads. Must never decide what a loss means.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from ferry.contract.names import InstanceId

log = logging.getLogger("ferry.driver")


GRACE_SECONDS = 1.5
"""Reads from a dead instance fail within this time. After it, remaining work is cancelled."""


class InstanceWatch:
    """`gone` is set when a watched instance is lost; `cancel` is called if the work still waits after GRACE_SECONDS."""

    def __init__(self, cancel: Callable[[], None], connected: Callable[[InstanceId], bool]) -> None:
        self.gone = threading.Event()
        self._cancel = cancel
        self._connected = connected
        self._watched: frozenset[InstanceId] = frozenset()
        self._number = 0
        self._lock = threading.Lock()
        self.losses = 0
        """Number of lost instances so far, watched or not."""

    @contextmanager
    def on(self, instances: Iterable[InstanceId]) -> Iterator[None]:
        """Watch these instances within the body. An instance that is already disconnected counts as lost."""
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
        """Report a lost instance; callable from any thread."""
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
        log.warning("%s was lost, and work still waits for it: cancelled", instance)
        self._cancel()
