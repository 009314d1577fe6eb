"""How much would move for a change of the size of a job: the planner, over placements that are made up.

The status of a job does not say where its virtual nodes are or what they weigh, so they are taken to be even; what a
handover really moves depends on that. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ferry_operator.job.size import Size
from ferry_operator.placement import planner
from ferry_operator.placement.planner import Load, Movement, Placement, Slot


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many slots a job has for its virtual nodes, and copies of them."""

    size: Size
    replicas: int
    virtual_nodes: int
    drained: tuple[int, ...] = ()

    @property
    def holding(self) -> list[int]:
        """Workers that hold state."""
        return self.size.holding(self.drained)


def resized(old: Capacity, new: Capacity, nodes: Mapping[int, str]) -> Movement:
    """From one size to another. `nodes`: of the workers that there are."""
    return _along([_slots(old, old.holding, nodes), _slots(new, new.holding, nodes)], [old.replicas, new.replicas], old)


def rolled(one: Capacity, nodes: Mapping[int, str]) -> Movement:
    """Every worker is emptied and made again, one after another, beside a surge worker."""
    workers = one.size.workers
    steps = [[j for j in (*one.holding, workers) if j != k] for k in range(workers)]
    stations = [one.holding, *steps, one.holding]
    return _along([_slots(one, station, nodes) for station in stations], [one.replicas] * len(stations), one)


def _slots(one: Capacity, workers: Sequence[int], nodes: Mapping[int, str]) -> list[Slot]:
    return [Slot(f"{k}.{i}", k, nodes.get(k, f"node of {k}")) for k in workers for i in range(one.size.instances)]


def _along(stations: Sequence[list[Slot]], replicas: Sequence[int], one: Capacity) -> Movement:
    """All that moves on the way from the first set of workers to the last one."""
    loads = [Load(0.0, 1.0)] * one.virtual_nodes
    placements: tuple[Placement | None, ...] = (None,) * one.virtual_nodes
    switchovers = copies = 0
    for step, (slots, copied) in enumerate(zip(stations, replicas)):
        planned = planner.plan(slots, loads, placements, copied)
        if step:
            moved = planner.movement(placements, planned, loads)
            switchovers, copies = switchovers + moved.switchovers, copies + moved.copies
        placements = planned
    return Movement(switchovers, copies, float(copies))
