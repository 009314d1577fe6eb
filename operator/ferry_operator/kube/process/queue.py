"""The work queue: names of jobs with due times; one thread at a time reconciles a name.

Changes by users come before changes in the cluster, and these before routine. Slow reconciles do not delay other names. A
name that is added during its reconcile is due again afterwards. The wait grows with each failure in a row.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from ferry.contract.backoff import back_off

BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX = 0.5, 30.0

EDIT, URGENT, ROUTINE = 60.0, 10.0, 0.0
"""Priorities: seconds by which a name precedes names with the same due time. Routine is late by a minute at most."""

AT_ONCE_SECONDS = 1.0
"""A name that is due again sooner than this keeps its priority."""

RECONCILES_MAX, SLOW_SECONDS = 4, 0.5
"""Concurrent reconciles, without slow ones. A longer reconcile is slow: it waits for an answer, and another may start."""

SLOW_RECONCILES_MAX = 32
"""Concurrent reconciles, with slow ones."""


class DueTime(NamedTuple):
    """The time and the priority of the next reconcile of a name."""

    at: float
    priority: float
    """EDIT, URGENT or ROUTINE"""


class WorkQueue:
    """Names of jobs. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: dict[str, DueTime] = {}
        self._busy: dict[str, float] = {}
        self._priority: dict[str, float] = {}
        """priority of names under reconcile"""
        self._failures: dict[str, int] = {}
        self._moved_at = clock()
        """time of the last start or end of a reconcile"""
        self._closed = False
        self._changed = threading.Condition()

    def add(self, name: str, after: float = 0.0, priority: float = ROUTINE) -> None:
        """Request a reconcile in `after` seconds, or at an earlier due time of the name."""
        with self._changed:
            self._request(name, after, priority)
            self._changed.notify()

    def take(self) -> str | None:
        """Take the next due name; the caller ends with `done` or `failed`. None when the queue is closed."""
        with self._changed:
            while not self._closed:
                now = self._clock()
                wait = self._full(now)
                if wait is None:
                    ready = [(due.at - due.priority, name) for name, due in self._waiting() if due.at <= now]
                    if ready:
                        name = min(ready)[1]
                        self._priority[name] = self._due.pop(name).priority
                        self._busy[name] = self._moved_at = now
                        return name
                    wait = min((due.at - now for _, due in self._waiting()), default=1.0)
                self._changed.wait(wait)
            return None

    def done(self, name: str, again_in: float | None, priority: float = ROUTINE) -> None:
        """End a successful reconcile; `again_in`: seconds until the next one, None: at the next request."""
        with self._changed:
            self._failures.pop(name, None)
            goes_on = again_in is not None and again_in < AT_ONCE_SECONDS
            self._release(name, again_in, max(priority, self._priority.get(name, ROUTINE)) if goes_on else priority)

    def failed(self, name: str) -> None:
        """End a failed reconcile: the next one follows after a back-off."""
        with self._changed:
            count = self._failures[name] = self._failures.get(name, 0) + 1
            # A reconcile that was requested meanwhile waits, too: it would fail the same way.
            self._due.pop(name, None)
            self._release(name, back_off(count, BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX), URGENT)

    def close(self) -> None:
        """Wake all threads: `take` returns None from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def stuck_seconds(self) -> float:
        """Seconds for which a name has been due, but no reconcile has started or ended."""
        with self._changed:
            now = self._clock()
            return max((now - max(due.at, self._moved_at) for _, due in self._waiting()), default=0.0)

    def depth(self) -> int:
        """Number of due names, without names under reconcile."""
        with self._changed:
            now = self._clock()
            return sum(due.at <= now for _, due in self._waiting())

    def age(self) -> float:
        """Seconds since the due time of the name that waits for longest."""
        with self._changed:
            now = self._clock()
            return max((now - due.at for _, due in self._waiting()), default=0.0)

    def _waiting(self) -> list[tuple[str, DueTime]]:
        return [(name, due) for name, due in self._due.items() if name not in self._busy]

    def _full(self, now: float) -> float | None:
        """Seconds until another reconcile may start; None: now."""
        if len(self._busy) >= SLOW_RECONCILES_MAX:
            return 1.0
        young = [began for began in self._busy.values() if now - began < SLOW_SECONDS]
        return None if len(young) < RECONCILES_MAX else min(young) + SLOW_SECONDS - now

    def _request(self, name: str, after: float, priority: float) -> None:
        new = DueTime(self._clock() + after, priority)
        old = self._due.get(name, new)
        self._due[name] = DueTime(min(old.at, new.at), max(old.priority, new.priority))

    def _release(self, name: str, again_in: float | None, priority: float) -> None:
        self._busy.pop(name, None)
        self._priority.pop(name, None)
        self._moved_at = self._clock()
        if again_in is not None:
            self._request(name, again_in, priority)
        self._changed.notify_all()
