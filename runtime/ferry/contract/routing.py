"""The routing table: which instances hold which virtual node, and in which term.

A table is one frozen value. Its version (generation, number) orders all tables of a job: a generation belongs to one
driver, which numbers its tables. Every message of an attempt names the version under which the attempt was begun, so a
message of an older table is refused as a whole (decision record 0002); a term is the version of one group, in the
journal, in files and for people.

The constructors check the invariants of a group and of a table. A violation is a Bug of this process, or a Refusal if
the value came from the journal or a peer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ferry.contract.errors import Bug, Refusal
from ferry.contract.limits import VIRTUAL_NODES_MAX
from ferry.contract.names import InstanceId, Term
from ferry.contract.plans import Plan
from ferry.contract.programs import ONE_OPERATOR, Programs
from ferry.contract.programs import from_wire as programs_from_wire
from ferry.contract.programs import to_wire as programs_to_wire

JOURNAL_FORMAT = 2
"""Of a table in the journal. A driver refuses a higher one: it would write the table back without the parts that it does
not know. 2 since a job can have another program than its first one; a table with the first one is still written as 1."""


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
    """Members being warmed: they get every delta, and no epoch waits for them."""

    def __post_init__(self) -> None:
        # Runs for each virtual node after each change, so the checks are few and cheap.
        if not self.in_sync:
            raise Bug(f"{self} has no member in sync, so it has no leader")
        if len({*self.in_sync, *self.learners}) != len(self.in_sync) + len(self.learners):
            raise Bug(f"{self} has a member twice")
        if min(self.term) < 0:
            raise Bug(f"{self} has a term below 0")

    @property
    def leader(self) -> InstanceId:
        """The instance that computes the deltas of this virtual node."""
        return self.in_sync[0]

    @property
    def members(self) -> tuple[InstanceId, ...]:
        """All members; each gets the deltas."""
        return self.in_sync + self.learners


GroupChange = tuple[int, Term, tuple[InstanceId, ...], tuple[InstanceId, ...]]
"""A virtual node, and the new fields of its group."""


@dataclass(frozen=True, slots=True)
class Table:
    """All groups, by virtual node."""

    version: Version
    groups: tuple[Group, ...]
    initial: bool = False
    """True for the tables of a job before its first commit: members start with empty state instead of proving that they
    hold it. It is journaled as False before the first Commit is sent."""
    origin: str = ""
    """The restore that the job goes back to. Members of an initial table begin with the state of that checkpoint
    instead of empty; state of another restore never counts. Unique: the manifest's URL, `#`, and the generation that
    decided it."""
    plan: Plan | None = None
    """The plan in force; in the journal only, members do not get it."""
    prepared: Plan | None = None
    """The scheduled plan, which replaces it when due; in the journal only, too."""
    at_window: tuple[tuple[int, InstanceId], ...] = ()
    """Copies without a snapshot, by virtual node and learner: they are complete once the state from before their start
    has expired (`Plan.at_window`). An instance that ignores this field sends a snapshot, which is as correct."""
    programs: Programs = ONE_OPERATOR
    """The operators of epochs. Empty in a table of the release before programs: the table is of the first program."""

    def __post_init__(self) -> None:
        if min(self.version) < 0:
            raise Bug(f"a routing table of {self.version}: below 0")
        if not 1 <= len(self.groups) <= VIRTUAL_NODES_MAX:
            raise Bug(f"a routing table of {len(self.groups)} virtual nodes, 1 to {VIRTUAL_NODES_MAX} are possible")

    def __hash__(self) -> int:
        return hash(self.version)

    @property
    def restoring(self) -> bool:
        """Whether members have to load the state of a restore."""
        return self.initial and self.origin != ""

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
        if version <= self.version or len(groups) != len(self.groups):
            raise Bug(f"{len(groups)} groups as {version} come after {len(self.groups)} groups as {self.version}")
        return replace(self, version=version, groups=tuple(groups), initial=False)

    def since(self, base: Table) -> tuple[GroupChange, ...]:
        """The changes since `base`: unchanged groups are usually the same object."""
        pairs = enumerate(zip(base.groups, self.groups, strict=True))
        return tuple((v, g.term, g.in_sync, g.learners) for v, (b, g) in pairs if b is not g and b != g)

    def amended(self, version: Version, initial: bool, changes: Sequence[GroupChange]) -> Table:
        """Inverse of since. Raises Refusal for a table that cannot follow this one."""
        with _from_outside():
            if version < self.version:
                raise Bug(f"{version} comes after {self.version}")
            groups = list(self.groups)
            for vnode, term, in_sync, learners in changes:
                if not 0 <= vnode < len(groups):
                    raise Bug(f"virtual node {vnode} of {len(groups)}")
                groups[vnode] = Group(term, in_sync, learners)
            return replace(self, version=version, groups=tuple(groups), initial=initial, plan=None, prepared=None)

    def to_journal(self) -> dict[str, Any]:
        """Plain lists and maps, with the format and the plans."""
        plans = {"plan": self.plan, "prepared": self.prepared}
        return (
            {"format": JOURNAL_FORMAT if any(p.number > 1 for p in self.programs) else 1}
            | self.to_wire()
            | {name: plan.to_wire() for name, plan in plans.items() if plan is not None}
        )

    def to_wire(self) -> dict[str, Any]:
        """Plain lists and maps (Install)."""
        document = {
            "version": list(self.version),
            "initial": self.initial,
            "origin": self.origin,
            "groups": [[list(g.term), list(g.in_sync), list(g.learners)] for g in self.groups],
        }
        if self.programs:
            document["programs"] = programs_to_wire(self.programs)
        return document | ({"at_window": [list(one) for one in self.at_window]} if self.at_window else {})

    @staticmethod
    def from_wire(doc: dict[str, Any]) -> Table:
        """Inverse of both. Raises Refusal for any other document."""
        with _from_outside():
            if doc.get("format", JOURNAL_FORMAT) > JOURNAL_FORMAT:
                raise Bug(f"its format is {doc['format']}, this release reads up to {JOURNAL_FORMAT}")
            return Table(
                version=Version(*doc["version"]),
                initial=bool(doc["initial"]),
                origin=str(doc.get("origin", "")),
                groups=tuple(
                    Group(Term(*term), tuple(map(InstanceId, in_sync)), tuple(map(InstanceId, learners)))
                    for term, in_sync, learners in doc["groups"]
                ),
                plan=_plan(doc.get("plan")),
                prepared=_plan(doc.get("prepared")),
                at_window=tuple((int(vnode), InstanceId(i)) for vnode, i in doc.get("at_window", ())),
                programs=programs_from_wire(doc.get("programs", ())),
            )


def _plan(document: Any) -> Plan | None:
    """The plan of a document; None also if only a later version can carry it out: the planner then sees no plan."""
    try:
        return None if document is None else Plan.from_wire(document)
    except ValueError:
        return None


@contextmanager
def _from_outside() -> Iterator[None]:
    """A wrong table of a peer or the journal is a Refusal, not a bug of this process."""
    try:
        yield
    except (Bug, KeyError, TypeError, ValueError) as error:
        raise Refusal(f"this is no routing table: {type(error).__name__}: {error}") from error
