"""Whether to even out the bins of `balance`, and by local search or by a new packing.

Pure and deterministic. The decision depends on the bins alone, never on the places of copies: a plan from the result of a
plan comes to the same decision.
"""

from __future__ import annotations

from collections.abc import Sequence

from ferry_operator.placement.balance import Bins, lower_bound, pack

TOLERANCE = 0.1
"""Part of the average level by which an instance may differ before virtual nodes move for balance."""

BOUND = 4 / 3
"""Graham's bound: no instance has more load than this times the least possible, where this is reachable."""

BOUND_SOON = 1.25
"""From this factor on, a plan lowers the highest level: below BOUND, so that small changes do not flip the decision."""


def levelled(bins: Bins, near: dict[int, Sequence[int]], tolerance: float) -> Bins:
    """A levelled copy of the bins; packed from scratch when the local search is stuck far from the bound."""
    searched = bins_of(bins, bins.where)
    searched.prefer(near)
    searched.level_out()
    if max(searched.levels()) <= BOUND_SOON * searched.average:
        return searched
    packed = bins_of(bins, _renamed(pack(bins.capacity, bins.weight), bins))
    if not _lowers(max(searched.levels()), max(packed.levels()), bins, tolerance):
        return searched
    packed.prefer(near)
    packed.level_out()
    return packed


def bins_of(bins: Bins, where: Sequence[int]) -> Bins:
    """A copy of the bins with the items in these bins."""
    copy = Bins(bins.capacity, bins.weight, bins.base)
    for item, bin_ in enumerate(where):
        copy.put(item, bin_)
    return copy


def _renamed(packed: list[int], bins: Bins) -> list[int]:
    """The packing after exchanges of bins with equal capacity, which keep most of the weight in place."""
    stays: dict[tuple[int, int], float] = {}
    for item, bin_ in enumerate(packed):
        pair = (bin_, bins.where[item])
        if bins.capacity[bin_] == bins.capacity[pair[1]]:
            stays[pair] = stays.get(pair, 0.0) + bins.weight[item]
    name: dict[int, int] = {}
    taken = [False] * len(bins.capacity)
    for bin_, old in sorted(stays, key=lambda pair: (-stays[pair], pair)):
        if bin_ not in name and not taken[old]:
            name[bin_], taken[old] = old, True
    for bin_, capacity in enumerate(bins.capacity):
        if bin_ not in name:
            free = next(b for b, c in enumerate(bins.capacity) if c == capacity and not taken[b])
            name[bin_], taken[free] = free, True
    return [name[bin_] for bin_ in packed]


def worth(before: Bins, after: Bins, tolerance: float) -> bool:
    """Whether a bin that differs by more than the tolerance gets closer by half of it, or the bound requires the change."""
    average, off = before.average, tolerance * before.average
    for old, new in zip(before.levels(), after.levels()):
        if (old > average + off and old - new > off / 2) or (old < average - off and new - old > off / 2):
            return True
    return _lowers(max(before.levels()), max(after.levels()), before, tolerance)


def _lowers(old: float, new: float, bins: Bins, tolerance: float) -> bool:
    """Whether the highest level is too far from the least possible level, and the new level is sufficiently lower."""
    if old <= BOUND_SOON * bins.average or new >= old * (1 - 1e-9):
        return False
    least = lower_bound(bins.capacity, bins.weight)
    return (old > BOUND_SOON * least and new < old * (1 - tolerance / 4)) or new <= BOUND * least < old
