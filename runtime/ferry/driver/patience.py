"""Retries of actions that may recover: with growing delays, reported in the status, within the patience of the job."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ferry.contract.errors import Final, UserCodeFailed
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.coordinator.loop import Loop
from ferry.driver.coordinator_orders import sleep

log = logging.getLogger("ferry.driver")

RETRY_SECONDS = 0.005
RETRY_SECONDS_MAX = 30.0

SOON_SECONDS = 0.05
"""Delays grow quickly up to this: a lost instance is replaced after some milliseconds."""

TRY_AGAIN_SECONDS = (1.0, 3.0, 8.0)
"""Delays before the retries of the user's code. Their sum covers a network failure of 12 seconds."""

LEAVING_SECONDS = 0.5
"""Between two looks whether another program has taken over from failing code."""

USER_CODE_FAILS = "UserCode"
"""The name of the problem in the driver's status."""

QUIET_SECONDS = 5.0
"""The loss of an instance usually heals within this time, so a failure is not reported before."""


class ReportedPatience:
    """Retries one action that may fail; `reason` is the name of the problem in the driver's status."""

    def __init__(
        self, loop: Loop, metrics: DriverMetrics, reason: str, quiet: float = 0.0, limit: float | None = None
    ) -> None:
        """`quiet`: seconds before it is reported; `limit`: seconds after which the job stops, None for never."""
        self._loop = loop
        self._metrics = metrics
        self._reason = reason
        self._quiet = quiet
        self._limit = limit
        self._since: float | None = None

    def failed(self, problem: str, at_once: bool = False) -> None:
        """Wait before the next try; `at_once`: the problem is reported without delay.

        Raises Final after the limit, and the errors of `sleep` when the job ends meanwhile.
        """
        now = time.monotonic()
        self._since = self._since if self._since is not None else now
        failing = now - self._since
        log.warning("%s", problem)
        if at_once or failing >= self._quiet:
            self._metrics.problems.report(self._reason, problem)
        if self._limit is not None and failing >= self._limit:
            raise Final(f"{problem} (for {failing:.0f} s); nothing is lost: mend it and start the job again")
        wait = min(RETRY_SECONDS + min(failing, SOON_SECONDS + failing / 10), RETRY_SECONDS_MAX)
        sleep(self._loop, wait if self._limit is None else min(wait, self._limit - failing))

    def allow(self, seconds: float) -> None:
        """Exclude this time, in which the job waited for something else, from the limit."""
        if self._since is not None:
            self._since += seconds

    def waiting(self, problem: str) -> None:
        """Report that the action has not returned yet. Callable from any thread."""
        self._metrics.problems.report(self._reason, problem)

    def partly(self, problem: str) -> None:
        """Report a success with this problem, without a wait; empty: a full success."""
        if not problem:
            return self.succeeded()
        now = time.monotonic()
        if self._since is None:
            self._since = now
            log.warning("%s", problem)
        if now - self._since >= self._quiet:
            self._metrics.problems.report(self._reason, problem)
        return None

    def succeeded(self) -> None:
        """The action succeeded: the problem is over."""
        self._since = None
        self._metrics.problems.mended(self._reason)


class Answers:
    """Reports a call that does not return, such as a read of a folder whose mount hangs. It cannot end the call."""

    def __init__(self, patience: ReportedPatience, seconds: float) -> None:
        self._patience = patience
        self._seconds = seconds
        self._call: tuple[float, Callable[[], str]] | None = None
        threading.Thread(target=self._watch, name="answers", daemon=True).start()

    @contextmanager
    def awaited(self, called: Callable[[], str]) -> Iterator[None]:
        """Around a call of the object that `called()` names; for one thread at a time."""
        self._call = time.monotonic(), called
        try:
            yield
        finally:
            self._call = None

    def _watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(self._seconds / 10):
            if (call := self._call) is not None and time.monotonic() - call[0] > self._seconds:
                silent = f"has not answered for {self._seconds:g} s and more; the job waits for it"
                self._patience.waiting(f"{call[1]()} {silent}")


class UserCodeTries:
    """Retries the user's code. Its failures usually repeat, so they are reported at once, and few retries follow."""

    def __init__(self, loop: Loop, metrics: DriverMetrics) -> None:
        self._loop = loop
        self._metrics = metrics
        self._failures = 0

    def failed(self, error: UserCodeFailed) -> None:
        """Wait before the next try. Raises the error after the last try, and the errors of `sleep` when the job ends."""
        self._tell(error)
        if self._failures == len(TRY_AGAIN_SECONDS):
            raise error
        self._failures += 1
        sleep(self._loop, TRY_AGAIN_SECONDS[self._failures - 1])

    def left(self, error: UserCodeFailed) -> None:
        """Wait until another program takes over; this is no try. Raises the errors of `sleep` when the job ends."""
        self._tell(error)
        self._failures = max(self._failures, 1)
        sleep(self._loop, LEAVING_SECONDS)

    def _tell(self, error: UserCodeFailed) -> None:
        log.warning("%s", error)
        self._metrics.problems.report(USER_CODE_FAILS, str(error))

    def succeeded(self) -> None:
        """The code succeeded: the problem is over."""
        if self._failures:
            self._failures = 0
            self._metrics.problems.mended(USER_CODE_FAILS)


@contextmanager
def watched(metrics: DriverMetrics, reason: str, seconds: float, text: str) -> Iterator[None]:
    """Report this problem when the body takes longer than `seconds`."""
    watch = threading.Timer(seconds, metrics.problems.report, (reason, text))
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()
        watch.join()  # or the report could come after the end of the body
