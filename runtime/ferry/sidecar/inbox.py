"""What waits for an instance's loop: deltas and control first, then fragments, then bulk; each lane in its own order.

A message keeps its sender's credit until the loop has done with it, so that a loop that stands still holds no more than it
has granted. Giving credit back needs no sending: the channel's receiving side does it. Must never block who puts.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, NamedTuple

from ferry.channel.base import Held, Lane
from ferry.protocol import instance as core

_TURN = (Lane.DELTA, Lane.FRAGMENT, Lane.BULK)


class Item(NamedTuple):
    """An event, the body that came with it, and the credit of its sender."""

    event: core.Event
    body: Any = None
    held: Held | None = None

    def done(self) -> None:
        """The loop has done with it: its sender may send more."""
        if self.held is not None:
            self.held.release()


class Inbox:
    """Any thread puts, the loop takes."""

    def __init__(self) -> None:
        self._some = threading.Condition(threading.Lock())
        self._lanes: dict[Lane, deque[Item]] = {lane: deque() for lane in _TURN}

    def put(self, event: core.Event, body: Any = None) -> None:
        """Of this process itself: it waits with control, and keeps nobody's credit."""
        self._add(Lane.DELTA, Item(event, body))

    def arrived(self, lane: Lane, event: core.Event, body: Any) -> Held:
        """A message of a peer; its credit goes back when the loop has done with it."""
        item = Item(event, body, Held())
        assert item.held is not None
        self._add(lane, item)
        return item.held

    def _add(self, lane: Lane, item: Item) -> None:
        with self._some:
            self._lanes[lane].append(item)
            self._some.notify()

    def take(self, timeout: float) -> Item | None:
        """The next; None when nothing came in so many seconds."""
        with self._some:
            if not self._some.wait_for(self._any, timeout):
                return None
            return next(lane for lane in self._lanes.values() if lane).popleft()

    def _any(self) -> bool:
        return any(self._lanes.values())

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self._any()
