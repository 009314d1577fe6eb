"""Strategies that divide a plan into steps (Megaphone, sections 3.3 and 4.4). Pure and deterministic.

| strategy | a step |
|---|---|
| all-at-once | all moving virtual nodes |
| batched | a fixed number of virtual nodes |
| fluid | one virtual node |
| optimized | a maximum matching of origins and targets: no instance sends or receives two virtual nodes |

`switchovers` bounds the number of concurrent switchovers; copies do not wait for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ferry.contract.plans import Placement, PlanStep

Name = Literal["all-at-once", "batched", "fluid", "optimized"]


@dataclass(frozen=True, slots=True)
class HandoverPolicy:
    """The settings of a handover."""

    strategy: Name = "all-at-once"
    batch: int = 16
    """virtual nodes of a step of 'batched'"""
    switchovers: int | None = None
    """maximum of concurrent switchovers; None: all of a step"""
    gap: int = 0
    """epochs after a switchover in which no step begins"""
    warm: bool = True
    """False: epochs wait for the copies of virtual nodes with a new leader"""
    deadline_ms: int = 0
    """maximum time without progress of a copy; 0: the default"""
    at_epoch: int | None = None
    """no plan begins before this epoch, except repairs"""
    at_time: int | None = None
    """no plan begins before the watermark reaches this time, in milliseconds, except repairs"""
    at_window: Literal["auto", "never"] = "auto"
    """whether the planner may wait for the end of windows instead of moving their state"""

    @property
    def has_date(self) -> bool:
        """Whether a plan may have to wait."""
        return self.at_epoch is not None or self.at_time is not None


def steps(current: Sequence[Placement], target: Sequence[Placement], policy: HandoverPolicy) -> tuple[PlanStep, ...]:
    """The steps from one placement of all virtual nodes to another, without unchanged virtual nodes."""
    moving = [v for v, (old, new) in enumerate(zip(current, target, strict=True)) if _changes(old, new)]
    match policy.strategy:
        case "all-at-once":
            parts = [moving] if moving else []
        case "batched":
            parts = [moving[i : i + policy.batch] for i in range(0, len(moving), policy.batch)]
        case "fluid":
            parts = [[v] for v in moving]
        case "optimized":
            parts = list(_matched(moving, current, target))
    switched = {v: True for v in moving if current[v][:1] != target[v][:1]}
    return tuple(step for part in parts for step in _paced(part, switched, policy.switchovers))


def _changes(old: Placement, new: Placement) -> bool:
    """Whether the virtual node gets a new member, or another leader. The removal of a member takes no step."""
    return old[:1] != new[:1] or any(i not in old for i in new)


def _paced(part: list[int], switched: dict[int, bool], at_once: int | None) -> Iterator[PlanStep]:
    """One step; or, with too many switchovers, all copies in the first step, and the switchovers over several steps."""
    moves = [v for v in part if v in switched]
    if at_once is None or len(moves) <= at_once:
        copies = tuple(v for v in part if v not in switched)
        yield PlanStep(copies, tuple(moves))
        return
    yield PlanStep(tuple(part), tuple(moves[:at_once]))
    for i in range(at_once, len(moves), at_once):
        yield PlanStep((), tuple(moves[i : i + at_once]))


def _matched(moving: list[int], current: Sequence[Placement], target: Sequence[Placement]) -> Iterator[list[int]]:
    """Steps in which every instance sends at most one virtual node, and receives at most one."""
    # networkx is large, and only this strategy needs it.
    import networkx as nx

    waiting: dict[tuple[str, str], deque[int]] = {}
    for v in moving:
        waiting.setdefault(_pair(current[v], target[v]), deque()).append(v)
    while waiting:
        graph = nx.Graph((f"from {origin}", f"to {to}") for origin, to in waiting)
        matching = nx.bipartite.hopcroft_karp_matching(graph, sorted(n for n in graph if n.startswith("from ")))
        step = []
        for pair in sorted(waiting):
            if matching.get(f"from {pair[0]}") == f"to {pair[1]}":
                step.append(waiting[pair].popleft())
                if not waiting[pair]:
                    del waiting[pair]
        yield sorted(step)


def _pair(old: Placement, new: Placement) -> tuple[str, str]:
    """The sender and the receiver of a virtual node: the receiver is its new member, else its next leader."""
    fresh = [i for i in new if i not in old]
    return (old[0] if old else ""), (fresh or new)[0]
