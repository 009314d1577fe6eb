"""Which virtual nodes change their leader at the boundary of a window, without their state (UniMiCo). Pure.

A user requests this for single virtual nodes. If the job leaves the choice to the planner, all moving virtual nodes wait
for the boundary, provided that the open windows end before their state could be copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ferry.contract.names import InstanceId
from ferry.contract.status import Status
from ferry_operator.control.placing import Placements

PATIENCE, PATIENCE_SECONDS_MIN = 3.0, 10.0
"""A virtual node is copied after all when it has waited for a window this many times as long as the copy takes."""


def chosen(
    status: Status,
    requested: Sequence[int],
    current: Sequence[tuple[InstanceId, ...]],
    wanted: Placements,
    usable: Sequence[InstanceId],
    automatic: bool,
) -> tuple[int, ...]:
    """The virtual nodes of a plan to `wanted` that wait for a boundary; `automatic`: also without a user's request."""
    moving = _allowed(range(len(wanted)), current, wanted, usable)
    if automatic and status.moves.windows_end_in is not None and not status.moves.unbounded:
        if status.moves.windows_end_in < copy_seconds(status, moving):
            return moving
    return tuple(v for v in moving if v in requested)


def are_overdue(status: Status, requested: Sequence[int], chosen_before: Sequence[int]) -> bool:
    """Whether virtual nodes of the plan in force have waited too long for the end of windows."""
    vnodes = [boundary.vnode for boundary in status.moves.boundaries]
    waiting = [v for v in vnodes if v in chosen_before and v not in requested]
    patience = max(PATIENCE * copy_seconds(status, waiting), PATIENCE_SECONDS_MIN)
    return bool(waiting) and status.moves.quiet_seconds > patience


def copy_seconds(status: Status, vnodes: Iterable[int]) -> float:
    """The time of one copy of each of these virtual nodes, as measured, but not faster than the bandwidth of copies allows.

    0 if this driver has not yet measured the time of a byte, and no bandwidth limits copies.
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
    """The virtual nodes whose move is not urgent: the new leader has no copy yet, no copy is missing, and all copies are on
    usable instances.
    """
    return tuple(
        v
        for v in vnodes
        if wanted[v][0] not in current[v] and len(current[v]) >= len(wanted[v]) and all(i in usable for i in current[v])
    )
