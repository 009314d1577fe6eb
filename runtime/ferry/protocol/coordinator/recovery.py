"""Recovery: what a new driver concludes from the members' answers; pure functions.

Every in-sync member of the newest journaled groups answers with its committed step. The highest one is final: the other
members have its deltas in their logs. A member that has neither the step nor its deltas is no copy any more
(docs/design.md, section 6).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ferry.contract import messages as m
from ferry.contract.names import CommitId, InstanceId
from ferry.contract.programs import Programs
from ferry.contract.routing import Group, Table
from ferry.protocol.coordinator.groups import GroupChange, next_term
from ferry.protocol.rules import Rules
from ferry.protocol.steps import step_of, successor
from ferry.protocol.view import TableView


@dataclass(slots=True)
class Survey:
    """The conclusion from the answers."""

    best: CommitId | None
    """The highest committed step."""
    source: m.Answer | None
    """The answer of a member that committed it."""
    groups: list[Group] = field(default_factory=list)
    """Groups of the members that are copies."""
    changes: list[GroupChange] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    """Virtual nodes that only silent members may hold."""
    dead: list[int] = field(default_factory=list)
    """Virtual nodes without a holder: all members have answered without them."""


def agrees(answer: m.Answer, target: CommitId | None, programs: Programs, rules: Rules) -> bool:
    """Whether an instance is as of `target`, or one step behind with the delta of `target` in its log."""
    if answer.committed == target or not rules.compare_commit_id:
        return True
    if target is None:
        return False
    behind = successor(step_of(answer.committed, programs), programs) == target.step
    return behind and target in answer.prepared


def lacking(answer: m.Answer, view: TableView, target: CommitId | None, rules: Rules) -> dict[int, object] | None:
    """The state of its groups that an instance lacks: some virtual nodes, or all (None)."""
    held = view.held.get(answer.instance, ())
    if not held or view.table.restoring:
        return {}  # A restore loads all state, whatever was held before.
    if not agrees(answer, target, view.table.programs, rules):
        return None
    if view.table.initial or not rules.whole_flag:
        return {}
    has = dict.fromkeys(answer.holds)
    return {v: True for v in held if v not in has}


def needed(view: TableView, rules: Rules) -> list[InstanceId]:
    """Members whose answers decide which step is committed."""
    return list(view.held) if rules.ask_all else list(view.led)


def newer(known: m.Answer | None, answer: m.Answer) -> m.Answer | None:
    """The answer of the higher committed step; None while no step is committed."""
    if answer.committed is None or (
        known is not None and known.committed is not None and answer.committed <= known.committed
    ):
        return known
    return answer


def survey(
    table: Table,
    view: TableView,
    answers: Mapping[InstanceId, m.Answer],
    heard: m.Answer | None,
    generation: int,
    rules: Rules,
) -> Survey:
    """Weigh the answers of the in-sync members of `table`; members that did not answer count as lost.

    `heard` is the newest answer, also of members that are lost by now: a step that was committed once is not repeated,
    even when all members come back with older files.
    """
    present = [answers[i] for i in view.held if i in answers]
    commit_ids = [a.committed for a in present if a.committed is not None]
    source = heard
    if not rules.adopt and commit_ids:
        oldest = min(commit_ids) if len(commit_ids) == len(present) else None
        source = next((a for a in present if a.committed == oldest), None)
    best = source.committed if source is not None else None
    out = Survey(best, source)
    must = dict.fromkeys(needed(view, rules))
    whole: dict[InstanceId, dict[int, None] | None] = {}
    for i in view.held:
        if i not in answers:
            whole[i] = {} if i in must else None
        elif not agrees(answers[i], best, table.programs, rules):
            whole[i] = {}
        else:
            # In the first table of a job all state is empty, so every member holds all of it. None stands for all.
            whole[i] = None if table.initial or not rules.whole_flag else dict.fromkeys(answers[i].holds)
    for vnode, group in enumerate(table.groups):
        keep = tuple(i for i in group.in_sync if (has := whole[i]) is None or vnode in has)
        if not keep:
            (out.missing if any(i not in answers for i in group.in_sync) else out.dead).append(vnode)
            keep = group.in_sync
        if keep == group.in_sync:
            out.groups.append(group)
            continue
        out.changes += [GroupChange(vnode, "removed", i) for i in group.in_sync if i not in keep]
        if keep[0] != group.leader:
            out.changes.append(GroupChange(vnode, "promoted", keep[0]))
        out.groups.append(Group(next_term(group, generation), keep, group.learners))
    return out
