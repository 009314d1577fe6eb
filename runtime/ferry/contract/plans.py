"""Plans: where every virtual node should be, and the steps that lead there.

A driver journals a plan beside the routing table and carries it out between epochs; the next driver continues it. This
file does not judge placements: only the driver knows how many virtual nodes there are. Steps are as in Megaphone
(sections 3.3 and 4.4), with separate copies and switchovers.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from ferry.contract.names import InstanceId

Placement = tuple[InstanceId, ...]
"""Where a virtual node should be: leader first, then its replicas."""


class PlanStep(NamedTuple):
    """Copies and switchovers that happen together."""

    copies: tuple[int, ...]
    """Virtual nodes whose missing members begin to be warmed."""
    switchovers: tuple[int, ...]
    """Virtual nodes that get their new leader as soon as it is in sync; missing copies are made, too."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Body of `PUT /desired`, answer of `GET /desired`, and part of the journal beside the table."""

    number: int
    """A higher one replaces a lower one; from 1."""
    placements: tuple[Placement, ...]
    """By virtual node, at the end of the plan."""
    steps: tuple[PlanStep, ...] = ()
    """In order. Virtual nodes in no step change after the last step; without steps all change at once."""
    gap: int = 0
    """Epochs after a switchover in which no step begins."""
    warm: bool = True
    """False: epochs wait while the copies of a step are made, as in Megaphone."""
    at_epoch: int = 0
    """The earliest epoch with which it begins."""
    at_time: int | None = None
    """It begins with the first epoch whose watermark is at least this: milliseconds of event time."""
    deadline: int = 0
    """Milliseconds without data after which a copy is abandoned for a while; a plan without progress for three times as
    long is rolled back; 0: the driver's default."""
    token: int = 0
    """Fencing token of the decision's author: after a higher one was seen a lower one is refused."""
    basis: dict[str, Any] | None = field(default=None, hash=False)
    """The planner's input: kept for the next planner, ignored by the driver."""
    before: tuple[Placement, ...] = ()
    """By virtual node, its placement until its step; empty once the plan is over. Set by the driver."""
    reached: int = 0
    """Steps begun. Set by the driver."""
    undone: str = ""
    """Why it was rolled back: the placements are then the previous ones. Set by the driver."""
    at_window: tuple[int, ...] = ()
    """Virtual nodes that change their leader at the boundary of a window (UniMiCo): the new leader takes no snapshot,
    gets every delta, and leads once the state from before has expired. No step waits for it."""

    def wanted(self) -> tuple[Placement, ...]:
        """By virtual node, the placement that applies now."""
        if self.reached >= len(self.steps):
            return self.placements
        placements = list(self.before)
        for step in self.steps[: self.reached]:
            for v in step.copies:
                placements[v] = (*placements[v], *(i for i in self.placements[v] if i not in placements[v]))
            for v in step.switchovers:
                placements[v] = self.placements[v]
        return tuple(placements)

    def begun(self) -> frozenset[int]:
        """Virtual nodes of the steps that have begun."""
        return frozenset(v for step in self.steps[: self.reached] for vnodes in step for v in vnodes)

    def is_due(self, epoch: int, watermark: int) -> bool:
        """Whether it may begin with this epoch. `watermark`: of the committed state, in milliseconds."""
        return epoch >= self.at_epoch and (self.at_time is None or watermark >= self.at_time)

    def next_targets(self) -> frozenset[InstanceId]:
        """Instances that must be alive for the next step: all future members of its virtual nodes."""
        if self.reached >= len(self.steps):
            return frozenset()
        return frozenset(i for vnodes in self.steps[self.reached] for v in vnodes for i in self.placements[v])

    def with_next_step(self) -> Plan:
        """The plan with one more step begun."""
        return replace(self, reached=self.reached + 1)

    def rolled_back(self, there: Container[InstanceId], why: str) -> Plan:
        """All virtual nodes back at their previous placement, except nodes that would have fewer copies or missing
        members there, or whose previous instances are to be empty at the end of the plan: a worker that is drained.
        """
        stays = frozenset(i for placement in self.placements for i in placement)
        pairs = zip(self.before, self.placements, strict=True)
        back = tuple(
            old if len(old) >= len(new) and all(i in there and i in stays for i in old) else new for old, new in pairs
        )
        now = replace(self, placements=back, steps=(), gap=0, warm=True, before=(), reached=0, undone=why)
        return replace(now, at_window=())

    def without_snapshots(self) -> tuple[tuple[int, InstanceId], ...]:
        """Copies that are made at the boundary of a window: virtual node, and its future leader."""
        return tuple((v, self.placements[v][0]) for v in self.at_window)

    def with_needed_boundaries(self, in_sync: Callable[[int], Placement]) -> Plan:
        """The plan without boundaries whose future leader is in sync by now, or where a copy is missing: it is made at once.

        `in_sync`: members of a virtual node.
        """
        left = tuple(
            v
            for v in self.at_window
            if self.placements[v][0] not in in_sync(v) and len(in_sync(v)) >= len(self.placements[v])
        )
        return self if left == self.at_window else replace(self, at_window=left)

    def to_wire(self) -> dict[str, Any]:
        """JSON; default values are left out, so that a driver of an older version reads what it supports."""
        document = {one.name: getattr(self, one.name) for one in fields(self)}
        document["placements"], document["before"] = _lists(self.placements), _lists(self.before)
        document["steps"] = [[list(vnodes) for vnodes in step] for step in self.steps]
        document["at_window"] = list(self.at_window)
        return {key: value for key, value in document.items() if key in NEEDED or value != ALWAYS[key]}

    @classmethod
    def from_wire(cls, document: Any) -> Plan:
        """Inverse of to_wire. Raises ValueError with the reason; unknown fields are refused because they may matter."""
        if not isinstance(document, dict) or not {"number", "placements"} <= document.keys():
            raise ValueError("a plan has a number and placements")
        if unknown := document.keys() - cls.__dataclass_fields__.keys():
            raise ValueError(f"unknown: {', '.join(sorted(map(str, unknown)))}")
        full = ALWAYS | document
        if full["basis"] is not None and not isinstance(full["basis"], dict):
            raise ValueError("basis is an object")
        if type(full["warm"]) is not bool:
            raise ValueError("warm is true or false")
        placements = _placements(full["placements"])
        return cls(
            number=_number(full, "number", 1),
            placements=placements,
            steps=_steps(full["steps"], len(placements)),
            gap=_number(full, "gap", 0),
            warm=full["warm"],
            at_epoch=_number(full, "at_epoch", 0),
            at_time=None if full["at_time"] is None else _number(full, "at_time", TIME_MIN, TIME_MAX),
            deadline=_number(full, "deadline", 0),
            token=_number(full, "token", 0),
            basis=full["basis"],
            before=_placements(full["before"]),
            reached=_number(full, "reached", 0),
            undone=_text(full, "undone"),
            at_window=_vnodes(full["at_window"], len(placements)),
        )


@dataclass(frozen=True, slots=True)
class Boundary:
    """A virtual node that changes its leader when windows have ended: no state is moved."""

    vnode: int
    origin: str
    target: str
    begins: int | None
    """The target computes windows that start here or later, in milliseconds of event time; None: depends on coming
    records."""


TIME_MIN, TIME_MAX = -(10**13), 10**14
"""Milliseconds since 1970, from the year 1653 to 5138: values beyond are in another unit."""

ALWAYS: dict[str, Any] = {
    "steps": [], "gap": 0, "warm": True, "at_epoch": 0, "at_time": None, "deadline": 0, "token": 0, "basis": None,
    "before": [], "reached": 0, "undone": "", "at_window": [],
}  # fmt: skip
"""Default values, as JSON."""

NEEDED = ("number", "placements", "token", "basis")
"""Fields that are always written."""


def _lists(placements: Sequence[Placement]) -> list[list[str]]:
    return [list(placement) for placement in placements]


def _number(document: dict[str, Any], name: str, least: int, most: int = 1 << 62) -> int:
    found = document[name]
    if type(found) is not int or not least <= found <= most:
        raise ValueError(f"{name} is a whole number from {least}" + (f" to {most}" if most < 1 << 62 else ""))
    return found


def _text(document: dict[str, Any], name: str) -> str:
    if not isinstance(found := document[name], str):
        raise ValueError(f"{name} is text")
    return found


def _placements(lists: Any) -> tuple[Placement, ...]:
    if not isinstance(lists, list) or not all(isinstance(one, list) for one in lists):
        raise ValueError("placements is a list of lists")
    if not all(isinstance(instance, str) for one in lists for instance in one):
        raise ValueError("instances are names")
    if any(not one or len(set(one)) != len(one) for one in lists):
        raise ValueError("every placement names a leader and then distinct replicas")
    return tuple(tuple(InstanceId(instance) for instance in one) for one in lists)


def _vnodes(found: Any, virtual_nodes: int) -> tuple[int, ...]:
    if not isinstance(found, list) or not all(type(v) is int and 0 <= v < virtual_nodes for v in found):
        raise ValueError(f"at_window is a list of virtual nodes: whole numbers from 0, below {virtual_nodes}")
    return tuple(found)


def _steps(lists: Any, virtual_nodes: int) -> tuple[PlanStep, ...]:
    right = isinstance(lists, list) and all(
        isinstance(step, list) and len(step) == 2 and all(isinstance(vnodes, list) for vnodes in step) for step in lists
    )
    if not right:
        raise ValueError("steps is a list of pairs of lists: copies, switchovers")
    named = [v for step in lists for vnodes in step for v in vnodes]
    if not all(type(v) is int and 0 <= v < virtual_nodes for v in named):
        raise ValueError(f"a step names virtual nodes: whole numbers from 0, below {virtual_nodes}")
    return tuple(PlanStep(tuple(copies), tuple(switchovers)) for copies, switchovers in lists)
