"""What must hold of every placement, written apart from the planner that makes them."""

from __future__ import annotations

from collections.abc import Sequence

from ferry_operator.balance import lower_bound
from ferry_operator.planner import Load, Placement, Slot


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
