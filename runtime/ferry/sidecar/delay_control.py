"""Share of an instance's time that snapshots get: all spare time, as long as epochs do not become slower.

Controlled by delay, as in LEDBAT (RFC 6817): epochs without sending measure the usual duration, others show whether
sending delays them, here, at the other end, or on the processors that both share. At a fixed interval all instances
leave the same epoch without sending, so that the usual duration stays current. Correctness does not depend on it.
"""

from __future__ import annotations

from collections import deque

QUIET_EVERY = 16
"""One of this many epochs is left without sending."""

QUIET_SECONDS = 0.25
"""Longest pause for such an epoch."""

FACTOR, SLACK_SECONDS = 1.5, 0.01
"""An epoch may take this many times its usual duration, the shortest of late, plus this, before less is sent."""

LEAST_SHARE, FIRST_SHARE = 0.1, 0.3
"""Minimum and initial share of loop time for snapshots."""

LESS, MORE = 0.7, 0.05
"""After an epoch that took too long the share is multiplied by the first, otherwise the second is added."""


class DelayControl:
    """The share of one instance. Times are of a monotonic clock, in seconds; epochs as seen by this instance."""

    def __init__(self) -> None:
        self.share = FIRST_SHARE
        self._usual: deque[float] = deque(maxlen=8)
        self._begun: tuple[int, float] = (-1, 0.0)
        self._took: tuple[int, float, bool] = (-1, 0.0, False)
        """The last epoch with a commit, its duration until then, and whether snapshots were sent during it."""
        self._sent_in = -1
        """The last epoch during which snapshots were sent."""
        self._next = 0.0

    def begins(self, epoch: int, now: float) -> None:
        """An epoch begins. May be called on any thread."""
        self._begun = epoch, now

    def committed(self, epoch: int, now: float) -> None:
        """A step of an epoch was committed."""
        known, at = self._begun
        if known != epoch:
            return  # The next epoch has already begun, or the begin of this one was not reported.
        last, took, sent = self._took
        if epoch != last >= 0:
            self._learn(took, sent)
        self._took = epoch, now - at, self._sent_in == epoch

    def _learn(self, took: float, sent: bool) -> None:
        if not sent:
            self._usual.append(took)
        elif self._usual:
            late = took > FACTOR * min(self._usual) + SLACK_SECONDS
            self.share = max(self.share * LESS, LEAST_SHARE) if late else min(self.share + MORE, 1.0)

    def may_send(self, now: float) -> bool:
        """Whether a snapshot may be sent now."""
        epoch, at = self._begun
        left_alone = epoch % QUIET_EVERY == 0 and self._took[0] < epoch and now < at + QUIET_SECONDS
        return not left_alone and not self.rests(now)

    def rests(self, now: float) -> bool:
        """Whether it is too soon after the last chunk."""
        return now < self._next

    def sent(self, begin: float, end: float) -> None:
        """A chunk was sent in this time."""
        self._sent_in = self._begun[0]
        self._next = end + (end - begin) * (1 / self.share - 1)
