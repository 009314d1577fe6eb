"""Whether virtual nodes should move because some instances get more records than others, and where to. Pure: no clock.

The busiest instance bounds what a job can take, so the gain of a placement is by how much less that one has to do. It is
worth a move when it is at least `gain`, and when the busiest instance saves more time over the horizon than the move takes.
What is unsteady must not move anything: rates are smoothed where they are measured, a placement is left alone for a whole
horizon, and one and the same move has to be worth it for RIPE_SECONDS at every look before the best one is made (`timers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ferry.contract.names import InstanceId
from ferry.contract.status import Status
from ferry_operator.control import placing
from ferry_operator.control.placing import Pins, Placements, as_planned, weights
from ferry_operator.job.models_balance import BalanceSpec
from ferry_operator.placement import planner
from ferry_operator.placement.balance import lower_bound
from ferry_operator.placement.planner import Load, Slot

RIPE_SECONDS = 30.0
"""For so long a move has to be worth it, or for the horizon if that is shorter."""

RATE_MIN = 10.0
"""Records per second and instance below which a rate says nothing."""

SECONDS_PER_BYTE = 1 / 20e6
"""As long as the driver has measured nothing: 1 GB takes 50 s, as on two slow cores."""

SECONDS_PER_SWITCHOVER = 0.01
"""As long as the driver has measured nothing."""


@dataclass(frozen=True, slots=True)
class BalancePolicy:
    """How a job wants to be balanced."""

    mode: Literal["off", "advise", "auto"] = "advise"
    gain: float = 0.1
    """part of what the busiest instance has to do"""
    horizon: float = 600.0
    """seconds"""

    @property
    def ripe(self) -> float:
        """Seconds for which a move has to be worth it."""
        return min(RIPE_SECONDS, self.horizon)


@dataclass(frozen=True, slots=True)
class Advice:
    """A placement that would be more even, and what it takes. Levels are records per second and capacity."""

    before: float
    """level of the busiest instance now, as a multiple of the average"""
    after: float
    """the same with the other placement"""
    vnodes: int
    """that get another leader"""
    bytes: float
    """that are copied"""
    seconds: float
    """that it takes, about"""
    worth: bool
    reason: str
    """why it is worth it, or not, in words"""
    placements: Placements
    steady: bool = False
    """that of an earlier look would do almost as well: what is uneven is so in the same way"""


def policy_of(given: BalanceSpec, before: BalancePolicy | None = None) -> BalancePolicy:
    """How a job wants it; `before`: what holds where nothing is said."""
    whole = BalancePolicy(given.mode, int(given.gain.removesuffix("%")) / 100, given.horizon.seconds)
    return (
        whole if before is None else replace(before, **{name: getattr(whole, name) for name in given.model_fields_set})
    )


def advise(
    status: Status,
    slots: Sequence[Slot],
    replicas: int,
    pins: Pins,
    policy: BalancePolicy,
    kept: Placements | None = None,
) -> Advice:
    """What would be better than the groups of `status`, each of which is led by one of `slots`.

    `kept`: what was advised at an earlier look; the advice says whether that would still do.
    """
    now, loads = _present(status), weights(status.load.vnodes, len(status.groups))
    rates, capacities = [load.rate for load in loads if load.rate > 0], [slot.capacity for slot in slots]
    least = lower_bound(capacities, rates) * sum(capacities) / sum(rates) if rates else 1.0
    if not _gains(imbalance(slots, loads, now), least, policy):
        return _judged(status, slots, now, policy)  # No placement can be worth it.
    best = _judged(status, slots, placing.place(now, status.load.vnodes, slots, replicas, pins), policy)
    steady = kept is not None and not _gains(imbalance(slots, loads, kept), best.after, policy)
    return replace(best, steady=steady)


def _gains(before: float, after: float, policy: BalancePolicy) -> bool:
    return 1 - after / before >= policy.gain


def _judged(status: Status, slots: Sequence[Slot], planned: Placements, policy: BalancePolicy) -> Advice:
    """Another placement beside the one that there is."""
    loads, now = weights(status.load.vnodes, len(status.groups)), _present(status)
    movement = planner.movement([as_planned(one) for one in now], [as_planned(one) for one in planned], loads)
    per_byte, per_switchover = status.moves.costs
    seconds = movement.bytes * (SECONDS_PER_BYTE if per_byte is None else per_byte)
    seconds += movement.switchovers * (SECONDS_PER_SWITCHOVER if per_switchover is None else per_switchover)
    before, after = imbalance(slots, loads, now), imbalance(slots, loads, planned)
    what = f"{movement.switchovers} virtual nodes, {movement.bytes / 1e6:.1f} MB, about {seconds:.1f} s"
    better = f"the busiest instance from {before:.2f} to {after:.2f} times the average"
    if sum(load.rate for load in loads) < RATE_MIN * len(slots):
        worth, reason = False, "too few records come to say where"
    elif not _gains(before, after, policy):
        worth, reason = (
            False,
            f"no move gains {policy.gain:.0%} ({before:.2f} times the average on the busiest instance)",
        )
    elif (1 - after / before) * policy.horizon <= seconds:
        worth, reason = False, f"a move would cost more than {policy.horizon:g} s of it gain: {what}, {better}"
    else:
        worth, reason = True, f"to move {what}, brings {better}"
    return Advice(before, after, movement.switchovers, movement.bytes, seconds, worth, reason, planned)


def imbalance(slots: Sequence[Slot], loads: Sequence[Load], placements: Placements) -> float:
    """Level of the busiest instance as a multiple of the average; 1 where nothing comes."""
    led = {slot.instance: 0.0 for slot in slots}
    for load, placement in zip(loads, placements, strict=True):
        led[placement[0]] += load.rate
    average = sum(led.values()) / sum(slot.capacity for slot in slots)
    return max(led[slot.instance] / slot.capacity for slot in slots) / average if average > 0 else 1.0


def _present(status: Status) -> Placements:
    return tuple(tuple(map(InstanceId, in_sync)) for in_sync, _ in status.groups)
