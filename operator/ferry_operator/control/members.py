"""Which workers a job has after a change of their number. Pure.

A growth fills the lowest free numbers. In a scale-in the first to go are workers that are to leave their nodes anyway, then
workers with the fewest bytes to hand over; a worker with a pinned virtual node goes last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import count, islice

from ferry.contract.names import InstanceId, worker_of
from ferry.contract.status import Status
from ferry_operator.control import placing


def gaps_of(members: Collection[int]) -> tuple[int, ...]:
    """The numbers below the highest member that no member has."""
    return tuple(k for k in range(max(members, default=0)) if k not in members)


def grown(members: Sequence[int], wanted: int) -> tuple[int, ...]:
    """The members and the lowest free numbers; the lowest members, if fewer are wanted."""
    free = islice((k for k in count() if k not in members), max(0, wanted - len(members)))
    return tuple(sorted([*sorted(members)[:wanted], *free]))


def shrunk(
    members: Sequence[int], wanted: int, status: Status, first: Collection[int], pinned: Iterable[InstanceId] = ()
) -> tuple[int, ...]:
    """The members that stay. `first`: workers that leave before all others."""
    led, keep = dict.fromkeys(members, 0.0), {worker_of(instance) for instance in pinned}
    loads = placing.weights(status.load.vnodes, len(status.groups))
    known = any(load.bytes for load in loads)
    for (in_sync, _), load in zip(status.groups, loads):
        k = worker_of(InstanceId(in_sync[0])) if in_sync else None
        if k in led:
            led[k] += load.bytes if known else 1.0
    order = sorted(members, key=lambda k: (k not in first, k in keep, led[k], -k))
    return tuple(sorted(order[len(members) - wanted :]))
