"""The probe of the leader: each renewal of its Lease has to come back by a watch, the loop of the watches of jobs, the
queue and a reconcile, in a thread of its own.

The Lease is the operator's own object, so users of jobs cannot disturb the probe. A refusal of the watch ends the probe,
not the health of the leader: another process would be refused, too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ferry_operator.kube.api.names import Doc, JobKey
from ferry_operator.kube.api.port import FORBIDDEN, LEASES, ApiError, Watchable
from ferry_operator.kube.process.queue import PROBE, WorkQueue

log = logging.getLogger("ferry.operator")

KEY = JobKey("", "the probe")
"""The probe in the queue; no job has this name."""

WATCH_SECONDS = 30
"""Length of one watch. A connection that broke in silence is noticed after this time."""

AGAIN_SECONDS, REFUSED_SECONDS = 1.0, 60.0
"""Between two watches; the same after a refusal."""


class Probe:
    """Watches the Lease from `start` to `close`, and keeps the time of the last reconcile of it."""

    def __init__(
        self,
        api: Watchable,
        lease: str,
        token: int,
        queue: WorkQueue,
        through: Callable[[Callable[[], None]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`lease`: its name; `token`: of this leader; `through`: calls a function on the loop of the watches of jobs."""
        self._api = api
        self._lease = lease
        self._token = token
        self._queue = queue
        self._through = through
        self._clock = clock
        self._at: float | None = None
        """None: there is no probe, yet or any more"""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probe", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._at = self._clock()
        self._thread.start()

    def close(self) -> None:
        """End the thread, without a wait for a running request."""
        self._end.set()

    def age(self) -> float | None:
        """Seconds since the last reconcile of a renewal; None without a probe."""
        at = self._at
        return None if at is None else self._clock() - at

    def reconciled(self) -> None:
        """A renewal went all the way; or the process was not running, and the age counts from now."""
        if self._at is not None:
            self._at = self._clock()

    def follow(self) -> float:
        """Take renewals until the watch ends; returns seconds until the next watch."""
        try:
            for change, lease in self._api.changes(LEASES, "", WATCH_SECONDS, self._lease):
                if self._at is None:
                    self._at = self._clock()
                    log.info("the operator may watch its Lease again: it has a probe")
                if self._end.is_set():
                    return 0.0
                if self._is_own(change, lease):
                    self._through(lambda: self._queue.add(KEY, priority=PROBE))
        except ApiError as error:
            if error.status != FORBIDDEN:
                log.info("the probe: %s", error)
                return AGAIN_SECONDS
            if self._at is not None:
                log.warning("the operator may not watch its Lease, and so has no probe: %s", error)
            self._at = None
            return REFUSED_SECONDS
        except Exception:
            log.exception("the Lease could not be parsed")
            return REFUSED_SECONDS
        return AGAIN_SECONDS

    def _is_own(self, change: str, lease: Doc) -> bool:
        return change in ("ADDED", "MODIFIED") and (lease.get("spec") or {}).get("leaseTransitions") == self._token

    def _run(self) -> None:
        while not self._end.is_set():
            self._end.wait(self.follow())
