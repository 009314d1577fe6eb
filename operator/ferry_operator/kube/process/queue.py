"""The work queue: jobs with due times; one thread at a time reconciles a job.

Changes by users come before changes in the cluster, and these before routine. Slow reconciles do not delay other jobs. A
job that is added during its reconcile is due again afterwards. The wait grows with each failure in a row.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from ferry.contract.backoff import back_off
from ferry_operator.kube.api.names import JobKey

BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX = 0.5, 30.0

EDIT, URGENT, ROUTINE = 60.0, 10.0, 0.0
"""Priorities: seconds by which a job precedes jobs with the same due time. Routine is late by a minute at most."""

PROBE = 3600.0
"""Priority of the probe: no number of jobs delays it (`process.probe`)."""

AT_ONCE_SECONDS = 1.0
"""A job that is due again sooner than this keeps its priority."""

RECONCILES_MAX, SLOW_SECONDS = 4, 0.5
"""Concurrent reconciles, without slow ones. A longer reconcile is slow: it waits for an answer, and another may start."""

SLOW_RECONCILES_MAX = 32
"""Concurrent reconciles, with slow ones."""


class DueTime(NamedTuple):
    """The time and the priority of the next reconcile of a job."""

    at: float
    priority: float
    """EDIT, URGENT or ROUTINE"""


class WorkQueue:
    """Jobs, by namespace and name. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: dict[JobKey, DueTime] = {}
        self._busy: dict[JobKey, float] = {}
        self._priority: dict[JobKey, float] = {}
        """priority of jobs under reconcile"""
        self._failures: dict[JobKey, int] = {}
        self._moved_at = clock()
        """time of the last start or end of a reconcile"""
        self._closed = False
        self._changed = threading.Condition()

    def add(self, key: JobKey, after: float = 0.0, priority: float = ROUTINE) -> None:
        """Request a reconcile in `after` seconds, or at an earlier due time of the job."""
        with self._changed:
            self._request(key, after, priority)
            self._changed.notify()

    def ensure(self, key: JobKey, after: float) -> None:
        """Request a reconcile in `after` seconds, unless one runs or is due."""
        with self._changed:
            if key not in self._due and key not in self._busy:
                self._request(key, after, ROUTINE)
                self._changed.notify()

    def take(self) -> JobKey | None:
        """Take the next due job; the caller ends with `done` or `failed`. None when the queue is closed."""
        with self._changed:
            while not self._closed:
                now = self._clock()
                wait = self._full(now)
                if wait is None:
                    ready = [(due.at - due.priority, key) for key, due in self._waiting() if due.at <= now]
                    if ready:
                        key = min(ready)[1]
                        self._priority[key] = self._due.pop(key).priority
                        self._busy[key] = self._moved_at = now
                        return key
                    wait = min((due.at - now for _, due in self._waiting()), default=1.0)
                self._changed.wait(wait)
            return None

    def done(self, key: JobKey, again_in: float | None, priority: float = ROUTINE) -> None:
        """End a successful reconcile; `again_in`: seconds until the next one, None: at the next request."""
        with self._changed:
            self._failures.pop(key, None)
            goes_on = again_in is not None and again_in < AT_ONCE_SECONDS
            self._release(key, again_in, max(priority, self._priority.get(key, ROUTINE)) if goes_on else priority)

    def failed(self, key: JobKey) -> None:
        """End a failed reconcile: the next one follows after a back-off."""
        with self._changed:
            count = self._failures[key] = self._failures.get(key, 0) + 1
            # A reconcile that was requested meanwhile waits, too: it would fail the same way.
            self._due.pop(key, None)
            self._release(key, back_off(count, BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX), URGENT)

    def close(self) -> None:
        """Wake all threads: `take` returns None from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def stuck_seconds(self) -> float:
        """Seconds for which a job has been due, but no reconcile has started or ended."""
        with self._changed:
            now = self._clock()
            return max((now - max(due.at, self._moved_at) for _, due in self._waiting()), default=0.0)

    def depth(self) -> int:
        """Number of due jobs, without jobs under reconcile."""
        with self._changed:
            now = self._clock()
            return sum(due.at <= now for _, due in self._waiting())

    def age(self) -> float:
        """Seconds since the due time of the job that waits for longest."""
        with self._changed:
            now = self._clock()
            return max((now - due.at for _, due in self._waiting()), default=0.0)

    def _waiting(self) -> list[tuple[JobKey, DueTime]]:
        return [(key, due) for key, due in self._due.items() if key not in self._busy]

    def _full(self, now: float) -> float | None:
        """Seconds until another reconcile may start; None: now."""
        if len(self._busy) >= SLOW_RECONCILES_MAX:
            return 1.0
        young = [began for began in self._busy.values() if now - began < SLOW_SECONDS]
        return None if len(young) < RECONCILES_MAX else min(young) + SLOW_SECONDS - now

    def _request(self, key: JobKey, after: float, priority: float) -> None:
        new = DueTime(self._clock() + after, priority)
        old = self._due.get(key, new)
        self._due[key] = DueTime(min(old.at, new.at), max(old.priority, new.priority))

    def _release(self, key: JobKey, again_in: float | None, priority: float) -> None:
        self._busy.pop(key, None)
        self._priority.pop(key, None)
        self._moved_at = self._clock()
        if again_in is not None:
            self._request(key, again_in, priority)
        self._changed.notify_all()
