"""The routing table: which instances hold which virtual node, and in which term.

One table is one frozen value. Its version (generation, number) orders all tables of a job: a generation belongs to one
driver, which numbers its tables. Every message of an attempt names the version under which the attempt was begun, so a
message of an older table is refused as a whole (decision record 0002); the terms name the version of one group in the
journal, in files and to people.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ferry.contract.names import InstanceId, Term


class Version(NamedTuple):
    """Version of a routing table; ordered."""

    generation: int
    number: int


@dataclass(frozen=True, slots=True)
class Group:
    """The replica group of one virtual node."""

    term: Term
    in_sync: tuple[InstanceId, ...]
    """Leader first, then the replicas in chain order; their acknowledgement is awaited."""
    learners: tuple[InstanceId, ...] = ()
    """Members being warmed: they get every delta, nobody waits for them."""

    @property
    def leader(self) -> InstanceId:
        """The instance that computes the deltas of this virtual node."""
        return self.in_sync[0]

    @property
    def members(self) -> tuple[InstanceId, ...]:
        """Everybody who gets the deltas."""
        return self.in_sync + self.learners


GroupChange = tuple[int, Term, tuple[InstanceId, ...], tuple[InstanceId, ...]]
"""A virtual node, and the fields of its group from now on."""


@dataclass(frozen=True, slots=True)
class Table:
    """All groups, by virtual node."""

    version: Version
    groups: tuple[Group, ...]
    initial: bool = False
    """True for the tables of a job before its first commit: members start with empty state instead of proving that they
    hold it. It is journaled as False before the first Commit is sent."""

    def __hash__(self) -> int:
        return hash(self.version)

    @property
    def virtual_nodes(self) -> int:
        """Number of virtual nodes, a power of two."""
        return len(self.groups)

    def chains(self) -> dict[tuple[InstanceId, ...], list[int]]:
        """Virtual nodes by their chain (the in-sync members in order): one delta message serves one chain."""
        out: dict[tuple[InstanceId, ...], list[int]] = {}
        for vnode, group in enumerate(self.groups):
            out.setdefault(group.in_sync, []).append(vnode)
        return out

    def with_groups(self, version: Version, groups: Sequence[Group]) -> Table:
        """The next table."""
        return replace(self, version=version, groups=tuple(groups), initial=False)

    def since(self, base: Table) -> tuple[GroupChange, ...]:
        """What has changed since `base`: groups that are the same are usually the same object."""
        pairs = enumerate(zip(base.groups, self.groups, strict=True))
        return tuple((v, g.term, g.in_sync, g.learners) for v, (b, g) in pairs if b is not g and b != g)

    def amended(self, version: Version, initial: bool, changes: Sequence[GroupChange]) -> Table:
        """Inverse of since."""
        groups = list(self.groups)
        for vnode, term, in_sync, learners in changes:
            groups[vnode] = Group(term, in_sync, learners)
        return Table(version, tuple(groups), initial)

    def to_wire(self) -> dict[str, Any]:
        """Plain lists and maps (journal, Install)."""
        return {
            "version": list(self.version),
            "initial": self.initial,
            "groups": [[list(g.term), list(g.in_sync), list(g.learners)] for g in self.groups],
        }

    @staticmethod
    def from_wire(doc: dict[str, Any]) -> Table:
        """Inverse of to_wire."""
        return Table(
            version=Version(*doc["version"]),
            initial=bool(doc["initial"]),
            groups=tuple(
                Group(Term(*term), tuple(map(InstanceId, in_sync)), tuple(map(InstanceId, learners)))
                for term, in_sync, learners in doc["groups"]
            ),
        )
