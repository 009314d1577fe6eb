"""Finds the instances that keep an attempt waiting, and groups that work around them: pure functions.

leader lacks the partials of a helper that has sent them       the two are apart
leader (or replica) has sent a delta, the next one lacks it    the two are apart, or the next one is busy: slow
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise

from ferry.contract import messages as m
from ferry.contract.names import InstanceId
from ferry.contract.routing import Group
from ferry.protocol.coordinator.groups import GroupChange, Regrouped, next_term
from ferry.protocol.view import Chain

Pair = tuple[InstanceId, InstanceId]
"""Two instances that cannot reach each other, the smaller name first."""


@dataclass(slots=True)
class Blame:
    """The instances that keep an attempt waiting."""

    apart: dict[Pair, bool] = field(default_factory=dict)
    slow: dict[Chain, InstanceId] = field(default_factory=dict)
    """Chains and the replica that has not logged its delta."""


def pair(a: InstanceId, b: InstanceId) -> Pair:
    """The name of two instances as a pair."""
    return (a, b) if a < b else (b, a)


def blame(
    chains: Iterable[Chain],
    acknowledged: Mapping[Chain, object],
    reports: Mapping[InstanceId, m.Waiting],
    at_work: Callable[[InstanceId], bool],
) -> Blame:
    """The conclusion from the reports about a slow attempt. An instance without a report is not blamed."""
    out = Blame()
    for chain in chains:
        leader = reports.get(chain[0])
        if chain in acknowledged or leader is None:
            continue
        if chain not in leader.logged:
            out.apart.update({pair(chain[0], helper): True for helper in leader.unheard if helper in reports})
            continue
        for before, i in pairwise(chain):
            if i in reports and chain in reports[i].logged:
                continue
            if at_work(i):
                out.slow[chain] = i
            else:
                out.apart[pair(before, i)] = True
            break
    return out


def around(
    groups: Sequence[Group],
    helpers: Sequence[InstanceId],
    alive: Mapping[InstanceId, object],
    apart: Callable[[InstanceId, InstanceId], bool],
    slow: Mapping[Chain, InstanceId],
    generation: int,
) -> Regrouped:
    """Groups in which no neighbours of a chain are apart and some helper reaches every leader, if possible.

    Only members in sync lead, and leaders stay if possible. A replica leaves the groups in which it cannot be reached;
    a slow replica learns again the vnodes with which it is late.
    """
    leaders = _leaders(groups, helpers, alive, apart)
    out: list[Group] = []
    changes: list[GroupChange] = []
    for vnode, (group, leader) in enumerate(zip(groups, leaders, strict=True)):
        late = slow.get(group.in_sync)
        in_sync = [leader]
        for i in group.in_sync:
            if i not in (leader, late) and not apart(in_sync[-1], i):
                in_sync.append(i)
        learners = [i for i in group.learners if not apart(leader, i)]
        if leader != group.leader:
            changes.append(GroupChange(vnode, "promoted", leader))
        if late is not None and late != leader:
            learners.append(late)
            changes.append(GroupChange(vnode, "demoted", late))
        changes += [GroupChange(vnode, "removed", i) for i in group.members if i not in in_sync and i not in learners]
        if (tuple(in_sync), tuple(learners)) == (group.in_sync, group.learners):
            out.append(group)
        else:
            out.append(Group(next_term(group, generation), tuple(in_sync), tuple(learners)))
    return out, changes


def _leaders(
    groups: Sequence[Group],
    helpers: Sequence[InstanceId],
    alive: Mapping[InstanceId, object],
    apart: Callable[[InstanceId, InstanceId], bool],
) -> Sequence[InstanceId]:
    """Leaders that one helper can reach, or the present leaders if no helper reaches a leader of each group.

    Leaders that cannot reach each other come last, fewest changes first: a helper leads too in most jobs, so two
    leaders that are apart leave fewer helpers when the next pair of instances is cut.
    """
    present = tuple(group.leader for group in groups)
    candidates: dict[tuple[InstanceId, ...], tuple[int, int]] = {}
    for helper in helpers:
        chosen = [next((i for i in g.in_sync if i in alive and not apart(helper, i)), None) for g in groups]
        whole = tuple(i for i in chosen if i is not None)
        if len(whole) == len(groups):
            among = sum(apart(a, b) for a, b in combinations(sorted(set(whole)), 2))
            candidates[whole] = among, sum(a != b for a, b in zip(whole, present, strict=True))
    return min(candidates, key=lambda whole: (candidates[whole], whole), default=present)
