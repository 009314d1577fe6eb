"""Expiry in event time: state that must not be read any more, and state that a new copy need not get because it will
expire."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol
from weakref import WeakSet

from ferry.contract.descriptors import Window
from ferry.contract.errors import RowsGone
from ferry.contract.limits import WATERMARK_NONE

ENTRIES_MAX = 100_000
"""Entries of an instance's processes whose changes are tracked, some 100 bytes each; they are read at once, in about
half a second."""


def require_not_expired(operator: str, low: int, expired: int) -> None:
    """Raise RowsGone when slices that end after `low` are wanted, and are expired."""
    if low < expired:
        raise RowsGone(
            f"operator {operator}: windows after {low} are requested, but slices up to {expired} have expired"
        )


class PriorState(Protocol):
    """The state of some virtual nodes at one time. A copy that takes all later deltas lacks exactly this state, until
    it expires."""

    until: int | None
    """The watermark at which all of it has expired, in milliseconds of event time; None: depends on coming records."""
    window: Window | None
    """the window type whose last window ends there"""

    def over(self) -> bool:
        """Whether all of it has expired, or was written again."""


class PriorSlices:
    """Slices up to one, with all its windows. `expired` returns up to where slices are forgotten now."""

    def __init__(self, window: Window, newest: int | None, expired: Callable[[], int]) -> None:
        """`newest`: start of the last slice; None: there are no slices."""
        self.window: Window | None = window
        self.until: int | None = WATERMARK_NONE if newest is None else window.last_end(newest)
        self._expired = expired

    def over(self) -> bool:
        """Whether the last window has ended."""
        return self.until is not None and self._expired() >= self.until


class PriorEntries:
    """Entries that have not changed since (each change is reported), and rows that may still be read."""

    until: int | None = None
    window: Window | None = None

    def __init__(self, places: Iterable[bytes], released: Callable[[], bool]) -> None:
        self._places = set(places)
        self._released = released

    @property
    def waiting(self) -> int:
        """Number of entries that have not changed."""
        return len(self._places)

    def changed(self, places: Iterable[bytes]) -> None:
        """These entries were put or removed."""
        self._places.difference_update(places)

    def over(self) -> bool:
        """Whether all entries have changed and the rows are released."""
        return not self._places and self._released()


class PriorEntriesTracker:
    """The prior entries that are still waited for; each gets every change."""

    def __init__(self) -> None:
        self._watched: WeakSet[PriorEntries] = WeakSet()

    def watch(self, places: Iterator[list[bytes]], released: Callable[[], bool]) -> PriorEntries | None:
        """Track all of these entries, read in pieces. None: they are too many. `released`: whether rows emitted until
        now are released."""
        tracked: list[bytes] = []
        others = sum(one.waiting for one in self._watched)
        for piece in places:
            tracked += piece
            if others + len(tracked) > ENTRIES_MAX:
                return None
        self._watched.add(one := PriorEntries(tracked, released))
        return one

    def changed(self, places: Callable[[], Iterable[bytes]]) -> None:
        """A delta was applied that puts or removes these."""
        if waiting := [one for one in self._watched if not one.over()]:
            changed = list(places())
            for one in waiting:
                one.changed(changed)
