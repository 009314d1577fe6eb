"""The replicas of each virtual node: on other workers, on other nodes if there are enough, evenly by bytes.

Pure and deterministic, over indices of slots; `planner` translates them into names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ferry.contract import limits
from ferry_operator.placement.balance import Bins
from ferry_operator.placement.levels import bins_of, worth


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots as columns, in an order independent of the caller."""

    names: list[str]
    worker: list[int]
    node: list[str]
    capacity: list[float]
    memory: list[float]
    copies: int
    """replicas of each group"""
    spread: int
    """nodes of each group"""

    def is_group(self, members: Sequence[int]) -> bool:
        """Whether no members share a worker, and no more members share a node than necessary. Also for incomplete groups."""
        workers = {self.worker[member] for member in members}
        nodes = {self.node[member] for member in members}
        return len(workers) == len(members) and len(members) - len(nodes) <= self.copies + 1 - self.spread


def copies_of(
    cluster: Slots, sizes: list[float], leaders: list[int], holders: list[list[int]], tolerance: float
) -> list[list[int]]:
    """The replicas of each virtual node: valid holders, then new replicas on the emptiest slots; then levelled by bytes.

    sizes, leaders, holders: by virtual node, its weight, its leading slot, and the slots with a copy.
    """
    copies = cluster.copies
    if copies == 0:
        return [[] for _ in leaders]
    base = [0.0] * len(cluster.names)
    for leader, size in zip(leaders, sizes):
        base[leader] += size
    groups = _fill(cluster, sizes, leaders, _keep(cluster, sizes, leaders, holders, base), base)
    bins = Bins(cluster.memory, [size for size in sizes for _ in range(copies)], base)
    for item, slot in enumerate(slot for group in groups for slot in group):
        bins.put(item, slot)
    after = bins_of(bins, bins.where)

    def allowed(item: int, origin: int, target: int) -> bool:
        first = item // copies * copies
        others = [slot for slot in after.where[first : first + copies] if slot != origin]
        return cluster.is_group([leaders[item // copies], *others, target])

    after.level_out(allowed)
    where = after.where if worth(bins, after, tolerance) else bins.where
    return [where[first : first + copies] for first in range(0, len(where), copies)]


def _by_size(sizes: list[float]) -> list[int]:
    return sorted(range(len(sizes)), key=lambda vnode: (-sizes[vnode], vnode))


def _keep(
    cluster: Slots, sizes: list[float], leaders: list[int], holders: list[list[int]], base: list[float]
) -> list[list[int]]:
    """The holders that stay, by virtual node and in order; among too many holders, the fullest slots give up their copy."""
    others = [[slot for slot in held if slot != leader] for leader, held in zip(leaders, holders)]
    load = list(base)
    for size, group in zip(sizes, others):
        for slot in group:
            load[slot] += size
    for vnode in _by_size(sizes):
        held, kept = others[vnode], [leaders[vnode]]
        if cluster.is_group([leaders[vnode], *held]) and len(held) <= cluster.copies:
            continue
        if len(held) > cluster.copies:
            held = sorted(held, key=lambda slot: load[slot] / cluster.memory[slot])
        for slot in held:
            if len(kept) <= cluster.copies and cluster.is_group([*kept, slot]):
                kept.append(slot)
            else:
                load[slot] -= sizes[vnode]
        others[vnode] = [slot for slot in others[vnode] if slot in kept]
    return others


def _fill(
    cluster: Slots, sizes: list[float], leaders: list[int], groups: list[list[int]], base: list[float]
) -> list[list[int]]:
    """Add the missing replicas, large virtual nodes first, each on the emptiest slot.

    Among slots of about equal level, the slot with the fewest copies of this leader's worker wins: after the death of a
    worker, several others share its virtual nodes. But a leader has few sets of replicas: an epoch needs a chain, and a
    file of the log, for each set.
    """
    load, every = list(base), range(len(cluster.names))
    sets: dict[int, dict[tuple[int, ...], None]] = {}
    shared: dict[tuple[int, int], int] = {}
    for leader, group in zip(leaders, groups):
        if len(group) == cluster.copies:
            sets.setdefault(leader, {})[tuple(sorted(group))] = None
    for vnode, group in enumerate(groups):
        for slot in group:
            load[slot] += sizes[vnode]
            pair = (cluster.worker[leaders[vnode]], slot)
            shared[pair] = shared.get(pair, 0) + 1
    quantum = sum(sizes) / len(sizes) * len(cluster.memory) / sum(cluster.memory)
    for vnode in _by_size(sizes):
        size, group, origin = sizes[vnode], groups[vnode], cluster.worker[leaders[vnode]]

        def rank(slot: int, size: float = size, origin: int = origin) -> tuple[int, int, float, int]:
            level = (load[slot] + size) / cluster.memory[slot]
            return int(level / quantum + 1e-6), shared.get((origin, slot), 0), level, slot

        def add(slot: int, group: list[int] = group, size: float = size, origin: int = origin) -> None:
            group.append(slot)
            load[slot] += size
            shared[origin, slot] = shared.get((origin, slot), 0) + 1

        known = sets.setdefault(leaders[vnode], {})
        if len(group) < cluster.copies and len(known) >= limits.SETS_OF_REPLICAS:
            fits = [
                replicas
                for replicas in known
                if set(group) <= set(replicas) and cluster.is_group([leaders[vnode], *replicas])
            ]
            if fits:
                chosen = min(
                    fits,
                    key=lambda replicas: (
                        sorted((rank(slot) for slot in replicas if slot not in group), reverse=True),
                        replicas,
                    ),
                )
                for slot in chosen:
                    if slot not in group:
                        add(slot)
        while len(group) < cluster.copies:
            members = [leaders[vnode], *group]
            workers = {cluster.worker[member] for member in members}
            nodes = {cluster.node[member] for member in members}
            may_share = len(members) - len(nodes) < cluster.copies + 1 - cluster.spread
            slot = min(
                (s for s in every if cluster.worker[s] not in workers and (may_share or cluster.node[s] not in nodes)),
                key=rank,
            )
            add(slot)
        known[tuple(sorted(group))] = None
    return groups
