"""Whether virtual nodes should move because instances get unequal numbers of records, and where to. Pure: no clock.

The busiest instance bounds the throughput of a job, so the gain of a placement is the share of load that it takes from the
busiest instance. A placement is worth a move if this gain is at least `gain`, and if the busiest instance saves more time
over the horizon than the move takes. Noise must not move anything: the driver smooths the rates, a placement stays for a
whole horizon, and the same move has to be worth it at every look for RIPE_SECONDS before the best move is made (`timers`).
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
"""Time for which a move has to be worth it; the horizon if the horizon is shorter."""

RATE_MIN = 10.0
"""Records per second and instance below which a rate has no meaning."""

SECONDS_PER_BYTE = 1 / 20e6
"""The cost before the driver has measured it: 1 GB takes 50 s, as on two slow cores."""

SECONDS_PER_SWITCHOVER = 0.01
"""The cost before the driver has measured it."""


@dataclass(frozen=True, slots=True)
class BalancePolicy:
    """`spec.state.balance` as numbers."""

    mode: Literal["off", "advise", "auto"] = "advise"
    gain: float = 0.1
    """least share of its load that the busiest instance has to lose"""
    horizon: float = 600.0
    """seconds"""

    @property
    def ripe(self) -> float:
        """Seconds for which a move has to be worth it."""
        return min(RIPE_SECONDS, self.horizon)


@dataclass(frozen=True, slots=True)
class Advice:
    """A more even placement, and the cost of the move. A level is records per second per capacity."""

    before: float
    """level of the busiest instance at present, as a multiple of the average"""
    after: float
    """the same with the other placement"""
    vnodes: int
    """virtual nodes that get another leader"""
    bytes: float
    """bytes that the move copies"""
    seconds: float
    """estimated time of the move"""
    worth: bool
    reason: str
    """why the move is worth it or not, for users"""
    placements: Placements
    steady: bool = False
    """the placement of an earlier look would be almost as good: the imbalance is the same"""


def policy_of(spec: BalanceSpec, before: BalancePolicy | None = None) -> BalancePolicy:
    """The policy of a spec; `before` has the values of fields that the spec does not set."""
    whole = BalancePolicy(spec.mode, int(spec.gain.removesuffix("%")) / 100, spec.horizon.seconds)
    return (
        whole if before is None else replace(before, **{name: getattr(whole, name) for name in spec.model_fields_set})
    )


def advise(
    status: Status,
    slots: Sequence[Slot],
    replicas: int,
    pins: Pins,
    policy: BalancePolicy,
    kept: Placements | None = None,
) -> Advice:
    """A better placement than the groups of `status`. An instance of `slots` leads each group.

    `kept`: the placement that an earlier look advised; `steady` says whether it is still good.
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
    """The advice for a placement, compared with the present placement."""
    loads, now = weights(status.load.vnodes, len(status.groups)), _present(status)
    movement = planner.movement([as_planned(group) for group in now], [as_planned(group) for group in planned], loads)
    per_byte, per_switchover = status.moves.costs
    seconds = movement.bytes * (SECONDS_PER_BYTE if per_byte is None else per_byte)
    seconds += movement.switchovers * (SECONDS_PER_SWITCHOVER if per_switchover is None else per_switchover)
    before, after = imbalance(slots, loads, now), imbalance(slots, loads, planned)
    cost = f"{movement.switchovers} virtual nodes, {movement.bytes / 1e6:.1f} MB, about {seconds:.1f} s"
    better = f"the busiest instance from {before:.2f} to {after:.2f} times the average"
    if sum(load.rate for load in loads) < RATE_MIN * len(slots):
        worth, reason = False, "too few records arrive to compare instances"
    elif not _gains(before, after, policy):
        worth, reason = (
            False,
            f"no move gains {policy.gain:.0%} ({before:.2f} times the average on the busiest instance)",
        )
    elif (1 - after / before) * policy.horizon <= seconds:
        worth, reason = False, f"the move costs more than it gains in {policy.horizon:g} s: {cost}, {better}"
    else:
        worth, reason = True, f"to move {cost}, brings {better}"
    return Advice(before, after, movement.switchovers, movement.bytes, seconds, worth, reason, planned)


def imbalance(slots: Sequence[Slot], loads: Sequence[Load], placements: Placements) -> float:
    """Level of the busiest instance as a multiple of the average; 1 if no records arrive."""
    led = {slot.instance: 0.0 for slot in slots}
    for load, placement in zip(loads, placements, strict=True):
        led[placement[0]] += load.rate
    average = sum(led.values()) / sum(slot.capacity for slot in slots)
    return max(led[slot.instance] / slot.capacity for slot in slots) / average if average > 0 else 1.0


def _present(status: Status) -> Placements:
    return tuple(tuple(map(InstanceId, in_sync)) for in_sync, _ in status.groups)
