"""How much of its time an instance gives to snapshots: all that it has, as long as epochs take no longer for it.

Delay is what controls it, as in LEDBAT (RFC 6817): epochs in which nothing is sent say how long they usually take, the
others whether sending stands in their way, here, at the other end, or on the processors that both share. Every so many
epochs all instances leave the same one alone, so that what is usual does not age. Nothing that is right depends on it.
"""

from __future__ import annotations

import statistics
from collections import deque

QUIET_EVERY = 16
"""One of so many epochs is left alone."""

QUIET_SECONDS = 0.25
"""But no longer than this."""

FACTOR, SLACK_SECONDS = 2.0, 0.02
"""An epoch may take so many times as long as usual, and so much longer, before less is sent."""

LEAST_SHARE, FIRST_SHARE = 0.2, 0.5
"""Of the time: what a snapshot always gets, and what it gets as long as nobody knows better."""

LESS, MORE = 0.7, 0.05
"""After an epoch that took too long the share is multiplied by this; after another one it grows by that."""


class DelayControl:
    """The share of one instance. Times are of a monotonic clock, in seconds; epochs are told as they begin and end here."""

    def __init__(self) -> None:
        self.share = FIRST_SHARE
        self._usual: deque[float] = deque(maxlen=8)
        self._begun: tuple[int, float] = (-1, 0.0)
        self._took: tuple[int, float, bool] = (-1, 0.0, False)
        """The last epoch of which something was committed, how long it took until then, whether something was sent in it."""
        self._sent_in = -1
        """The last epoch in which something was sent."""
        self._next = 0.0

    def begins(self, epoch: int, now: float) -> None:
        """An epoch begins. May be called on any thread."""
        self._begun = epoch, now

    def committed(self, epoch: int, now: float) -> None:
        """A step of an epoch was committed."""
        known, at = self._begun
        if known != epoch:
            return  # The next one has begun already, or nobody said that this one did.
        last, took, sent = self._took
        if epoch != last >= 0:
            self._learn(took, sent)
        self._took = epoch, now - at, self._sent_in == epoch

    def _learn(self, took: float, sent: bool) -> None:
        if not sent:
            self._usual.append(took)
        elif self._usual:
            late = took > FACTOR * statistics.median(self._usual) + SLACK_SECONDS
            self.share = max(self.share * LESS, LEAST_SHARE) if late else min(self.share + MORE, 1.0)

    def may_send(self, now: float) -> bool:
        """Whether something may be sent now."""
        epoch, at = self._begun
        left_alone = epoch % QUIET_EVERY == 0 and self._took[0] < epoch and now < at + QUIET_SECONDS
        return not left_alone and not self.rests(now)

    def rests(self, now: float) -> bool:
        """Whether it is too soon after what was sent last."""
        return now < self._next

    def sent(self, begin: float, end: float) -> None:
        """Something was sent in this time."""
        self._sent_in = self._begun[0]
        self._next = end + (end - begin) * (1 / self.share - 1)
