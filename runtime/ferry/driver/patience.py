"""Trying again what fails and may pass: a little later each time, said aloud, for as long as the job may wait."""

from __future__ import annotations

import logging
import time

from ferry.contract.errors import Final
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.coordinator.loop import Loop
from ferry.driver.orders import sleep

log = logging.getLogger("ferry.driver")

RETRY_SECONDS = 0.005
RETRY_SECONDS_MAX = 30.0

SOON_SECONDS = 0.05
"""Waits double up to this: who takes the place of one that is gone is known after some milliseconds."""

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
            self._metrics.report_problem(self._reason, what)
        if self._limit is not None and failing >= self._limit:
            raise Final(f"{what} (for {failing:.0f} s); nothing is lost: mend it and start the job again")
        wait = min(RETRY_SECONDS + min(failing, SOON_SECONDS + failing / 10), RETRY_SECONDS_MAX)
        sleep(self._loop, wait if self._limit is None else min(wait, self._limit - failing))

    def allow(self, seconds: float) -> None:
        """So long something else was waited for: it does not count."""
        if self._since is not None:
            self._since += seconds

    def partly(self, what: str) -> None:
        """It works but for this, which is said, and nothing waits for it; empty: it works."""
        if not what:
            return self.succeeded()
        now = time.monotonic()
        if self._since is None:
            self._since = now
            log.warning("%s", what)
        if now - self._since >= self._quiet:
            self._metrics.report_problem(self._reason, what)
        return None

    def succeeded(self) -> None:
        """It works (again)."""
        self._since = None
        self._metrics.mended(self._reason)
