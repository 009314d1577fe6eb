"""The placement of a job's virtual nodes: the planner in the terms of a driver's status (groups, loads, instances), pins,
and the comparison of groups with a placement. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ferry.contract.names import InstanceId, worker_of
from ferry.contract.status import Status
from ferry_operator.placement import planner
from ferry_operator.placement.planner import Load, Slot

Placements = tuple[tuple[InstanceId, ...], ...]
"""By virtual node: the leader, then the replicas in the order of the chain."""

Groups = Sequence[Sequence[str]]
"""By virtual node: in-sync members, the leader first."""

Pins = Iterable[tuple[int, InstanceId]]
"""(virtual node, its wanted leader)"""

AGAIN_SECONDS = 600.0
"""A rolled back plan is tried again once the job has been at rest for this time."""


def slots(
    usable: Iterable[InstanceId],
    nodes: Mapping[int, str],
    capacities: Mapping[int, float] | None = None,
    rooms: Mapping[int, int] | None = None,
) -> list[Slot]:
    """The instances as slots of the planner. `nodes`, `capacities`, `rooms` (bytes for the state of one instance): by
    worker, as far as they are known."""
    known, bytes_ = capacities or {}, rooms or {}
    return [
        Slot(i, k, nodes.get(k, f"node of {k}"), known.get(k, 1.0), bytes_.get(k))
        for i, k in ((instance, worker_of(instance)) for instance in usable)
    ]


def weights(loads: Iterable[tuple[float, float]], virtual_nodes: int) -> list[Load]:
    """The load of each virtual node from its (records per second, bytes); an empty list gives unknown loads."""
    return [Load(*load) for load in loads] or [Load(0.0, 0.0)] * virtual_nodes


def place(
    groups: Groups, loads: Iterable[tuple[float, float]], over: Sequence[Slot], replicas: int, pins: Pins
) -> Placements:
    """The placement of all virtual nodes over these instances, close to their present groups, with the pins.

    Pins alone start no levelling: a user who moves a virtual node wants no other move. If the planner moves leaders, it
    plans with pinned virtual nodes at their targets; else it could move others to the same targets. The planner does not
    know that pinned virtual nodes stay. So the levelled placement must be better than the present leaders with the pins;
    else virtual nodes would move to and fro for ever.
    """
    weighed, pins = weights(loads, len(groups)), tuple(pins)
    current = [as_planned(in_sync) if in_sync else None for in_sync in groups]
    planned = planner.plan(over, weighed, current, replicas)
    if any(now is None or now.leader != then.leader for now, then in zip(current, planned, strict=True)):
        expected = current.copy()
        for v, instance in pins:
            others = [member for member in groups[v] if worker_of(InstanceId(member)) != worker_of(instance)]
            expected[v] = as_planned((instance, *others))
        planned = planner.plan(over, weighed, expected, replicas)
        level = with_pins(_named(planned), pins, groups)
        if not pins:
            return level
        # The copies of `level` suit other leaders: copies are planned again for the leaders that stay.
        stay = planner.plan(over, weighed, expected, replicas, level_leaders=False)
        leave = with_pins(_named(stay), pins, groups)
        return level if _levels(level, weighed, over) < _levels(leave, weighed, over) else leave
    return with_pins(_named(planned), pins, groups)


def as_led(groups: Groups, usable: Iterable[InstanceId]) -> Pins:
    """A pin of each virtual node to its leader, if the leader is usable."""
    there = dict.fromkeys(usable)
    return [(v, InstanceId(members[0])) for v, members in enumerate(groups) if members[0] in there]


def _named(planned: Iterable[planner.Placement]) -> Placements:
    return tuple((InstanceId(p.leader), *map(InstanceId, p.replicas)) for p in planned)


def _levels(placements: Placements, loads: Sequence[Load], over: Sequence[Slot]) -> list[float]:
    """The load per capacity of each instance, the highest first; a virtual node without a rate counts a little."""
    little = planner.BASE_SHARE * sum(load.rate for load in loads) / len(loads) or 1.0
    led = {slot.instance: 0.0 for slot in over}
    for (leader, *_), load in zip(placements, loads, strict=True):
        led[leader] = led.get(leader, 0.0) + load.rate + little
    return sorted((round(led[slot.instance] / slot.capacity, 9) for slot in over), reverse=True)


def as_planned(members: Sequence[str]) -> planner.Placement:
    """Members of a group as a placement of the planner."""
    return planner.Placement(members[0], tuple(members[1:]))


def with_pins(placements: Sequence[tuple[InstanceId, ...]], pins: Pins, groups: Groups = ()) -> Placements:
    """The placements with the pins applied. Members that hold a copy in `groups` are the first to stay as replicas."""
    pinned = list(placements)
    for vnode, instance in pins:
        pinned[vnode] = _pinned(pinned[vnode], instance, groups[vnode] if groups else ())
    return tuple(pinned)


def _pinned(
    placement: tuple[InstanceId, ...], instance: InstanceId, held: Sequence[str] = ()
) -> tuple[InstanceId, ...]:
    """`instance` leads; the number of replicas stays, and all replicas are on other workers.

    The former leader stays as a replica, in place of the replica on the new leader's worker or of the last replica.
    """
    others = sorted((i for i in placement if worker_of(i) != worker_of(instance)), key=lambda i: i not in held)
    return (instance, *others[: len(placement) - 1])


def is_carried_out(status: Status, placements: Placements) -> bool:
    """Whether the groups are this placement, and no move is in progress, prepared, given up or rolled back."""
    if not status.settled or status.finished or status.moves.prepared or status.moves.rolled_back:
        return False
    if status.moves.members_gone or status.moves.given_up:
        return False
    return len(status.groups) == len(placements) and all(
        in_sync[:1] == list(placement[:1]) and sorted(in_sync) == sorted(placement)
        for (in_sync, _), placement in zip(status.groups, placements)
    )


def is_under_strength(status: Status, usable: Iterable[InstanceId], replicas: int) -> bool:
    """Whether a group has fewer copies than the workers allow, and no move is in progress: all moves are done or given up.

    False after a rollback: the same plan would be submitted again at once.
    """
    if status.moves.rolled_back:
        return False
    if not status.settled and not (status.moves.given_up and not any(learners for _, learners in status.groups)):
        return False
    workers = len(dict.fromkeys(worker_of(i) for i in usable))
    wanted = 1 + min(replicas, workers - 1)
    return any(len(in_sync) < wanted for in_sync, _ in status.groups)


def may_be_tried_again(status: Status) -> bool:
    """Whether a plan was rolled back, and the job has been at rest for long: the cause of the rollback may be gone."""
    return status.moves.rolled_back != "" and status.settled and status.moves.quiet_seconds >= AGAIN_SECONDS


def highest(instances: Iterable[str]) -> dict[int, int]:
    """Highest instance index by worker."""
    out: dict[int, int] = {}
    for instance in dict.fromkeys(instances):
        k = worker_of(InstanceId(instance))
        out[k] = max(out.get(k, -1), index_of(instance))
    return out


def index_of(instance: str) -> int:
    """Index of an instance within its worker."""
    return int(instance.split(".", 1)[1])
