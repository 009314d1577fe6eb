"""Failing user code in the step under way: number of tries, pauses between them, and the halt of the job.

CodeFailed --> a few more attempts, each after a longer wait --> the step is committed, or the job halts with the reason
"""

from __future__ import annotations

from ferry.contract import messages as m
from ferry.contract.names import Attempt, CommitId, Step
from ferry.protocol.coordinator.state import DriverState


class FailingCode:
    """Counts attempts of one step that failed in the user's code."""

    def __init__(self, driver: DriverState) -> None:
        self._driver = driver
        self.reason = ""
        """of the last failure; empty: the code of the step under way has not failed"""
        self.since = 0
        self._last: CommitId | None = None
        """the newest attempt that failed"""
        self._tries = 0
        self._again_at: int | None = None

    def failed(self, event: m.CodeFailed, is_now: bool) -> None:
        """An attempt of the step under way failed; several instances may report the same one. May halt the job."""
        driver, commit_id = self._driver, CommitId(event.step, event.attempt)
        if event.final:
            return driver.halt("refused", event.reason)
        if self._last is not None and commit_id <= self._last:
            return
        if not self.reason:
            self.since = driver.now
            driver.note("degraded", event.reason)
        self.reason, self._last, self._tries = event.reason, commit_id, self._tries + 1
        waits = driver.settings.code_waits_ms
        if self._tries > len(waits):
            return driver.halt("user-code", event.reason)
        if is_now:
            self._again_at = driver.now + waits[self._tries - 1]

    def fails_again(self, event: m.CodeFailed) -> bool:
        """Whether another attempt of the step failed before, or no other attempt can succeed."""
        return event.final or (self._last is not None and CommitId(event.step, event.attempt) > self._last)

    def waits(self, step: Step, attempt: Attempt) -> bool:
        """Whether this attempt has failed in the user's code and the next one waits."""
        return self._again_at is not None and self._last == (step, attempt)

    def is_due(self) -> bool:
        """Whether the next attempt has waited long enough."""
        return self._again_at is not None and self._driver.now >= self._again_at

    def tries_again(self) -> None:
        """The next attempt begins."""
        self._again_at = None

    def over(self) -> None:
        """The step is decided, or a new one begins."""
        if self.reason:
            self._driver.note("mended", f"UserCode, after {(self._driver.now - self.since) / 1000:.1f} s")
        self.reason, self._last, self._tries, self._again_at = "", None, 0, None
