"""Estimates the moves of a change of size: the planner, over an assumed placement.

The status of a job has neither the placement nor the load of its virtual nodes, so the estimate assumes an even placement
and even loads. The moves of a real handover depend on both. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ferry_operator.job.size import Size
from ferry_operator.placement import planner
from ferry_operator.placement.planner import Load, Movement, Placement, Slot


@dataclass(frozen=True, slots=True)
class Capacity:
    """The slots of a job for its virtual nodes, and the number of their copies."""

    size: Size
    replicas: int
    virtual_nodes: int
    drained: tuple[int, ...] = ()
    gaps: tuple[int, ...] = ()
    """numbers that no worker has"""

    @property
    def members(self) -> list[int]:
        """All workers."""
        return self.size.members(self.gaps)

    @property
    def holding(self) -> list[int]:
        """Workers that hold state."""
        return self.size.holding(self.drained, self.gaps)


def resized(old: Capacity, new: Capacity, nodes: Mapping[int, str]) -> Movement:
    """The moves from one size to another. `nodes`: by present worker."""
    return _along([_slots(old, old.holding, nodes), _slots(new, new.holding, nodes)], [old.replicas, new.replicas], old)


def rolled(capacity: Capacity, nodes: Mapping[int, str]) -> Movement:
    """The moves of a rolling replacement: workers are emptied and recreated one by one, with a surge worker."""
    members = capacity.members
    steps = [[j for j in (*capacity.holding, members[-1] + 1) if j != k] for k in members]
    stations = [capacity.holding, *steps, capacity.holding]
    slots = [_slots(capacity, station, nodes) for station in stations]
    return _along(slots, [capacity.replicas] * len(stations), capacity)


def _slots(capacity: Capacity, workers: Sequence[int], nodes: Mapping[int, str]) -> list[Slot]:
    instances = range(capacity.size.instances)
    return [Slot(f"{k}.{i}", k, nodes.get(k, f"node of {k}")) for k in workers for i in instances]


def _along(stations: Sequence[list[Slot]], replicas: Sequence[int], capacity: Capacity) -> Movement:
    """The sum of all moves from the first set of slots to the last."""
    loads = [Load(0.0, 1.0)] * capacity.virtual_nodes
    placements: tuple[Placement | None, ...] = (None,) * capacity.virtual_nodes
    switchovers = copies = 0
    for step, (slots, copied) in enumerate(zip(stations, replicas)):
        planned = planner.plan(slots, loads, placements, copied)
        if step:
            moved = planner.movement(placements, planned, loads)
            switchovers, copies = switchovers + moved.switchovers, copies + moved.copies
        placements = planned
    return Movement(switchovers, copies, float(copies))
