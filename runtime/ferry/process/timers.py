"""Timers of keys: sets of (key, time), and an epoch's changes of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ferry.kernels.grouping import NO_INTS, Ints


class Timers(NamedTuple):
    """Timers, sorted by (key, time)."""

    key: Ints
    """Index of each timer's key among the touched keys."""
    time: Ints

    def at(self, rows: Any) -> Timers:
        """The timers with these numbers, or selected by a mask."""
        return Timers(self.key[rows], self.time[rows])


NO_TIMERS = Timers(NO_INTS, NO_INTS)


class TimerChanges(NamedTuple):
    """After-images of timers: set ones, and removed ones. No timer is in both."""

    set: Timers
    removed: Timers


class TimerLog:
    """The changes of one epoch to the timers of one kind: event time, or processing time."""

    def __init__(self, due: Timers, bound: int) -> None:
        self._due = due
        """due since the epoch began: they fire, and so are removed"""
        self._bound = bound
        self._keys: list[Ints] = []
        self._times: list[Ints] = []
        self._set: list[bool] = []
        self._kept = NO_TIMERS, np.zeros(0, np.bool_)
        """changes of timers that are due later: the last change of each, and whether it is set"""

    def change(self, key: Ints, time: Ints, is_set: bool) -> None:
        """Set these timers, or remove them."""
        self._keys.append(key)
        self._times.append(time)
        self._set.append(is_set)

    def settle(self) -> Timers:
        """End of a round: returns the timers set in it that are already due."""
        kept, kept_set = self._kept
        key = np.concatenate([kept.key, *self._keys])
        time = np.concatenate([kept.time, *self._times])
        sizes = [part.size for part in self._keys]
        is_set = np.concatenate([kept_set, np.repeat(np.array(self._set, np.bool_), sizes)])
        self._keys, self._times, self._set = [], [], []
        order = np.lexsort((time, key))
        last = np.ones(order.size, np.bool_)
        last[:-1] = (np.diff(key[order]) != 0) | (np.diff(time[order]) != 0)
        found = order[last]
        later = found[time[found] > self._bound]
        due = found[(time[found] <= self._bound) & is_set[found]]
        self._kept = Timers(key[later], time[later]), is_set[later]
        return Timers(key[due], time[due])

    def changes(self) -> TimerChanges:
        """The changes of the epoch."""
        kept, is_set = self._kept
        removed = kept.at(~is_set)
        key = np.concatenate([self._due.key, removed.key])
        time = np.concatenate([self._due.time, removed.time])
        order = np.lexsort((time, key))
        return TimerChanges(kept.at(is_set), Timers(key[order], time[order]))
