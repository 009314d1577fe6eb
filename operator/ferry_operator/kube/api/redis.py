"""The Redis of the installation, for reconciles: its problem, the users of runs, and the deletion of the entries of a run.

The runtime uses Redis through its registry. A thread talks to Redis, and no job waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ferry.contract import places
from ferry_operator.kube.api.redis_connection import RedisConnection, RedisRefusal, where
from ferry_operator.kube.api.redis_users import RunShare, RunUsers

log = logging.getLogger("ferry.operator")

LATE_SECONDS = 5.0
"""A command without an answer after this time waits without a timeout, such as for a name server."""
AGAIN_SECONDS, SOON_SECONDS = 1.0, 0.25
"""Between two looks at Redis; after a look that has found a run with more than its share."""


def problem(url: str) -> str | None:
    """The reason that Redis is unusable, or None."""
    return failure(url, lambda redis: redis.call("PING"))


def forget(url: str, run: str) -> str | None:
    """Delete the entries of a run; returns the reason of a failure, or None. Heartbeats expire on their own."""
    return failure(url, lambda redis: redis.call("DEL", *places.lasting(run)))


def failure(url: str, act: Callable[[RedisConnection], object]) -> str | None:
    """Connect and act; returns the reason of a failure, or None."""
    try:
        with RedisConnection(url) as redis:
            act(redis)
    except (RedisRefusal, OSError, ValueError) as error:  # ValueError: a host name that cannot be encoded
        return _reason(url, error)
    return None


def _reason(url: str, error: Exception) -> str:
    verb = "refuses a command" if isinstance(error, RedisRefusal) else "does not answer"
    return f"Redis at {where(url)} {verb}: {error}"


class Redis:
    """The Redis of one installation, without users of runs. A caller waits for the answer."""

    def __init__(self, url: str) -> None:
        self._url = url

    def problem(self) -> str | None:
        """The reason that Redis is unusable, or None."""
        return problem(self._url)

    def keep(self, run: str, password: str, clear: bool = False) -> None:
        """The run has a user with this password from now on, until it is forgotten. `clear`: it knows no TLS."""

    def without(self, run: str) -> str | None:
        """Why a run has no user now, and until when; None: it has one."""

    def forget(self, run: str) -> None:
        """Delete the user and the entries of a run; a failure is logged."""
        why = forget(self._url, run)
        if why is not None:
            log.info("the Redis entries of run %s were not deleted: %s", run, why)


class RedisApart(Redis):
    """The same for callers that must not wait: a thread tends the users, and callers get the last answer. Thread-safe.

    A name server or a network without answers blocks this thread, and no job.
    """

    def __init__(self, url: str, tag: str, bounds: RunShare | None = None, clear_port: int = 0) -> None:
        super().__init__(url)
        self._users = RunUsers(tag, url, bounds or RunShare(), clear_port)
        self._connection: RedisConnection | None = None
        self._forgotten: list[str] = []
        self._began_at: float | None = None
        """start of the look that waits for its answers"""
        self._last: str | None = None
        """the last answer"""
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._ends = False
        threading.Thread(target=self._run, name="redis", daemon=True).start()

    def problem(self) -> str | None:
        """The last answer; None before the first one."""
        with self._lock:
            late = self._began_at is not None and time.monotonic() - self._began_at > LATE_SECONDS
            return f"Redis at {where(self._url)} does not answer within {LATE_SECONDS:g} s" if late else self._last

    def keep(self, run: str, password: str, clear: bool = False) -> None:
        """The run gets a user with this password, and the port that it needs, soon."""
        with self._lock:
            if self._users.wanted.get(run) == password and clear == (run in self._users.clear):
                return
            self._users.wanted[run] = password
            (self._users.clear.add if clear else self._users.clear.discard)(run)
        self._changed.set()

    def without(self, run: str) -> str | None:
        """Why a run has no user now, and until when; None: it has one."""
        with self._lock:
            found = self._users.without.get(run)
        return None if found is None else found[1]

    def forget(self, run: str) -> None:
        """Delete the user and the entries of a run, soon, or when Redis answers again."""
        with self._lock:
            self._users.wanted.pop(run, None)
            self._users.clear.discard(run)
            self._forgotten.append(run)
        self._changed.set()

    def close(self) -> None:
        """End the thread, after the deletions that were asked for."""
        self._ends = True
        self._changed.set()

    def _run(self) -> None:
        while True:
            ends = self._ends
            again = self._look()
            if ends:
                break
            self._changed.wait(again)
            self._changed.clear()
        if self._connection is not None:
            self._connection.close()

    def _look(self) -> float:
        """Tend the users once; returns seconds until the next time."""
        with self._lock:
            self._began_at = time.monotonic()
        why, soon = None, False
        try:
            if self._connection is None:
                self._connection = RedisConnection(self._url)
            while self._forgotten:
                self._users.forget(self._connection, self._forgotten[0])
                with self._lock:
                    del self._forgotten[0]
            soon = self._users.tend(self._connection, time.monotonic())
        except Exception as error:
            why = _reason(self._url, error)
            if not isinstance(error, (RedisRefusal, OSError, ValueError)):
                log.exception("the users of runs in Redis")
            if self._connection is not None:
                self._connection.close()
            self._connection = None
        if why is not None and why != self._last:
            log.info("%s", why)  # a job that waits for Redis says so in its status
        with self._lock:
            self._began_at, self._last = None, why
        return SOON_SECONDS if soon else AGAIN_SECONDS
