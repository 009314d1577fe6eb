"""How much would move for a change of the size of a job: the planner, over placements that are made up.

The status of a job does not say where its virtual nodes are or what they weigh, so they are taken to be even; what a
handover really moves depends on that. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ferry_operator.placement import planner
from ferry_operator.placement.planner import Load, Movement, Placement, Slot


@dataclass(frozen=True, slots=True)
class Size:
    """What decides how many places there are."""

    workers: int
    instances: int
    replicas: int
    virtual_nodes: int
    drained: tuple[int, ...] = ()

    @property
    def holding(self) -> list[int]:
        """Workers that hold state."""
        return [k for k in range(self.workers) if k not in self.drained]


def resized(old: Size, new: Size, nodes: Mapping[int, str]) -> Movement:
    """From one size to another. `nodes`: of the workers that there are."""
    return _along([_slots(old, old.holding, nodes), _slots(new, new.holding, nodes)], [old.replicas, new.replicas], old)


def rolled(size: Size, nodes: Mapping[int, str]) -> Movement:
    """Every worker is emptied and made again, one after another, beside a surge worker."""
    extra = size.workers
    steps = [[j for j in (*size.holding, extra) if j != k] for k in range(size.workers)]
    stations = [size.holding, *steps, size.holding]
    return _along([_slots(size, workers, nodes) for workers in stations], [size.replicas] * len(stations), size)


def _slots(size: Size, workers: Sequence[int], nodes: Mapping[int, str]) -> list[Slot]:
    return [Slot(f"{k}.{i}", k, nodes.get(k, f"node of {k}")) for k in workers for i in range(size.instances)]


def _along(stations: Sequence[list[Slot]], replicas: Sequence[int], size: Size) -> Movement:
    """All that moves on the way from the first set of workers to the last one."""
    loads = [Load(0.0, 1.0)] * size.virtual_nodes
    placements: tuple[Placement | None, ...] = (None,) * size.virtual_nodes
    switchovers = copies = 0
    for step, (slots, copied) in enumerate(zip(stations, replicas)):
        planned = planner.plan(slots, loads, placements, copied)
        if step:
            one = planner.movement(placements, planned, loads)
            switchovers, copies = switchovers + one.switchovers, copies + one.copies
        placements = planned
    return Movement(switchovers, copies, float(copies))
