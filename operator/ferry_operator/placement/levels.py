"""Whether evening out is worth it, and by which of two ways: the planner's judgement over `balance`.

Pure and deterministic. What is decided here depends on the bins alone, never on where copies are: so a plan made of
a plan decides the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from ferry_operator.placement.balance import Bins, lower_bound, pack

TOLERANCE = 0.1
"""Part of the average level by which an instance may be off before vnodes are moved for balance."""

BOUND = 4 / 3
"""Graham's bound: no instance is more loaded than this times the least possible, where that can be reached."""

BOUND_SOON = 1.25
"""From here on a plan that lowers the highest level is made, so that small changes do not decide at BOUND."""


def levelled(bins: Bins, near: dict[int, Sequence[int]], tolerance: float) -> Bins:
    """A levelled copy; packed anew when the local search is stuck far from the bound."""
    found = bins_of(bins, bins.where)
    found.prefer(near)
    found.level_out()
    if max(found.levels()) <= BOUND_SOON * found.average:
        return found
    packed = bins_of(bins, _renamed(pack(bins.capacity, bins.weight), bins))
    if not _lowers(max(found.levels()), max(packed.levels()), bins, tolerance):
        return found
    packed.prefer(near)
    packed.level_out()
    return packed


def bins_of(bins: Bins, where: Sequence[int]) -> Bins:
    """A copy of the bins with the items elsewhere."""
    copy = Bins(bins.capacity, bins.weight, bins.base)
    for item, bin_ in enumerate(where):
        copy.put(item, bin_)
    return copy


def _renamed(packed: list[int], bins: Bins) -> list[int]:
    """The packing with bins of equal capacity exchanged so that most of the weight stays where it is."""
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
    """True when a bin that is off by more than the tolerance gets closer by half of it, or the bound asks for it."""
    average, off = before.average, tolerance * before.average
    for old, new in zip(before.levels(), after.levels()):
        if (old > average + off and old - new > off / 2) or (old < average - off and new - old > off / 2):
            return True
    return _lowers(max(before.levels()), max(after.levels()), before, tolerance)


def _lowers(old: float, new: float, bins: Bins, tolerance: float) -> bool:
    """True when the highest level is too far from the least possible, and the new one is enough lower."""
    if old <= BOUND_SOON * bins.average or new >= old * (1 - 1e-9):
        return False
    least = lower_bound(bins.capacity, bins.weight)
    return (old > BOUND_SOON * least and new < old * (1 - tolerance / 4)) or new <= BOUND * least < old
