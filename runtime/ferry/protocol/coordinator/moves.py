"""Moves: one step of the groups towards the plan, between two epochs.

Plan --> joined --> Warm --> in sync --> switched --> cleaned        (groups.regroup decides, the journal makes it so)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ferry.contract import messages as m
from ferry.contract.errors import Bug
from ferry.contract.names import CommitId, InstanceId
from ferry.contract.plans import Placement, Plan
from ferry.contract.routing import Group, Table, Version
from ferry.protocol.backoff import Backoff
from ferry.protocol.coordinator import groups as g
from ferry.protocol.coordinator.commits import Commits
from ferry.protocol.coordinator.io import Phase
from ferry.protocol.coordinator.journaling import Journaling
from ferry.protocol.coordinator.membership import Membership
from ferry.protocol.coordinator.reachability import Reachability
from ferry.protocol.coordinator.state import DriverState

Copy = tuple[InstanceId, int]
"""An instance, and a virtual node that it learns."""


PLAN_DEADLINES = 3
"""A plan may make no progress for this many times the deadline of a copy."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """An abandoned copy, and why."""

    backoff: Backoff
    reason: str


class Moves:
    """The desired placement, and the progress towards it."""

    def __init__(
        self,
        driver: DriverState,
        journaling: Journaling,
        members: Membership,
        reachability: Reachability,
        commits: Commits,
        first: tuple[Placement, ...],
    ) -> None:
        self._driver = driver
        self._journaling = journaling
        self._members = members
        self._reachability = reachability
        self._commits = commits
        self._first = first
        """Placement of the virtual nodes of a new job."""
        self._wanted: tuple[Plan | None, Sequence[Placement]] = None, ()
        """Cache: a plan, and its present placements."""
        self._enough: Table | None = None
        """Cache: a table in which no group lacks members, without a plan."""
        self.switched_at: int | None = None
        """The last committed epoch at the time of the last switchover."""
        self.refused: dict[Copy, GivenUp] = {}
        self._warm: dict[Copy, CommitId | None] = {}
        """Complete copies, and as of which committed step."""
        self._learning: dict[Copy, tuple[InstanceId, Version]] = {}
        """The present leader of a copy under way, and the table since which the copy is learned from that leader."""
        self._joined: dict[Copy, int] = {}
        """When a copy began, or last made progress."""
        self._forward: int | None = None
        """When the plan in force last made progress: a step begun, a copy complete or begun, a new leader. None: not
        checked yet, because the driver's clock is set after construction."""

    # ---- input
    def submitted(self, plan: Plan) -> None:
        """Take a submitted plan."""
        if self.plan is None or plan.number > self.plan.number:
            if len(plan.placements) != (virtual_nodes := self._journaling.table.virtual_nodes):
                raise Bug(f"{len(plan.placements)} placements for {virtual_nodes} virtual nodes")
            self._journaling.prepared, self.refused = plan, {}

    @property
    def plan(self) -> Plan | None:
        """The newest plan: in force, or prepared."""
        return self._journaling.prepared or self._journaling.plan

    def came_along(self, event: m.Learned) -> None:
        """A move with progress gets more time, and so do the moves that wait for it."""
        for v, leader in self._journaling.view.learned.get(event.instance, {}).items():
            key = event.instance, v
            if leader == event.leader and key in self._joined:
                self._joined[key] = self._driver.now
                if key not in self.given_up():
                    self._forward = self._driver.now

    def is_warm(self, event: m.Warm) -> None:
        """Copies are complete, if they are still learned from that leader."""
        any_version = not self._driver.rules.warm_version
        for key in [(event.instance, v) for v in event.vnodes]:
            present = key in self._learning and (event.version >= self._learning[key][1] or any_version)
            if present and event.instance in self._members.alive:
                self._warm[key] = event.commit_id

    def forget(self, instance: InstanceId) -> None:
        """The instance's next life may lack its files."""
        for key in [k for k in self._warm if k[0] == instance]:
            del self._warm[key]

    def refuse(self, instance: InstanceId, vnodes: Sequence[int], reason: str) -> None:
        """Abandon these moves for a while."""
        settings = self._driver.settings
        for key in [(instance, v) for v in vnodes]:
            before = self.refused[key].backoff if key in self.refused else None
            backoff = Backoff.after(before, self._driver.now, settings.retry_ms, settings.retry_max_ms)
            self.refused[key] = GivenUp(backoff, reason)
        text = (
            f"{len(vnodes)} copies on {instance} are abandoned, and begin again in {backoff.wait / 1000:g} s: {reason}"
        )
        self._driver.note("given-up", text)

    def refuse_removed(self, changes: Sequence[g.GroupChange], reason: str) -> None:
        """Abandon for a while the copies that these changes remove."""
        removed: dict[InstanceId, list[int]] = {}
        for c in changes:
            if c.kind == "removed":
                removed.setdefault(c.instance, []).append(c.vnode)
        for i in sorted(removed):
            self.refuse(i, removed[i], reason)

    def given_up(self) -> dict[Copy, GivenUp]:
        """Moves that are abandoned for a while."""
        now = self._driver.now
        return {key: refusal for key, refusal in self.refused.items() if now < refusal.backoff.until}

    # ---- a table is in force
    def table_changed(self, changes: Sequence[g.GroupChange]) -> None:
        """Reports of learners count only for the leader from which they still learn."""
        before, self._learning = self._learning, {}
        view = self._journaling.view
        for i, learned in view.learned.items():
            for v, leader in learned.items():
                key = i, v
                if key in before and before[key][0] == leader:
                    self._learning[key] = before[key]
                    continue
                self._learning[key] = leader, view.version
                if self._driver.rules.warm_version:
                    self._warm.pop(key, None)
        for key in [k for k in self._warm if k not in self._learning]:
            del self._warm[key]
        for c in changes:
            if c.kind in ("joined", "demoted"):
                self._joined[(c.instance, c.vnode)] = self._driver.now

    # ---- one step
    def placements(self) -> Sequence[Placement]:
        """The present placement of every virtual node."""
        return self._wanted_by(self._begun())

    def _wanted_by(self, plan: Plan | None) -> Sequence[Placement]:
        """Without a plan: present placements, with the first members again in groups that lack some: an instance may
        have been too late for the first table, or be back without its files."""
        if plan is None:
            return tuple(map(g.completed, self._journaling.table.groups, self._first))
        known = self._wanted  # Other threads read it, too.
        if known[0] is not plan:
            self._wanted = known = plan, plan.wanted()
        return known[1]

    def _begun(self) -> Plan | None:
        """The plan in force; or the due one at its begin: virtual nodes stay in place until their step."""
        journaling, commits = self._journaling, self._commits
        due = journaling.prepared
        if due is None or not due.is_due(commits.following.epoch, commits.watermark):
            return journaling.plan
        return replace(due, before=tuple(group.in_sync for group in journaling.table.groups), reached=0)

    def regrouped(self, epoch_begins: bool = True) -> g.Regrouped | None:
        """The next change between two epochs; None if there is none, or not now.

        A further step begins only when an epoch begins: while epochs are held back, only the step under way goes on.
        """
        if self._may_not_change() or self._members.away():
            self._forward = self._driver.now
            return None
        self._refuse_stuck()
        if epoch_begins:
            self._roll_back()
        committed = self._commits.committed
        epoch = committed.step.epoch if committed else -1
        plan, groups, changes = self._next(epoch if epoch_begins else None)
        for c in changes:
            if c.kind == "in-sync":
                self.refused.pop((c.instance, c.vnode), None)
        if plan is not None:
            plan = plan.with_needed_boundaries(lambda v: groups[v].in_sync)
        if any(c.kind == "switched" for c in changes):
            self.switched_at = epoch
        journaling = self._journaling
        if plan is not journaling.plan or any(c.kind in ("in-sync", "switched", "promoted") for c in changes):
            self._forward = self._driver.now
        journaling.plan = plan
        if not changes and self._is_over(plan):
            assert plan is not None
            journaling.plan = replace(plan, before=())
        if plan is not None and journaling.prepared is not None and plan.number == journaling.prepared.number:
            journaling.prepared = None
        return (groups, changes) if changes or not journaling.has_plans() else None

    def _roll_back(self) -> None:
        """Roll back a plan without progress for long, unless virtual nodes would lose copies by it."""
        plan, now, limit = self._journaling.plan, self._driver.now, self._deadlines()[1]
        if self._forward is None:
            self._forward = now
        if plan is None or not plan.before or now - self._forward <= limit:
            return
        self._forward = now
        reasons = sorted({given_up.reason for given_up in self.refused.values()})
        why = f"no progress for {limit / 1000:g} s" + (f": {reasons[0]}" if reasons else "")
        back = plan.rolled_back(self._members.alive, why)
        if back.placements != plan.placements:
            self._journaling.plan, self.refused = back, {}
            self._driver.note("rolled-back", f"plan {plan.number} is rolled back: {why}")

    def _is_over(self, plan: Plan | None) -> bool:
        """Whether the plan has just ended: later failures do not concern it."""
        if plan is None or not plan.before or plan.reached < len(plan.steps) or self._journaling.view.learned:
            return False
        pairs = zip(self._journaling.table.groups, plan.placements, strict=True)
        return all(group.leader == to[0] and all(i in group.in_sync for i in to) for group, to in pairs)

    def holds_epochs(self) -> bool:
        """Whether no epoch may begin until copies for new leaders are complete. Failures that stop the copies end the
        waiting, too, and abandoned copies are made while epochs go on."""
        plan, journaling, commits = self._journaling.plan, self._journaling, self._commits
        if plan is None or plan.warm or commits.committed is None or not commits.readable:
            # A copy of an epoch whose rows were released would not know that.
            return False
        if not journaling.up or self._members.away():
            return False
        groups, to = (journaling.writing or journaling.table).groups, plan.placements
        moving = [(i, v) for v, group in enumerate(groups) if group.leader != to[v][0] for i in group.learners]
        return any(key not in self.refused and key[1] not in plan.at_window for key in moving)

    def pending(self) -> bool:
        """Whether group changes wait for an epoch, perhaps for the gap to pass: without data, a tick has to begin
        one."""
        if self._driver.phase is not Phase.IDLE or self._may_not_change():
            return False
        view = self._journaling.view
        # An epoch without data ends no window.
        copied = any((v, i) not in view.at_window for i, learned in view.learned.items() for v in learned)
        return copied or bool(self._next(None)[2]) or self._goes_on()

    def _goes_on(self) -> bool:
        """Whether the next step of the plan can begin, or a submitted plan is not journaled yet."""
        plan = self._begun()
        has_steps = plan is not None and plan.reached < len(plan.steps) and self._can_begin(plan)
        return has_steps or not self._journaling.has_plans()

    def _can_begin(self, plan: Plan) -> bool:
        """Whether all targets of the next step are alive. Later steps wait, too: steps are ordered."""
        return all(i in self._members.alive for i in plan.next_targets())

    def _next(self, epoch: int | None) -> tuple[Plan | None, list[Group], list[g.GroupChange]]:
        """The plan after its next step, if one begins, and the resulting changes; None: no further step begins."""
        plan = self._begun()
        groups, changes = self._regrouped_by(plan)
        if plan is None or plan.reached >= len(plan.steps) or epoch is None or not self._can_begin(plan):
            return plan, groups, changes
        in_gap = self.switched_at is not None and epoch - self.switched_at < plan.gap
        if in_gap:
            self._forward = self._driver.now
        if in_gap or g.is_under_way(self._journaling.table, changes, plan.begun().difference(plan.at_window)):
            return plan, groups, changes
        plan = plan.with_next_step()
        return plan, *self._regrouped_by(plan)

    def _deadlines(self) -> tuple[int, int]:
        """Milliseconds without progress: of a copy, and of a plan."""
        settings, plan = self._driver.settings, self._journaling.plan
        if plan is None or not plan.deadline:
            return settings.warm_ms, settings.plan_ms
        return plan.deadline, PLAN_DEADLINES * plan.deadline

    def _may_not_change(self) -> bool:
        journaling = self._journaling
        return journaling.writing is not None or not journaling.up or self._nothing_wanted()

    def _nothing_wanted(self) -> bool:
        """Whether groups may stay unchanged, without checking each."""
        if self.plan is not None or self._journaling.view.learned:
            return False
        if (table := self._journaling.table) is not self._enough:
            if any(len(group.in_sync) < len(first) for group, first in zip(table.groups, self._first, strict=True)):
                return False
            self._enough = table
        return True

    def _refuse_stuck(self) -> None:
        """Abandon moves without data for long."""
        learned, settings = self._journaling.view.learned, self._driver.settings
        held = self._driver.phase is Phase.HOLD
        warm_ms = min(self._deadlines()[0], settings.attempt_ms) if held else self._deadlines()[0]
        stuck: dict[InstanceId, list[int]] = {}
        for (i, v), since in list(self._joined.items()):
            if v not in learned.get(i, {}):
                del self._joined[(i, v)]
            elif self._driver.now - since > warm_ms:
                stuck.setdefault(i, []).append(v)
        for i in sorted(stuck):
            leaders = sorted({learned[i][v]: True for v in stuck[i]})
            self.refuse(i, stuck[i], f"no data from {', '.join(leaders[:4])} for {warm_ms / 1000:g} s")

    def _regrouped_by(self, plan: Plan | None) -> g.Regrouped:
        return g.regroup(
            self._journaling.table,
            self._wanted_by(plan),
            self._members.alive,
            self._warm,
            self._commits.committed,
            self.given_up(),
            self._driver.generation,
            self._driver.rules,
            self._reachability.may_lead,
        )
