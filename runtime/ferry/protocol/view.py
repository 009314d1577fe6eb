"""A routing table seen from its instances: worked out once per table, for messages are many and tables few."""

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
    """Indexes of one table, never changed. All lists of virtual nodes are ascending, all lists of instances sorted."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.version = table.version
        self.chains: dict[Chain, tuple[int, ...]] = {c: tuple(v) for c, v in table.chains().items()}
        self.order: tuple[Chain, ...] = tuple(self.chains)
        """The chains by their number, which is the same wherever this table is seen."""
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
        """Leaders and what they lead."""
        self.held = {i: tuple(sorted(held[i])) for i in sorted(held)}
        """In-sync members and what they hold."""
        self.learned = learned
        """Learners: virtual node -> the leader it is learned from."""
        self.taught = taught
        """Leaders: learner -> virtual nodes that it learns from this leader."""
        self.at_window = frozenset(table.at_window)
        """Virtual node and learner, where the copy takes no snapshot."""
        self.tails = Counter(chain[-1] for chain in self.order)
        """Ends of chains, and how many end there."""
        self.members = sorted({**held, **learned})
        """Everybody who holds or learns something."""
