"""A routing table seen from its instances: computed once per table, because messages are many and tables few."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from ferry.contract.names import InstanceId
from ferry.contract.routing import Table

Chain = tuple[InstanceId, ...]


@lru_cache(maxsize=4)
def seen(table: Table) -> TableView:
    """The view of this table."""
    return TableView(table)


class TableView:
    """Indexes of one table, immutable. All lists of virtual nodes are ascending, all lists of instances sorted."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.version = table.version
        self.chains: dict[Chain, tuple[int, ...]] = {c: tuple(v) for c, v in table.chains().items()}
        self.order: tuple[Chain, ...] = tuple(self.chains)
        """The chains by their number, which is the same in every process."""
        self.number = {chain: number for number, chain in enumerate(self.order)}
        led: dict[InstanceId, list[int]] = {}
        held: dict[InstanceId, list[int]] = {}
        learned: dict[InstanceId, dict[int, InstanceId]] = {}
        taught: dict[InstanceId, dict[InstanceId, list[int]]] = {}
        for chain, vnodes in self.chains.items():
            led.setdefault(chain[0], []).extend(vnodes)
            for i in chain:
                held.setdefault(i, []).extend(vnodes)
        for vnode, group in enumerate(table.groups):
            for i in group.learners:
                learned.setdefault(i, {})[vnode] = group.in_sync[0]
                taught.setdefault(group.in_sync[0], {}).setdefault(i, []).append(vnode)
        self.led = {i: tuple(sorted(led[i])) for i in sorted(led)}
        """Leaders and their virtual nodes."""
        self.held = {i: tuple(sorted(held[i])) for i in sorted(held)}
        """In-sync members and their virtual nodes."""
        self.learned = learned
        """Learners: virtual node -> its leader."""
        self.taught = taught
        """Leaders: learner -> virtual nodes that it learns from this leader."""
        self.at_window = frozenset(table.at_window)
        """Virtual node and learner of copies without a snapshot."""
        self.tails = Counter(chain[-1] for chain in self.order)
        """Last members of chains, and the number of chains that end there."""
        self.members = sorted({**held, **learned})
        """All instances that hold or learn a virtual node."""
