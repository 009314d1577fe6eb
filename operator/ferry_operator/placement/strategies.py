"""How a plan is cut into steps (Megaphone, sections 3.3 and 4.4). Pure and deterministic.

| strategy | a step |
|---|---|
| all-at-once | all virtual nodes that move |
| batched | so many of them |
| fluid | one |
| optimized | as many as can move while no instance sends or receives two: a maximum matching of origins and targets |

Where `switchovers` is given, not more of them are made at one time; copies do not wait for that.
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
    """How a handover is to be done."""

    strategy: Name = "all-at-once"
    batch: int = 16
    """virtual nodes of a step of 'batched'"""
    switchovers: int | None = None
    """at one time; None: all of a step"""
    gap: int = 0
    """epochs after a switchover in which no step begins"""
    warm: bool = True
    """False: epochs are held back while copies are made"""
    deadline_ms: int = 0
    """without a sign of a copy; 0: the default"""
    at_epoch: int | None = None
    """no plan begins before this epoch; but for what repairs"""
    at_time: int | None = None
    """nor before the watermark is here: milliseconds of event time"""
    at_window: Literal["auto", "never"] = "auto"
    """whether the planner may have windows end where they are, and move no state"""

    @property
    def has_date(self) -> bool:
        """Whether a plan may have to wait."""
        return self.at_epoch is not None or self.at_time is not None


def steps(current: Sequence[Placement], target: Sequence[Placement], policy: HandoverPolicy) -> tuple[PlanStep, ...]:
    """The steps from one placement of all virtual nodes to another; what does not change is in none of them."""
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
    """Whether a member has to be made, or another one leads. To let one go takes no step."""
    return old[:1] != new[:1] or any(i not in old for i in new)


def _paced(part: list[int], switched: dict[int, bool], at_once: int | None) -> Iterator[PlanStep]:
    """One step, or one with all copies and then as many switchovers as may be made at one time."""
    moves = [v for v in part if v in switched]
    if at_once is None or len(moves) <= at_once:
        copies = tuple(v for v in part if v not in switched)
        yield PlanStep(copies, tuple(moves))
        return
    yield PlanStep(tuple(part), tuple(moves[:at_once]))
    for i in range(at_once, len(moves), at_once):
        yield PlanStep((), tuple(moves[i : i + at_once]))


def _matched(moving: list[int], current: Sequence[Placement], target: Sequence[Placement]) -> Iterator[list[int]]:
    """Steps in each of which an instance sends at most one virtual node and receives at most one."""
    # Large, and only this strategy needs it.
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
