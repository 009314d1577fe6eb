"""How replica groups change: pure functions from one routing table to the next.

    planned -> warming -> in sync -> switched -> cleaning -> done        (a move)
    lost member -> the chain closes over it; a lost leader -> the next in-sync member leads      (a recovery)

`regroup` is one step towards the desired placement; scale out, scale in, rebalance, drain and repair after a failure
are the same steps (docs/design.md, section 5). It runs between two epochs. `without` removes a lost member from groups
at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from ferry.contract.names import CommitId, InstanceId, Term
from ferry.contract.plans import Placement
from ferry.contract.routing import Group, Table, Version
from ferry.protocol.rules import Rules


@dataclass(frozen=True, slots=True)
class GroupChange:
    """A change of one virtual node, for people and metrics."""

    vnode: int
    kind: str
    """joined | in-sync | switched | cleaned | promoted | removed | aborted | demoted"""
    instance: InstanceId


Regrouped = tuple[list[Group], list[GroupChange]]
"""All groups of the next table, and the changes."""


def next_version(table: Table, generation: int) -> Version:
    """The version after `table`'s in `generation`."""
    number = table.version.number + 1 if table.version.generation == generation else 1
    return Version(generation, number)


def next_term(group: Group, generation: int) -> Term:
    """The term after `group`'s in `generation`."""
    return Term(generation, group.term.number + 1 if group.term.generation == generation else 1)


Losses = Mapping[InstanceId, Mapping[int, object] | None]
"""Lost instances and the virtual nodes that they lost; None: all of them."""


def without(
    table: Table, lost: Losses, generation: int, proven: Mapping[InstanceId, object] | None = None
) -> tuple[list[Group], list[GroupChange], list[int]]:
    """Groups after these losses: (groups, changes, orphans).

    A virtual node without a remaining in-sync member (with `proven`: without one known to be a copy) is an orphan: its
    group does not change, because only those members, should they come back with their files, still have the state.
    """

    def stays(i: InstanceId, vnode: int) -> bool:
        return i not in lost or ((vnodes := lost[i]) is not None and vnode not in vnodes)

    groups: list[Group] = []
    changes: list[GroupChange] = []
    orphans: list[int] = []
    for vnode, group in enumerate(table.groups):
        in_sync = tuple(i for i in group.in_sync if stays(i, vnode))
        learners = tuple(i for i in group.learners if stays(i, vnode))
        if in_sync != group.in_sync and not any(proven is None or i in proven for i in in_sync):
            orphans.append(vnode)
            in_sync = group.in_sync
        if (in_sync, learners) == (group.in_sync, group.learners):
            groups.append(group)
            continue
        changes += [GroupChange(vnode, "removed", i) for i in group.members if i not in in_sync and i not in learners]
        if in_sync[0] != group.leader:
            changes.append(GroupChange(vnode, "promoted", in_sync[0]))
        groups.append(Group(next_term(group, generation), in_sync, learners))
    return groups, changes, orphans


def elsewhere(
    table: Table, orphans: Sequence[int], groups: Sequence[Group], there: Sequence[InstanceId], generation: int
) -> tuple[list[Group], list[GroupChange]]:
    """These groups with each orphan on the living instance that leads the fewest: for a start from a checkpoint, which
    every instance can load."""
    out, changes = list(groups), list[GroupChange]()
    leads = dict.fromkeys(sorted(there), 0)
    for vnode, group in enumerate(out):
        if vnode not in orphans and group.leader in leads:
            leads[group.leader] += 1
    for vnode in orphans:
        instance = min(leads, key=lambda i: (leads[i], i))
        leads[instance] += 1
        out[vnode] = Group(next_term(table.groups[vnode], generation), (instance,))
        changes.append(GroupChange(vnode, "promoted", instance))
    return out, changes


def completed(group: Group, first: Placement) -> Placement:
    """The placement of a virtual node without an explicit one: its first members again, if some are missing.

    An explicit placement wins.
    """
    short = len(group.in_sync) < len(first) and all(i in first for i in group.members)
    return first if short else group.members


def regroup(
    table: Table,
    desired: Sequence[Placement],
    alive: Mapping[InstanceId, object],
    warm: Mapping[tuple[InstanceId, int], CommitId | None],
    committed: CommitId | None,
    refused: Mapping[tuple[InstanceId, int], object],
    generation: int,
    rules: Rules,
    may_lead: Callable[[InstanceId], bool] = lambda i: True,
) -> Regrouped:
    """One step from `table` towards `desired`, between two epochs.

    `warm`: as of which commit id a learner holds a virtual node; it becomes in sync when that is the last committed
    one. `refused`: abandoned (learner, virtual node) pairs, which are not begun again for now.
    """
    groups: list[Group] = []
    changes: list[GroupChange] = []
    for vnode, group in enumerate(table.groups):
        wanted = desired[vnode]
        want = tuple(i for i in wanted if i in alive)
        # The usual case, checked for thousands of groups in every epoch: nothing to change.
        if not want or (want == wanted == group.in_sync and not group.learners):
            groups.append(group)
            continue
        in_sync, learners = list(group.in_sync), list(group.learners)
        for i in list(learners):
            if i not in want or (i, vnode) in refused:
                learners.remove(i)
                changes.append(GroupChange(vnode, "aborted", i))
            elif (i, vnode) in warm and (warm[(i, vnode)] == committed or not rules.warm_commit_id):
                learners.remove(i)
                in_sync.append(i)
                changes.append(GroupChange(vnode, "in-sync", i))
        leader = want[0] if may_lead(want[0]) else in_sync[0]
        if leader != in_sync[0] and (leader in in_sync or (leader in learners and not rules.switched_in_sync)):
            in_sync = [leader, *(i for i in in_sync if i != leader)]
            learners = [i for i in learners if i != leader]
            changes.append(GroupChange(vnode, "switched", leader))
        elif all(i in in_sync for i in wanted):
            # Only a group at its full desired strength drops its origin: a target may die right after the switchover.
            # Its leader stays as long as the desired one may not lead.
            gone = [i for i in in_sync[1:] if i not in want]
            in_sync = [i for i in in_sync if i not in gone]
            changes += [GroupChange(vnode, "cleaned", i) for i in gone]
        missing = [i for i in want if i not in in_sync and i not in learners and (i, vnode) not in refused]
        if missing:
            learners.extend(missing)
            changes.extend(GroupChange(vnode, "joined", i) for i in missing)
        if (tuple(in_sync), tuple(learners)) == (group.in_sync, group.learners):
            groups.append(group)
        else:
            groups.append(Group(next_term(group, generation), tuple(in_sync), tuple(learners)))
    return groups, changes


def is_under_way(table: Table, changes: Sequence[GroupChange], vnodes: Collection[int]) -> bool:
    """Whether a step of a plan goes on: these virtual nodes still need changes, or get some now. Removals may come
    later."""
    return any(c.kind != "cleaned" and c.vnode in vnodes for c in changes) or any(
        table.groups[v].learners for v in vnodes
    )


def settled(table: Table, desired: Sequence[Placement], alive: Mapping[InstanceId, object]) -> bool:
    """Whether the table is as desired, as far as the desired instances are alive."""

    def right(group: Group, wanted: Placement) -> bool:
        want = [i for i in wanted if i in alive]
        return not group.learners and (not want or (group.leader == want[0] and all(i in group.in_sync for i in want)))

    return all(right(group, wanted) for group, wanted in zip(table.groups, desired, strict=True))
