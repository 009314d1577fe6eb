"""Which virtual nodes go to another leader at the boundary of a window, without their state (UniMiCo). Pure.

Those for which somebody has asked for it; and, where the job leaves it to the planner, all that move while the windows that
hold records by now end sooner than their state would have been copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ferry.contract.names import InstanceId
from ferry.contract.status import Status
from ferry_operator.control.placing import Placements

PATIENCE, PATIENCE_SECONDS_MIN = 3.0, 10.0
"""A virtual node is copied when its wait for a window is this many times as long as the copy."""


def chosen(
    status: Status,
    asked: Sequence[int],
    current: Sequence[tuple[InstanceId, ...]],
    wanted: Placements,
    usable: Sequence[InstanceId],
    by_itself: bool,
) -> tuple[int, ...]:
    """The virtual nodes of a plan to `wanted` that wait for a boundary; `by_itself`: also without a user's request."""
    moving = _allowed(range(len(wanted)), current, wanted, usable)
    if by_itself and status.moves.windows_end_in is not None and not status.moves.unbounded:
        if status.moves.windows_end_in < copy_seconds(status, moving):
            return moving
    return tuple(v for v in moving if v in asked)


def are_overdue(status: Status, asked: Sequence[int], chosen_before: Sequence[int]) -> bool:
    """Whether virtual nodes of the plan in force wait for the end of windows for longer than is good."""
    waiting = [one.vnode for one in status.moves.boundaries if one.vnode in chosen_before and one.vnode not in asked]
    patience = max(PATIENCE * copy_seconds(status, waiting), PATIENCE_SECONDS_MIN)
    return bool(waiting) and status.moves.quiet_seconds > patience


def copy_seconds(status: Status, vnodes: Iterable[int]) -> float:
    """How long it would take to copy these, each once: as measured, and not faster than copies may be now.

    0 as long as this driver has not measured what a byte takes, and no bandwidth limits copies.
    """
    bandwidth = status.moves.bandwidth
    allowed = 1.0 / bandwidth if bandwidth is not None and bandwidth > 0 else 0.0
    return sum(status.load.vnodes[v][1] for v in vnodes) * max(status.moves.costs[0] or 0.0, allowed)


def _allowed(
    vnodes: Iterable[int],
    current: Sequence[tuple[InstanceId, ...]],
    wanted: Placements,
    usable: Sequence[InstanceId],
) -> tuple[int, ...]:
    """Those of these that may take their time: their new leader has nothing yet, no copy is missing, and none is where
    nothing is to be.
    """
    return tuple(
        v
        for v in vnodes
        if wanted[v][0] not in current[v] and len(current[v]) >= len(wanted[v]) and all(i in usable for i in current[v])
    )
