"""Even out weighted items over bins with few moves: the arithmetic below the planner.

Pure and deterministic: no clock, no randomness, no iteration over sets, no hashes of texts. It knows neither virtual nodes
nor workers: items and bins are indices, and the level of a bin is its load divided by its capacity.

`Bins.level_out` is a local search. A move takes an item from a bin above the average to a bin that stays at the average:
the moves of a plan may run in any order, and no item moves twice. If no such move is left, a move lowers the higher of two
levels. Each move lowers the sorted list of levels, so the search ends, and a second run finds no move. `pack` is Graham's
longest processing time first, for cases in which the local search is stuck.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence

SLACK = 0.02
"""A bin needs no move if it is above the average by less than this, or by less than half an average item."""

GAIN_MIN = 0.01
"""Minimum gain of a move that lowers the higher of two levels, as a part of the average."""

PREFERENCE = 0.05
"""Allowance for a move without cost: it may end higher than the best move by this part of the average."""

Item = tuple[float, int]
"""(weight, index): the items of a bin sort by weight."""

Allowed = Callable[[int, int, int], bool]
"""allowed(item, from bin, to bin)"""


class Bins:
    """Items in bins. `where[item]`, `load[bin]`; changed by `put` and `level_out` only.

    capacity: relative size of each bin, > 0. weight: of each item, > 0. base: load of a bin beside its items.
    """

    def __init__(self, capacity: Sequence[float], weight: Sequence[float], base: Sequence[float] | None = None) -> None:
        self.capacity = list(capacity)
        self.weight = list(weight)
        self.base = list(base) if base is not None else [0.0] * len(self.capacity)
        self.load = list(self.base)
        self.average = _average(self.capacity, self.weight, sum(self.base))
        slack = 0.5 * sum(self.weight) / max(len(self.weight), 1)
        self.bound = [(self.average * c + min(SLACK * self.average * c, slack)) * (1 + 1e-9) for c in self.capacity]
        self.where = [-1] * len(self.weight)
        self._items: list[list[Item]] = [[] for _ in self.capacity]
        self._near: dict[int, Sequence[int]] = {}
        self._buckets: dict[tuple[int, int], list[Item]] = {}

    def put(self, item: int, bin_: int) -> None:
        """Place an item, or move it."""
        weight, old = self.weight[item], self.where[item]
        entry = (weight, item)
        if old >= 0:
            _remove(self._items[old], entry)
            self.load[old] -= weight
            for near in self._near.get(item, ()):
                if near != old:
                    _remove(self._buckets[old, near], entry)
        insort(self._items[bin_], entry)
        self.load[bin_] += weight
        self.where[item] = bin_
        for near in self._near.get(item, ()):
            if near != bin_:
                insort(self._buckets.setdefault((bin_, near), []), entry)

    def level(self, bin_: int) -> float:
        """Load divided by capacity."""
        return self.load[bin_] / self.capacity[bin_]

    def levels(self) -> list[float]:
        """The level of every bin."""
        return [load / capacity for load, capacity in zip(self.load, self.capacity)]

    def emptiest(self, item: int, bins: Sequence[int]) -> int:
        """The bin with the lowest level after the item is in it; the first of equal bins."""
        return min(bins, key=lambda b: (self.load[b] + self.weight[item]) / self.capacity[b])

    def fits(self, item: int, bin_: int) -> bool:
        """Whether the bin stays at the average with the item in it."""
        return self.load[bin_] + self.weight[item] <= self.bound[bin_]

    def prefer(self, near: dict[int, Sequence[int]]) -> None:
        """Prefer moves of an item to these bins, because they have no cost. Affects the choice, never the need."""
        assert not self._near, "added twice"
        self._near = near
        for item, bins in near.items():
            for bin_ in bins:
                if bin_ != self.where[item]:
                    self._buckets.setdefault((self.where[item], bin_), []).append((self.weight[item], item))
        for bucket in self._buckets.values():
            bucket.sort()

    def level_out(self, allowed: Allowed | None = None) -> None:
        """Move items until no move has enough gain."""
        # Every move lowers the sorted levels by GAIN_MIN or brings a bin to its bound: a few moves per item are enough.
        for _ in range(8 * len(self.weight) + 64):
            if not self._one_move(allowed):
                return

    def _one_move(self, allowed: Allowed | None) -> bool:
        """Make the best move out of the highest bin with a move; False when no bin has a move."""
        order = sorted(range(len(self.capacity)), key=lambda b: (self.level(b), b))
        for high in reversed(order):
            if self.load[high] <= self.bound[high]:
                continue
            move = self._fitting(high, order, allowed) or self._lowering(high, order, allowed)
            if move is not None:
                self.put(*move)
                return True
        return False

    def _fitting(self, high: int, order: list[int], allowed: Allowed | None) -> tuple[int, int] | None:
        """A move after which the receiver is at most at the average: preferred moves first, then to the lowest bin."""
        level, excess = self.level(high), self.load[high] - self.average * self.capacity[high]
        rooms = []
        for low in order:
            room = min(self.bound[low] - self.load[low], level * self.capacity[low] * (1 - 1e-9) - self.load[low])
            if low != high and room > 0:
                rooms.append((low, room))
        for preferred in (True, False):
            buckets = [self._buckets.get((high, low), []) if preferred else self._items[high] for low, _ in rooms]
            for (low, room), bucket in zip(rooms, buckets):
                item = _largest(bucket, min(room, excess), high, low, allowed)
                if item is not None:
                    return item, low
            for (low, room), bucket in zip(rooms, buckets):
                item = _smallest(bucket, excess, room, high, low, allowed)
                if item is not None:
                    return item, low
        return None

    def _lowering(self, high: int, order: list[int], allowed: Allowed | None) -> tuple[int, int] | None:
        """The move that lowers the higher of two levels most, with at least GAIN_MIN; a preferred move may lower it less."""
        level, move = self.level(high), None
        most = best = level - GAIN_MIN * self.average
        for low in order:
            if low == high or self.level(low) >= most:
                continue
            ideal = (level - self.level(low)) / (1 / self.capacity[high] + 1 / self.capacity[low])
            bucket = self._buckets.get((high, low), [])
            for items, bonus in ((self._items[high], 0.0), (bucket, PREFERENCE * self.average)):
                for item in (
                    _largest(items, ideal, high, low, allowed),
                    _smallest(items, ideal, 2 * ideal, high, low, allowed),
                ):
                    if item is None:
                        continue
                    weight = self.weight[item]
                    after = max(
                        (self.load[high] - weight) / self.capacity[high], (self.load[low] + weight) / self.capacity[low]
                    )
                    if after < most and after - bonus < best:
                        best, move = after - bonus, (item, low)
        return move


def pack(capacity: Sequence[float], weight: Sequence[float]) -> list[int]:
    """The bin of each item, from scratch: the largest item first, each into the bin with the lowest resulting level.

    Graham 1969: at most 4/3 of the optimum for equal capacities.
    """
    bins = Bins(capacity, weight)
    every = range(len(capacity))
    for item in sorted(range(len(weight)), key=lambda i: (-weight[i], i)):
        bins.put(item, bins.emptiest(item, every))
    return bins.where


def lower_bound(capacity: Sequence[float], weight: Sequence[float]) -> float:
    """A lower bound of the highest level of every placement.

    The maximum of: the average; the largest item in the largest bin; and, because items are indivisible, for each k the
    least level at which the bins hold k items of the weight of the k-th heaviest.
    """
    heavy = sorted(weight, reverse=True)
    low = max(sum(weight) / sum(capacity), heavy[0] / max(capacity)) if heavy else 0.0
    for k in range(1, min(len(heavy), 4 * len(capacity)) + 1):
        weight_k, high = heavy[k - 1], low
        if _places(capacity, low, weight_k) >= k:
            continue
        while _places(capacity, high, weight_k) < k:
            high *= 2
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if _places(capacity, middle, weight_k) >= k else (middle, high)
    return low


def _average(capacity: list[float], weight: list[float], base: float) -> float:
    """The target level: the average over the other items and bins, after items above the average take the largest bins."""
    total, room = base + sum(weight), sum(capacity)
    least = 0.1 * total / room
    for item, bin_ in zip(sorted(weight, reverse=True), sorted(capacity, reverse=True)):
        if room - bin_ <= 0 or item * room <= total * bin_:
            break
        total, room = total - item, room - bin_
    return max(total / room, least)


def _places(capacity: Sequence[float], level: float, each: float) -> int:
    return sum(int(c * level / each * (1 + 1e-12) + 1e-9) for c in capacity)


def _remove(items: list[Item], entry: Item) -> None:
    at = bisect_left(items, entry)
    assert items[at] == entry, entry
    del items[at]


def _largest(items: list[Item], most: float, high: int, low: int, allowed: Allowed | None) -> int | None:
    """The heaviest allowed item of at most this weight."""
    for at in range(bisect_right(items, (most * (1 + 1e-12), 1 << 62)) - 1, -1, -1):
        if allowed is None or allowed(items[at][1], high, low):
            return items[at][1]
    return None


def _smallest(items: list[Item], over: float, most: float, high: int, low: int, allowed: Allowed | None) -> int | None:
    """The lightest allowed item that is heavier than `over` and at most `most`."""
    for at in range(bisect_right(items, (over * (1 + 1e-12), 1 << 62)), len(items)):
        if items[at][0] > most:
            return None
        if allowed is None or allowed(items[at][1], high, low):
            return items[at][1]
    return None
