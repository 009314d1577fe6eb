"""The queue of an instance's loop: deltas and control first, then fragments, then bulk; each lane in its own order.

A message holds its sender's credit until the loop has handled it, so that the queue of a slow loop is bounded by the
credit that it has granted. The receiving side of the channel returns the credit without sending. Must never block a
writer.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, NamedTuple

from ferry.channel.base import BY_PRIORITY, DeferredCredit, Lane
from ferry.protocol import instance as core

STARVED_SECONDS = 0.1
"""A lane that waited this long gets a turn, otherwise an instance that is always busy would never learn."""


class Item(NamedTuple):
    """An event, its body, and the credit of its sender."""

    event: core.Event
    body: Any = None
    credit: DeferredCredit | None = None
    since: float = 0.0

    def done(self) -> None:
        """The loop has handled it: its sender may send more."""
        if self.credit is not None:
            self.credit.release()


class Inbox:
    """Any thread puts, the loop takes."""

    def __init__(self) -> None:
        self._some = threading.Condition(threading.Lock())
        self._lanes: dict[Lane, deque[Item]] = {lane: deque() for lane in BY_PRIORITY}
        self._taken = dict.fromkeys(BY_PRIORITY, 0.0)
        """when each had its last turn"""

    def put(self, event: Any, body: Any = None) -> None:
        """Put an event of this process: it waits on the control lane, and holds no credit."""
        self._add(Lane.DELTA, Item(event, body, None, time.monotonic()))

    def arrived(self, lane: Lane, event: core.Event, body: Any) -> DeferredCredit:
        """Put a message of a peer; its credit returns when the loop has handled it."""
        credit = DeferredCredit()
        self._add(lane, Item(event, body, credit, time.monotonic()))
        return credit

    def _add(self, lane: Lane, item: Item) -> None:
        with self._some:
            self._lanes[lane].append(item)
            self._some.notify()

    def take(self, timeout: float) -> Item | None:
        """The next item; None when none came within `timeout` seconds."""
        with self._some:
            if not self._some.wait_for(self._any, timeout):
                return None
            now = time.monotonic()
            waiting = [lane for lane in BY_PRIORITY if self._lanes[lane]]
            starved = [lane for lane in waiting if self._waits_since(lane) < now - STARVED_SECONDS]
            lane = min(starved or waiting[:1], key=self._waits_since)
            self._taken[lane] = now
            return self._lanes[lane].popleft()

    def _waits_since(self, lane: Lane) -> float:
        return max(self._lanes[lane][0].since, self._taken[lane])

    def _any(self) -> bool:
        return any(self._lanes.values())

    @property
    def calm(self) -> bool:
        """Whether no queued item can delay an epoch."""
        return not (self._lanes[Lane.DELTA] or self._lanes[Lane.FRAGMENT])
