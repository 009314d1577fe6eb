"""What is over in event time, or by what came after it: what may not be read any more, and what is still to end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol
from weakref import WeakSet

from ferry.contract.descriptors import Window
from ferry.contract.errors import RowsGone
from ferry.contract.limits import WATERMARK_NONE

ENTRIES_MAX = 100_000
"""Entries of the processes of an instance of which it is remembered whether they have changed, some 100 bytes each; they are
read at one time, in about half a second."""


def require_not_expired(operator: str, low: int, expired: int) -> None:
    """Raise RowsGone when slices that end after `low` are wanted, and are expired."""
    if low < expired:
        raise RowsGone(f"operator {operator}: windows after {low} are wanted, but slices up to {expired} are expired")


class Remainder(Protocol):
    """What a state held of some virtual nodes at one time: a copy that hears of every delta since then lacks it until it is
    over, and nothing else."""

    until: int | None
    """The watermark at which it is over, in milliseconds of event time; None: that depends on what comes."""
    window: Window | None
    """whose last one ends there"""

    def over(self) -> bool:
        """Whether all of it is forgotten, or was written again."""


class SliceRemainder:
    """Slices up to one, with all its windows. `expired`: up to where slices are forgotten now."""

    def __init__(self, window: Window, newest: int | None, expired: Callable[[], int]) -> None:
        """`newest`: start of the last slice; None: there is none."""
        self.window: Window | None = window
        self.until: int | None = WATERMARK_NONE if newest is None else window.last_end(newest)
        self._expired = expired

    def over(self) -> bool:
        """See Remainder."""
        return self.until is not None and self._expired() >= self.until


class EntryRemainder:
    """Entries that have not changed since (whoever changes one says so), and rows that may still be read."""

    until: int | None = None
    window: Window | None = None

    def __init__(self, places: Iterable[bytes], released: Callable[[], bool]) -> None:
        self._places = set(places)
        self._released = released

    @property
    def waiting(self) -> int:
        """Entries that have not changed."""
        return len(self._places)

    def changed(self, places: Iterable[bytes]) -> None:
        """These were put or removed."""
        self._places.difference_update(places)

    def over(self) -> bool:
        """See Remainder."""
        return not self._places and self._released()


class Untouched:
    """The remainders that somebody still waits for, told of every change."""

    def __init__(self) -> None:
        self._watched: WeakSet[EntryRemainder] = WeakSet()

    def watch(self, places: Iterator[list[bytes]], released: Callable[[], bool]) -> EntryRemainder | None:
        """All of these entries, in pieces. None: they are too many to be remembered. `released`: whether rows that were
        emitted until now are over."""
        found: list[bytes] = []
        others = sum(one.waiting for one in self._watched)
        for piece in places:
            found += piece
            if others + len(found) > ENTRIES_MAX:
                return None
        self._watched.add(one := EntryRemainder(found, released))
        return one

    def changed(self, places: Callable[[], Iterable[bytes]]) -> None:
        """A delta was applied that puts or removes these."""
        if waiting := [one for one in self._watched if not one.over()]:
            changed = list(places())
            for one in waiting:
                one.changed(changed)
