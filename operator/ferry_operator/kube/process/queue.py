"""Which job is next: names with the time at which they are due; each is worked on by one thread at a time.

A name that is asked for while it is worked on comes again afterwards. What fails waits longer and longer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ferry.contract.backoff import back_off

BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX = 0.5, 30.0


class WorkQueue:
    """Names of jobs. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: dict[str, float] = {}
        self._busy: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._closed = False
        self._changed = threading.Condition()

    def add(self, name: str, after: float = 0.0) -> None:
        """Ask for a pass in `after` seconds, or sooner when that was asked for before."""
        with self._changed:
            due = self._clock() + after
            self._due[name] = min(self._due.get(name, due), due)
            self._changed.notify()

    def take(self) -> str | None:
        """The next name that is due, to be given back by `done` or `failed`; None when the queue is closed."""
        with self._changed:
            while not self._closed:
                now = self._clock()
                waiting = [(due, name) for name, due in self._due.items() if name not in self._busy]
                due, name = min(waiting, default=(now + 1.0, ""))
                if name and due <= now:
                    del self._due[name]
                    self._busy[name] = now
                    return name
                self._changed.wait(due - now)
            return None

    def done(self, name: str, again: float | None) -> None:
        """A pass went well; `again`: seconds until the next one, None: when it is asked for."""
        with self._changed:
            self._failures.pop(name, None)
            self._release(name, again)

    def failed(self, name: str) -> None:
        """A pass did not go well: the next one comes after a while."""
        with self._changed:
            count = self._failures[name] = self._failures.get(name, 0) + 1
            # What was asked for meanwhile waits, too: it would fail the same way.
            self._due.pop(name, None)
            self._release(name, back_off(count, BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX))

    def _release(self, name: str, again: float | None) -> None:
        self._busy.pop(name, None)
        if again is not None:
            due = self._clock() + again
            self._due[name] = min(self._due.get(name, due), due)
        self._changed.notify_all()

    def close(self) -> None:
        """Let all threads go."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def longest(self) -> float:
        """Seconds for which the oldest of the names that are worked on has been."""
        with self._changed:
            now = self._clock()
            return max((now - began for began in self._busy.values()), default=0.0)

    def depth(self) -> int:
        """Names that are due and not being worked on."""
        with self._changed:
            now = self._clock()
            return sum(due <= now and name not in self._busy for name, due in self._due.items())

    def age(self) -> float:
        """Seconds that the longest waiting of them has been due."""
        with self._changed:
            now = self._clock()
            return max((now - due for name, due in self._due.items() if name not in self._busy), default=0.0)
