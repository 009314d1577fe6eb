"""The placement of the leader and the copies of every virtual node: bin packing with few moves.

Rhino (sections 3.3 and 4.2.2) builds replica groups by bin packing and leaves other heuristics open. The model for changes
of a running placement, and for their tests, is the assignor of Kafka Streams. Pure and deterministic: the same arguments
give the same placement, in any order of the slots; no clock, no randomness, no iteration over sets.

The order of work: a copy becomes leader of a group whose leader is gone; leaders are levelled by rate, and secondly by
bytes; valid copies stay; missing copies are added on other workers, and on other nodes if there are enough; copies are
levelled by the bytes of an instance. Levelling starts only above a `tolerance`, and then is thorough: `plan` changes
neither its own result, nor a placement after small changes of the load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ferry_operator.placement.balance import Bins
from ferry_operator.placement.levels import TOLERANCE, levelled, worth
from ferry_operator.placement.replicas import Slots, copies_of

BASE_SHARE = 0.01
"""Weight of a virtual node beside its rate, as a part of the mean rate: it spreads idle virtual nodes by their bytes."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One instance for virtual nodes."""

    instance: str
    """'WORKER.INDEX'"""
    worker: int
    node: str
    capacity: float = 1.0
    """relative speed, > 0"""
    memory_bytes: int | None = None
    """if known for all slots, copies are spread in proportion"""


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one virtual node; finite, not negative; zero when unknown."""

    rate: float
    """rows per second"""
    bytes: float


@dataclass(frozen=True, slots=True)
class Placement:
    """The instances of one virtual node; replicas in the order of the chain."""

    leader: str
    replicas: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Movement:
    """The cost of a change from one placement to another."""

    switchovers: int
    """virtual nodes with a change of the leader"""
    copies: int
    """new members that need a copy of their virtual node"""
    bytes: float
    """bytes of these copies"""


def plan(
    slots: Sequence[Slot],
    loads: Sequence[Load],
    current: Sequence[Placement | None],
    replicas: int,
    tolerance: float = TOLERANCE,
    level_leaders: bool = True,
) -> tuple[Placement, ...]:
    """The placement of every virtual node of `loads` and `current`, near to `current` (None: not placed yet).

    Without `level_leaders` only virtual nodes without a usable leader get another leader; copies are levelled all the same.
    Each group gets min(replicas, workers - 1) replicas on different workers, and each member on a different node if there
    are enough nodes. `current` may contain instances that are gone. Asserts valid arguments.
    """
    assert slots and len(loads) == len(current) and replicas >= 0, (len(slots), len(loads), len(current), replicas)
    assert all(math.isfinite(x) and x >= 0 for load in loads for x in (load.rate, load.bytes)), "loads out of range"
    cluster = _cluster_of(slots, replicas)
    at = {name: index for index, name in enumerate(cluster.names)}
    holders = [_alive(placement, at) for placement in current]
    led = [at.get(placement.leader, -1) if placement is not None else -1 for placement in current]
    rates, sizes = _weights([load.rate for load in loads]), _weights([load.bytes for load in loads])
    base, mean_size = BASE_SHARE * _mean(rates), _mean(sizes)
    rates = [rate + base * min(size / mean_size, 4.0) for rate, size in zip(rates, sizes)]
    leaders = _lead(cluster, rates, led, holders, tolerance if level_leaders else None)
    groups = copies_of(cluster, sizes, leaders, holders, tolerance)
    names = cluster.names
    return tuple(
        Placement(names[leader], tuple(names[member] for member in group)) for leader, group in zip(leaders, groups)
    )


def movement(current: Sequence[Placement | None], planned: Sequence[Placement], loads: Sequence[Load]) -> Movement:
    """The cost of a plan. A virtual node that was not placed costs nothing: it has no state to copy, and no leader."""
    switchovers, copies, size = 0, 0, 0.0
    for old, new, load in zip(current, planned, loads, strict=True):
        if old is None:
            continue
        switchovers += old.leader != new.leader
        fresh = sum(member != old.leader and member not in old.replicas for member in (new.leader, *new.replicas))
        copies += fresh
        size += fresh * load.bytes
    return Movement(switchovers, copies, size)


def _cluster_of(slots: Sequence[Slot], replicas: int) -> Slots:
    ordered = sorted(slots, key=lambda s: (s.worker, len(s.instance), s.instance))
    names = [s.instance for s in ordered]
    assert len(dict.fromkeys(names)) == len(names), "an instance is named twice"
    assert all(s.capacity > 0 for s in ordered), "a capacity must be positive"
    known = all(s.memory_bytes for s in ordered)
    copies = min(replicas, len(dict.fromkeys(s.worker for s in ordered)) - 1)
    return Slots(
        names=names,
        worker=[s.worker for s in ordered],
        node=[s.node for s in ordered],
        capacity=[s.capacity for s in ordered],
        memory=[float(s.memory_bytes or 1) if known else 1.0 for s in ordered],
        copies=copies,
        spread=min(copies + 1, len(dict.fromkeys(s.node for s in ordered))),
    )


def _alive(placement: Placement | None, at: dict[str, int]) -> list[int]:
    """Slots with a copy, replicas first: among too many, the old leader goes first."""
    if placement is None:
        return []
    return list(dict.fromkeys(at[name] for name in (*placement.replicas, placement.leader) if name in at))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)


def _weights(values: list[float]) -> list[float]:
    """The values, each above zero; all 1 when all values are zero."""
    mean = _mean(values)
    return [value + BASE_SHARE * BASE_SHARE * mean for value in values] if mean > 0 else [1.0] * len(values)


def _lead(
    cluster: Slots, rates: list[float], led: list[int], holders: list[list[int]], tolerance: float | None
) -> list[int]:
    """The leading slot of each virtual node: the old leader, else a slot with a copy, else the emptiest; then levelled.

    A `tolerance` of None: not levelled.
    """
    bins = Bins(cluster.capacity, rates)
    for vnode, slot in enumerate(led):
        if slot >= 0:
            bins.put(vnode, slot)
    orphans = sorted((v for v, slot in enumerate(led) if slot < 0), key=lambda v: (-rates[v], v))
    # Virtual nodes with one copy have no choice; virtual nodes with several copies even out the result.
    for vnode in [v for v in orphans if len(holders[v]) == 1] + [v for v in orphans if len(holders[v]) > 1]:
        slot = bins.emptiest(vnode, holders[vnode])
        if bins.fits(vnode, slot):
            bins.put(vnode, slot)
    every = range(len(cluster.names))
    for vnode in orphans:
        if bins.where[vnode] < 0:
            bins.put(vnode, bins.emptiest(vnode, every))
    if tolerance is None:
        return bins.where
    # The decision must not depend on the places of copies: a second plan, with other copies, might decide differently.
    candidate = levelled(bins, {}, tolerance)
    if not worth(bins, candidate, tolerance):
        return bins.where
    return levelled(bins, dict(enumerate(holders)), tolerance).where
