"""Trying again what fails and may pass: a little later each time, said aloud, for as long as the job may wait."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ferry.contract.errors import Final, UserCodeFailed
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.coordinator.loop import Loop
from ferry.driver.orders import sleep

log = logging.getLogger("ferry.driver")

RETRY_SECONDS = 0.005
RETRY_SECONDS_MAX = 30.0

SOON_SECONDS = 0.05
"""Waits double up to this: who takes the place of one that is gone is known after some milliseconds."""

TRY_AGAIN_SECONDS = (1.0, 3.0, 8.0)
"""Before each further try of the user's code: it may have been the network, for 12 seconds."""

USER_CODE_FAILS = "UserCode"
"""What the problem is called in the driver's status."""

QUIET_SECONDS = 5.0
"""What fails because an instance is gone works again within this time, as a rule: it is no problem before."""


class ReportedPatience:
    """Follows one thing that may fail; `reason` is what the problem is called in the driver's status."""

    def __init__(
        self, loop: Loop, metrics: DriverMetrics, reason: str, quiet: float = 0.0, limit: float | None = None
    ) -> None:
        """`quiet`: seconds before it is said; `limit`: seconds after which the job stops, None for never."""
        self._loop = loop
        self._metrics = metrics
        self._reason = reason
        self._quiet = quiet
        self._limit = limit
        self._since: float | None = None

    def failed(self, what: str, at_once: bool = False) -> None:
        """Wait before the next try; `at_once`: it is said without delay.

        Raises Final after the limit, and what `sleep` raises when the job ends meanwhile.
        """
        now = time.monotonic()
        self._since = self._since if self._since is not None else now
        failing = now - self._since
        log.warning("%s", what)
        if at_once or failing >= self._quiet:
            self._metrics.problems.report(self._reason, what)
        if self._limit is not None and failing >= self._limit:
            raise Final(f"{what} (for {failing:.0f} s); nothing is lost: mend it and start the job again")
        wait = min(RETRY_SECONDS + min(failing, SOON_SECONDS + failing / 10), RETRY_SECONDS_MAX)
        sleep(self._loop, wait if self._limit is None else min(wait, self._limit - failing))

    def allow(self, seconds: float) -> None:
        """So long something else was waited for: it does not count."""
        if self._since is not None:
            self._since += seconds

    def waiting(self, what: str) -> None:
        """Neither has it failed, nor does it work. Callable from any thread."""
        self._metrics.problems.report(self._reason, what)

    def partly(self, what: str) -> None:
        """It works but for this, which is said, and nothing waits for it; empty: it works."""
        if not what:
            return self.succeeded()
        now = time.monotonic()
        if self._since is None:
            self._since = now
            log.warning("%s", what)
        if now - self._since >= self._quiet:
            self._metrics.problems.report(self._reason, what)
        return None

    def succeeded(self) -> None:
        """It works (again)."""
        self._since = None
        self._metrics.problems.mended(self._reason)


class Answers:
    """Notices a call that does not return, such as a look at a folder whose mount hangs: nothing ends it."""

    def __init__(self, patience: ReportedPatience, seconds: float) -> None:
        self._patience = patience
        self._seconds = seconds
        self._asked: tuple[float, Callable[[], str]] | None = None
        threading.Thread(target=self._watch, name="answers", daemon=True).start()

    @contextmanager
    def awaited(self, who: Callable[[], str]) -> Iterator[None]:
        """Meanwhile `who` is asked; by one thread at a time."""
        self._asked = time.monotonic(), who
        try:
            yield
        finally:
            self._asked = None

    def _watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(self._seconds / 10):
            if (asked := self._asked) is not None and time.monotonic() - asked[0] > self._seconds:
                silent = f"has not answered for {self._seconds:g} s and more; the job waits for it"
                self._patience.waiting(f"{asked[1]()} {silent}")


class UserCodeTries:
    """Follows the user's code, which fails again as a rule: it is said at once, and the job stops after a few tries."""

    def __init__(self, loop: Loop, metrics: DriverMetrics) -> None:
        self._loop = loop
        self._metrics = metrics
        self._failures = 0

    def failed(self, error: UserCodeFailed) -> None:
        """Wait before the next try. Raises the error after the last one, and what `sleep` raises when the job ends."""
        log.warning("%s", error)
        self._metrics.problems.report(USER_CODE_FAILS, str(error))
        if self._failures == len(TRY_AGAIN_SECONDS):
            raise error
        self._failures += 1
        sleep(self._loop, TRY_AGAIN_SECONDS[self._failures - 1])

    def succeeded(self) -> None:
        """It works (again)."""
        if self._failures:
            self._failures = 0
            self._metrics.problems.mended(USER_CODE_FAILS)


@contextmanager
def watched(metrics: DriverMetrics, reason: str, seconds: float, text: str) -> Iterator[None]:
    """Report this problem when something takes longer than `seconds`."""
    watch = threading.Timer(seconds, metrics.problems.report, (reason, text))
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()
        watch.join()  # or it would be said after its end
