"""Which job is next: names with the time at which they are due; each is worked on by one thread at a time.

Changes of users go before changes in the cluster, and these before routine. Passes that last take no turn from the others. A
name that is asked for during its pass is due again afterwards; after each failure in a row its wait is longer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from ferry.contract.backoff import back_off

BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX = 0.5, 30.0

EDIT, URGENT, ROUTINE = 60.0, 10.0, 0.0
"""Seconds by which a name goes before what is due at the same time; so routine is late by a minute, and never forgotten."""

AT_ONCE_SECONDS = 1.0
"""A name that is due again sooner than this keeps its place before other names."""

PASSES_MAX, SLOW_SECONDS = 4, 0.5
"""Passes at a time; a pass that has lasted so long waits for an answer, and one more pass may begin beside it."""

SLOW_PASSES_MAX = 32
"""With those that wait."""


class DueTime(NamedTuple):
    """When the next pass of a name is due."""

    at: float
    ahead: float
    """EDIT, URGENT or ROUTINE"""


class WorkQueue:
    """Names of jobs. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: dict[str, DueTime] = {}
        self._busy: dict[str, float] = {}
        self._ahead: dict[str, float] = {}
        """of names that are worked on"""
        self._failures: dict[str, int] = {}
        self._moved_at = clock()
        """when a name was last taken, or given back"""
        self._closed = False
        self._changed = threading.Condition()

    def add(self, name: str, after: float = 0.0, ahead: float = ROUTINE) -> None:
        """Ask for a pass in `after` seconds, or sooner when that was asked for before."""
        with self._changed:
            self._ask(name, after, ahead)
            self._changed.notify()

    def take(self) -> str | None:
        """The next name that is due, to be given back by `done` or `failed`; None when the queue is closed."""
        with self._changed:
            while not self._closed:
                now = self._clock()
                wait = self._full(now)
                if wait is None:
                    ready = [(due.at - due.ahead, name) for name, due in self._waiting() if due.at <= now]
                    if ready:
                        name = min(ready)[1]
                        self._ahead[name] = self._due.pop(name).ahead
                        self._busy[name] = self._moved_at = now
                        return name
                    wait = min((due.at - now for _, due in self._waiting()), default=1.0)
                self._changed.wait(wait)
            return None

    def done(self, name: str, again: float | None, ahead: float = ROUTINE) -> None:
        """A pass went well; `again`: seconds until the next one, None: when it is asked for."""
        with self._changed:
            self._failures.pop(name, None)
            goes_on = again is not None and again < AT_ONCE_SECONDS
            self._release(name, again, max(ahead, self._ahead.get(name, ROUTINE)) if goes_on else ahead)

    def failed(self, name: str) -> None:
        """A pass did not go well: the next one comes after a while."""
        with self._changed:
            count = self._failures[name] = self._failures.get(name, 0) + 1
            # A pass that was asked for meanwhile waits, too: it would fail the same way.
            self._due.pop(name, None)
            self._release(name, back_off(count, BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX), URGENT)

    def close(self) -> None:
        """Let all threads go."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def stands(self) -> float:
        """Seconds for which a name has been due, and none was taken or given back."""
        with self._changed:
            now = self._clock()
            return max((now - max(due.at, self._moved_at) for _, due in self._waiting()), default=0.0)

    def depth(self) -> int:
        """Names that are due and not being worked on."""
        with self._changed:
            now = self._clock()
            return sum(due.at <= now for _, due in self._waiting())

    def age(self) -> float:
        """Seconds that the longest waiting of them has been due."""
        with self._changed:
            now = self._clock()
            return max((now - due.at for _, due in self._waiting()), default=0.0)

    def _waiting(self) -> list[tuple[str, DueTime]]:
        return [(name, due) for name, due in self._due.items() if name not in self._busy]

    def _full(self, now: float) -> float | None:
        """Seconds after which to look again whether another pass may begin; None: it may."""
        if len(self._busy) >= SLOW_PASSES_MAX:
            return 1.0
        young = [began for began in self._busy.values() if now - began < SLOW_SECONDS]
        return None if len(young) < PASSES_MAX else min(young) + SLOW_SECONDS - now

    def _ask(self, name: str, after: float, ahead: float) -> None:
        new = DueTime(self._clock() + after, ahead)
        old = self._due.get(name, new)
        self._due[name] = DueTime(min(old.at, new.at), max(old.ahead, new.ahead))

    def _release(self, name: str, again: float | None, ahead: float) -> None:
        self._busy.pop(name, None)
        self._ahead.pop(name, None)
        self._moved_at = self._clock()
        if again is not None:
            self._ask(name, again, ahead)
        self._changed.notify_all()
