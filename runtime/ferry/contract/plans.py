"""Plans: where every virtual node is wanted, and by which steps it gets there.

It is handed to a driver, which journals it beside the routing table and carries it out between epochs; the next driver
goes on where it was. It has no opinion of what makes a placement good: only the driver knows how many virtual nodes there
are. Steps are those of Megaphone (sections 3.3 and 4.4), with copies and switchovers apart.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from ferry.contract.names import InstanceId

Placement = tuple[InstanceId, ...]
"""Where a virtual node should be: leader first, then its replicas."""


class PlanStep(NamedTuple):
    """What is done at one time."""

    copies: tuple[int, ...]
    """Virtual nodes of which the members begin to be warmed that they lack."""
    switchovers: tuple[int, ...]
    """Virtual nodes that get their new leader as soon as it is in sync; and the copies that they lack."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Body of `PUT /desired`, answer of `GET /desired`, and what the journal has beside the table."""

    number: int
    """A higher one replaces a lower one; from 1."""
    placements: tuple[Placement, ...]
    """By virtual node, when it is over."""
    steps: tuple[PlanStep, ...] = ()
    """One after the other. What none of them names changes after the last one; without steps that is at once."""
    gap: int = 0
    """Epochs after a switchover in which no step begins."""
    warm: bool = True
    """False: epochs are held back while the copies of a step are made, as Megaphone does."""
    at_epoch: int = 0
    """It begins with this epoch, or a later one."""
    at_time: int | None = None
    """It begins with the first epoch that begins when the watermark is here: milliseconds of event time."""
    deadline: int = 0
    """A copy to which nothing comes for so many milliseconds is given up for a while, and a plan that stands still for
    three times as long is rolled back; 0: the driver's default."""
    token: int = 0
    """Fencing token of who decided it: after a higher one was seen a lower one is refused."""
    basis: dict[str, Any] | None = field(default=None, hash=False)
    """What it was planned for: kept for whoever plans next, and not looked at."""
    before: tuple[Placement, ...] = ()
    """By virtual node, where it is wanted until its step; none once the plan is over. The driver's to say."""
    reached: int = 0
    """Steps that have begun; the driver's to say."""
    undone: str = ""
    """Why it was rolled back: then the placements are those of before. The driver's to say."""
    at_window: tuple[int, ...] = ()
    """Virtual nodes that go to another leader at the boundary of a window (UniMiCo): that one takes no snapshot, but hears
    of all that changes, and leads when what was there when it began is over. No step waits for it."""

    def wanted(self) -> tuple[Placement, ...]:
        """By virtual node, where it should be now."""
        if self.reached >= len(self.steps):
            return self.placements
        made = list(self.before)
        for step in self.steps[: self.reached]:
            for v in step.copies:
                made[v] = (*made[v], *(i for i in self.placements[v] if i not in made[v]))
            for v in step.switchovers:
                made[v] = self.placements[v]
        return tuple(made)

    def begun(self) -> frozenset[int]:
        """Virtual nodes of the steps that have begun."""
        return frozenset(v for step in self.steps[: self.reached] for vnodes in step for v in vnodes)

    def is_due(self, epoch: int, watermark: int) -> bool:
        """Whether it may begin with this epoch. `watermark`: of what is committed, in milliseconds."""
        return epoch >= self.at_epoch and (self.at_time is None or watermark >= self.at_time)

    def next_targets(self) -> frozenset[InstanceId]:
        """Who has to be there for the next step: all members that its virtual nodes are to have."""
        if self.reached >= len(self.steps):
            return frozenset()
        return frozenset(i for vnodes in self.steps[self.reached] for v in vnodes for i in self.placements[v])

    def with_next_step(self) -> Plan:
        """One more step has begun."""
        return replace(self, reached=self.reached + 1)

    def rolled_back(self, there: Container[InstanceId], why: str) -> Plan:
        """All back to where it was before, but for virtual nodes that would have fewer copies there, or lack members, or be
        where nothing is to be when the plan is over: a worker that is emptied.
        """
        stays = frozenset(i for placement in self.placements for i in placement)
        pairs = zip(self.before, self.placements, strict=True)
        back = tuple(
            old if len(old) >= len(new) and all(i in there and i in stays for i in old) else new for old, new in pairs
        )
        now = replace(self, placements=back, steps=(), gap=0, warm=True, before=(), reached=0, undone=why)
        return replace(now, at_window=())

    def without_snapshots(self) -> tuple[tuple[int, InstanceId], ...]:
        """Copies that are made at the boundary of a window: virtual node, and who is to lead it."""
        return tuple((v, self.placements[v][0]) for v in self.at_window)

    def hurried(self, in_sync: Callable[[int], Placement]) -> Plan:
        """Without waiting for the copies that are in sync by now, nor where a copy is missing: these are made at once.

        `in_sync`: members of a virtual node.
        """
        left = tuple(
            v
            for v in self.at_window
            if self.placements[v][0] not in in_sync(v) and len(in_sync(v)) >= len(self.placements[v])
        )
        return self if left == self.at_window else replace(self, at_window=left)

    def to_wire(self) -> dict[str, Any]:
        """As JSON; what is as always is left out, so that a driver of an older version reads what it can do."""
        document = {one.name: getattr(self, one.name) for one in fields(self)}
        document["placements"], document["before"] = _lists(self.placements), _lists(self.before)
        document["steps"] = [[list(vnodes) for vnodes in step] for step in self.steps]
        document["at_window"] = list(self.at_window)
        return {key: value for key, value in document.items() if key in NEEDED or value != ALWAYS[key]}

    @classmethod
    def from_wire(cls, document: Any) -> Plan:
        """The inverse. Raises ValueError that says what is wrong; what is not known is refused, for it may matter."""
        if not isinstance(document, dict) or not {"number", "placements"} <= document.keys():
            raise ValueError("a plan has a number and placements")
        if unknown := document.keys() - cls.__dataclass_fields__.keys():
            raise ValueError(f"unknown: {', '.join(sorted(map(str, unknown)))}")
        given = ALWAYS | document
        if given["basis"] is not None and not isinstance(given["basis"], dict):
            raise ValueError("basis is an object")
        if type(given["warm"]) is not bool:
            raise ValueError("warm is true or false")
        placements = _placements(given["placements"])
        return cls(
            number=_number(given, "number", 1),
            placements=placements,
            steps=_steps(given["steps"], len(placements)),
            gap=_number(given, "gap", 0),
            warm=given["warm"],
            at_epoch=_number(given, "at_epoch", 0),
            at_time=None if given["at_time"] is None else _number(given, "at_time", TIME_MIN, TIME_MAX),
            deadline=_number(given, "deadline", 0),
            token=_number(given, "token", 0),
            basis=given["basis"],
            before=_placements(given["before"]),
            reached=_number(given, "reached", 0),
            undone=_text(given, "undone"),
            at_window=_vnodes(given["at_window"], len(placements)),
        )


@dataclass(frozen=True, slots=True)
class Boundary:
    """A virtual node that goes to another leader when windows have ended: no state is moved."""

    vnode: int
    origin: str
    target: str
    begins: int | None
    """Windows that start here or later are the target's, in milliseconds of event time; None: that depends on what comes."""


TIME_MIN, TIME_MAX = -(10**13), 10**14
"""Milliseconds since 1970, from the year 1653 to 5138: what is beyond is of another unit."""

ALWAYS: dict[str, Any] = {
    "steps": [], "gap": 0, "warm": True, "at_epoch": 0, "at_time": None, "deadline": 0, "token": 0, "basis": None,
    "before": [], "reached": 0, "undone": "", "at_window": [],
}  # fmt: skip
"""What is so where nothing else is said, as JSON."""

NEEDED = ("number", "placements", "token", "basis")
"""What is always said."""


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
