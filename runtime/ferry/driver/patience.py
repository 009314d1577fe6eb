"""Trying again what fails because an instance is gone: a little later each time, and not for ever."""

from __future__ import annotations

import logging
import time

from ferry.contract.errors import Exhausted

log = logging.getLogger("ferry.driver")

RETRY_SECONDS = 0.05
RETRY_SECONDS_MAX = 1.0

GRACE_SECONDS = 60.0
"""How long something may fail after the last holder of the state should be back, before the job stops."""


class Patience:
    """Counts how long one thing has failed without a success between."""

    def __init__(self, return_deadline_ms: int) -> None:
        self._limit = return_deadline_ms / 1000 + GRACE_SECONDS
        self._since: float | None = None

    def failed(self, what: str) -> None:
        """Wait a moment; raises Exhausted when it has failed for too long."""
        now = time.monotonic()
        self._since = self._since if self._since is not None else now
        failing = now - self._since
        log.warning("%s", what)
        if failing > self._limit:
            raise Exhausted(f"{what} (for {failing:.0f} s); nothing is lost: start the job again when it is mended")
        time.sleep(min(RETRY_SECONDS + failing / 10, RETRY_SECONDS_MAX))

    def succeeded(self) -> None:
        """It works (again)."""
        self._since = None
