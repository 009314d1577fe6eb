"""What must hold of every placement, written apart from the planner that makes them."""

from __future__ import annotations

from collections.abc import Sequence

from ferry_operator.placement.balance import lower_bound, pack
from ferry_operator.placement.planner import Load, Placement, Slot


def assert_valid(slots: Sequence[Slot], placed: Sequence[Placement], vnodes: int, replicas: int) -> None:
    by_name = {slot.instance: slot for slot in slots}
    workers, nodes = len({s.worker for s in slots}), len({s.node for s in slots})
    members = min(replicas, workers - 1) + 1
    assert len(placed) == vnodes
    for one in placed:
        group = [by_name[name] for name in (one.leader, *one.replicas)]
        assert len(group) == members
        assert len({s.worker for s in group}) == members
        assert len({s.node for s in group}) == min(members, nodes)


def highest(slots: Sequence[Slot], placed: Sequence[Placement], loads: Sequence[Load]) -> float:
    level = dict.fromkeys((s.instance for s in slots), 0.0)
    for one, load in zip(placed, loads):
        level[one.leader] += load.rate
    return max(level[s.instance] / s.capacity for s in slots)


def least(slots: Sequence[Slot], loads: Sequence[Load]) -> float:
    return lower_bound([s.capacity for s in slots], [load.rate for load in loads])


def reachable(slots: Sequence[Slot], loads: Sequence[Load]) -> float:
    """Four thirds of the lower bound; more where unequal capacities do not allow it, as a packing from scratch shows.

    With a hundredth for what vnodes weigh beside their rate, and the gain that is too small for moving everything.
    """
    capacity, rates = [s.capacity for s in slots], [load.rate for load in loads]
    packed = dict.fromkeys(range(len(slots)), 0.0)
    for bin_, rate in zip(pack(capacity, rates), rates):
        packed[bin_] += rate
    return max(4 / 3 * 1.01 * least(slots, loads), 1.04 * max(packed[b] / c for b, c in enumerate(capacity)))
