"""Invariants (docs/design.md, section 4), checked after every step, separate from the simulated world.

`Violation` is damage: rows lost, doubled or of two attempts; members that disagree; a watermark that went back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferry.contract import messages as m
from ferry.contract.names import CommitId, Fragment, InstanceId, Step, Term
from ferry.contract.plans import Plan
from ferry.contract.routing import Table, Version
from ferry.protocol import coordinator as dcore
from ferry.protocol import instance as icore
from ferry.protocol.coordinator.groups import GroupChange
from tests.sim import data, spark

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.world import World


class Violation(Exception):
    """An invariant is broken."""


class Livelock(Exception):
    """The job makes no progress although every fault is healed."""


class Checks:
    """Sees the whole world, and changes no part of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.fragments: dict[Fragment, list[tuple[int, data.Record]]] = {}
        """Records, each with the operator (or SOURCE) it was read from."""
        self.prepares: dict[CommitId, m.Prepare] = {}
        self.root = data.Reference.root(len(world.timers), world.vnodes)
        self.references: dict[CommitId | None, data.Reference] = {None: self.root}
        self.leaders: dict[tuple[int, Term], InstanceId] = {}
        self.known: dict[Version, Table] = {}
        """Tables whose leaders were checked."""
        self.held: dict[str, dict[int, bool]] = {}
        """In-sync members of the journal, and the virtual nodes that they hold."""
        self.emitted_label: dict[int, CommitId] = {}
        self.emitted_in: dict[int, int] = {}
        """The run that wrote an epoch to the sinks: each run numbers its attempts from the begin."""
        self.covered: dict[CommitId, spark.Range] = {}
        """The blocks of the source in a committed step."""
        self.read_label: dict[Step, CommitId] = {}

    def fail(self, what: str) -> None:
        raise Violation(what)

    # ---- attempts and the reference
    def prepared(self, prepare: m.Prepare) -> None:
        commit_id = CommitId(prepare.step, prepare.attempt)
        known = self.prepares.get(commit_id)
        if known is not None and known.winners != prepare.winners:
            self.fail(f"{commit_id} names two inputs: {known.winners} and {prepare.winners}")
        self.prepares[commit_id] = prepare

    def applies(self, host: Host, commit_id: CommitId) -> None:
        """A member begins to apply a committed attempt: from now on the attempt has a reference."""
        if commit_id in self.references or not host.files.saved.holds:
            return
        journal = self.world.journal
        if journal is not None and host.files.saved.origin != journal.origin and commit_id not in self.prepares:
            return  # A process that was frozen during a restore continues with old state; no table has it as a member.
        parent = self.references.get(host.files.saved.committed)
        if parent is None:
            self.fail(
                f"{host.name} applies {commit_id} on top of {host.files.saved.committed}, which no member applied"
            )
            return
        p = self.prepares[commit_id]
        batch = [r for _, fragments in p.winners for f in fragments for r in self.fragments[f]]
        graph = self.world.graph_at(commit_id.step.epoch)
        node = graph[commit_id.step.operator]
        reference = parent.follow(commit_id, batch, graph, self.world.vnodes, self.world.timers)
        before = parent.begins(graph) if commit_id.step.operator == 0 else parent
        watermarks = before.highs[node.id], reference.highs[node.id]
        if (p.low, p.high) != watermarks:
            self.fail(f"{commit_id} was prepared with watermarks {(p.low, p.high)}, committed inputs say {watermarks}")
        for origin in node.inputs:
            if origin != data.SOURCE:
                have = sorted(record for one, record in batch if one == origin)
                want = sorted(data.as_records(parent.fired[origin]))
                if have != want:
                    self.fail(f"{commit_id} is of other rows than operator {origin} fired: {have} {want}")
        self.references[commit_id] = reference

    # ---- members
    def saved(self, host: Host, before: icore.InstanceRecord) -> None:
        now = host.files.saved
        if now.generation < before.generation:
            self.fail(f"{host.name}: generation went back")
        if before.committing is not None and now.committing is None and now.committed != before.committing.commit_id:
            if host.lost_at < 0 or now.holds:
                self.fail(f"{host.name}: gives up {before.committing.commit_id}, which it has begun to apply")
            return  # It has lost its copy, like an instance without files.
        first = len(self.references) == 1 and not host.with_earlier_life
        given = max(self.emitted_label.values(), default=None)
        outdated = host.stale and given is not None and (now.committed is None or now.committed < given)
        if now.holds != before.holds and (now.committed is not None or first) and not outdated:
            # An empty instance that gets the first table of the job from a zombie has no copy of later epochs, nor of epochs
            # that its own earlier life applies. An instance with an older disk may hold state that no other instance has any
            # more; it is no copy either. That job ends, because Spark is ahead of this state.
            host.stale, host.lost_at = False, -1
        if now.committed != before.committed:
            if host.name in self.held:
                for old, new in zip(before.results, now.results, strict=False):
                    if new.high < old.high:
                        self.fail(f"{host.name}: watermark went back from {old.high} to {new.high}")
                if before.committed is not None and now.committed is not None:
                    if before.committed.step >= now.committed.step and before.holds:
                        self.fail(f"{host.name}: committed {now.committed} after {before.committed}")
            self.contents(host, before.holds)
            self.agreement()
            if now.committed is not None:
                self.covered[now.committed] = spark.covered(now.meta)

    def contents(self, host: Host, vnodes: tuple[int, ...]) -> None:
        """State of an in-sync member equals the reference of its commit id."""
        held, commit_id = self.held.get(host.name), host.files.saved.committed
        if held is None or commit_id is None:
            return
        reference = self.references.get(commit_id)
        for v in vnodes:
            if v not in held:
                continue
            if reference is None:
                self.fail(f"{host.name} is in sync for virtual node {v} at {commit_id}, which no member has applied")
                return
            over = host.files.saved.released >= commit_id.step.epoch
            lows, live = reference.highs if over else reference.lows, reference.live[v]
            have = host.files.state.get(v, {})
            if have != live:
                have = {r: x for r, x in have.items() if r[0] in reference.ran}
                timers, released = self.world.timers, max(commit_id.step.epoch - 1, host.files.saved.released)
                have = {r: x for r, x in have.items() if data.lives(timers, r, lows, released)}
                live = {r: x for r, x in live.items() if data.lives(timers, r, lows, released)}
            if have != live:
                self.fail(f"{host.name} holds {have} for virtual node {v} at {commit_id}, not {live}")

    def agreement(self) -> None:
        """In-sync members agree on every committed step and are at most one step apart."""
        if self.world.journal is not None and self.world.journal.restoring:
            return  # Some members have loaded the checkpoint, others load it later.
        commit_ids: dict[Step, tuple[CommitId, str]] = {}
        ordinals = []
        for name in self.held:
            host = self.world.hosts[name]
            commit_id = host.files.saved.committed
            if (
                not host.files.saved.holds
                or host.stale
                or (commit_id is None and (not host.alive or host.lost_at >= 0))
            ):
                continue
            if commit_id is None:
                ordinals.append(-1)
                continue
            ordinals.append(self.world.ordinal(commit_id.step))
            other = commit_ids.setdefault(commit_id.step, (commit_id, name))
            if other[0] != commit_id:
                self.fail(f"members disagree: {name} committed {commit_id}, {other[1]} {other[0]}")
        if ordinals and max(ordinals) - min(ordinals) > 1:
            self.fail(f"in-sync members are more than one step apart: {sorted(ordinals)}")

    # ---- groups
    def journaled(self, before: Table | None, table: Table) -> None:
        self.installed(table)
        self.deployed(table)
        if before is not None and (before.plan is not None or table.plan is not None):
            self.planned(before, table)
        self.held = {}
        for v, group in enumerate(table.groups):
            for name in group.in_sync:
                self.held.setdefault(name, {})[v] = True
            old = before.groups[v].in_sync if before else group.in_sync
            for name in group.in_sync:
                if name in old or table.restoring:
                    continue  # Members of a restore load the checkpoint; state of the life before it counts for nothing.
                host = self.world.hosts[name]
                # A member that has lost its files, or has older files, reports that in its answer, and then counts as no
                # copy.
                if not host.stale and (host.lost_at < 0 or host.files.saved.committed is not None):
                    self.contents(host, (v,))

    def deployed(self, table: Table) -> None:
        """A program is in force from an epoch that has done nothing; it stays, unless it is taken back."""
        since = self.world.since
        for number in [n for n in since if n > table.programs[-1].number]:
            if not table.restoring:
                self.taken_back(number, since[number])
            del since[number]
        for program in table.programs:
            if since.setdefault(program.number, program.since) != program.since:
                self.fail(
                    f"program {program.number} is in force from {since[program.number]} and from {program.since} on"
                )
            if program.operators != tuple(node.id for node in self.world.graphs[program.number]):
                self.fail(f"program {program.number} has the operators {program.operators}")

    def taken_back(self, number: int, since: int) -> None:
        """A program is taken back only if no member has a step of it."""
        for name in self.held:
            saved = self.world.hosts[name].files.saved
            for commit_id in (saved.committed, saved.committing.commit_id if saved.committing is not None else None):
                if commit_id is not None and commit_id.step.epoch >= since and saved.holds:
                    self.fail(f"program {number} is taken back, and {name} has {commit_id}")
        if max((label.step.epoch for label in self.emitted_label.values()), default=-1) >= since:
            self.fail(f"program {number} is taken back, and the sinks have epoch {since}")

    def planned(self, before: Table, table: Table) -> None:
        """A plan only goes forward. Before its step only a former or in-sync member may lead: a leader may be lost."""
        plan, former = table.plan, before.plan
        if plan is None or plan.number not in self.world.plans:
            self.fail(f"an unknown plan: {plan}")
            return
        if plan.undone:
            self.undone(plan, former)
        elif former is not None and (plan.number, plan.reached) < (former.number, former.reached):
            self.fail(f"plan {former.number}, step {former.reached} becomes plan {plan.number}, step {plan.reached}")
        for v, (old, new) in enumerate(zip(before.groups, table.groups, strict=True)):
            is_later = all(v not in vnodes for step in plan.steps[: plan.reached] for vnodes in step)
            is_named = any(v in vnodes for step in plan.steps for vnodes in step)
            if is_named and is_later and new.leader not in (old.leader, *old.in_sync, *plan.before[v]):
                self.fail(f"{new.leader} leads virtual node {v}, and its step has not begun")

    def undone(self, plan: Plan, former: Plan | None) -> None:
        """A plan that is rolled back ends with the old or the new placement of each virtual node, and with no fewer copies."""
        if former is None or former.number != plan.number:
            self.fail(f"plan {plan.number} is rolled back, and was not in force")
        elif not former.undone:
            for v, (old, new, now) in enumerate(zip(former.before, former.placements, plan.placements, strict=True)):
                if now not in (old, new) or len(now) < len(new):
                    self.fail(f"virtual node {v}, from {old} to {new}, is rolled back to {now}")

    def demoted(self, changes: list[GroupChange]) -> None:
        """Only a slow replica is demoted."""
        for c in changes:
            if not self.world.hosts[c.instance].was_slow:
                self.fail(f"{c.instance}, which was never slow, is demoted")

    def installed(self, table: Table) -> None:
        """One leader per virtual node and term."""
        if self.known.get(table.version) is table:
            return
        self.known[table.version] = table
        for v, group in enumerate(table.groups):
            leader = self.leaders.setdefault((v, group.term), group.leader)
            if leader != group.leader:
                self.fail(f"virtual node {v} has two leaders in {group.term}: {leader} and {group.leader}")

    # ---- the sink
    def emitted(self, order: dcore.Emit, got: tuple[list[Any], ...]) -> None:
        epoch, last = order.step.epoch, order.rows[-1].commit_id
        reference = self.references.get(last)
        if reference is None:
            self.fail(f"rows of {last} are given to the sinks, which no member applied")
            return
        if got != reference.fired:
            self.fail(f"the sinks get {got} for epoch {epoch}, {last} fires {reference.fired}")
        at: data.Reference | None = reference
        for rows in reversed(order.rows):
            if at is None or rows.commit_id != at.commit_id or rows.late != at.late:
                self.fail(f"epoch {epoch}: {rows} is given to the sinks, {at} was committed")
                return
            at = at.parent
        other = self.emitted_label.setdefault(epoch, last)
        self.emitted_in.setdefault(epoch, self.world.run_number)
        if other != last:
            self.fail(f"epoch {epoch} was given to the sinks as {other} and as {last}")

    def spark_committed(self, epoch: int) -> None:
        if epoch not in self.world.sink:
            self.fail(f"Spark committed epoch {epoch}, the sink has nothing")
        log, made = self.world.spark.offsets, self.covered[self.emitted_label[epoch]]
        # The log may be lost: the next driver writes it again; for the epoch before its own it writes only the end.
        if epoch in log and log[epoch] not in (made, (made[1], made[1])):
            self.fail(f"Spark committed epoch {epoch} as blocks {log[epoch]}, the sink has blocks {made}")
        if epoch - 1 in self.emitted_label and self.covered[self.emitted_label[epoch - 1]][1] != made[0]:
            before = self.covered[self.emitted_label[epoch - 1]]
            self.fail(f"the sink has blocks {before} for epoch {epoch - 1}, and {made} for epoch {epoch}")

    def end(self) -> None:
        """At the end the sink has the rows that a single process would have written."""
        world = self.world
        reference = self.root
        for epoch in range(world.spark.ended() + 1):
            last = self.references[self.emitted_label[epoch]]
            for operator in reversed(range(len(world.graph_at(epoch)))):
                if last.commit_id is None or last.commit_id.step != Step(epoch, operator) or last.parent is None:
                    self.fail(f"epoch {epoch} ends with {last.commit_id} in place of operator {operator}")
                    return
                last = last.parent
            if last is not reference:
                self.fail(f"epoch {epoch} follows {last.commit_id}, not {reference.commit_id}")
            reference = self.references[self.emitted_label[epoch]]
            if world.sink[epoch][1] != reference.fired:
                self.fail(f"the sink holds {world.sink[epoch][1]} for epoch {epoch}, not {reference.fired}")
        if not world.varied:
            self.oracle()

    def oracle(self) -> None:
        """All input through a single process, without attempts."""
        world, reference = self.world, self.root
        for epoch in range(world.spark.ended() + 1):
            blocks = self.covered[self.emitted_label[epoch]]
            records = [r for s in data.between(world.seed, blocks, (0, 0), world.keys, world.splits) for r in s]
            graph = world.graph_at(epoch)
            for operator, node in enumerate(graph):
                commit_id = CommitId(Step(epoch, operator), self.emitted_label[epoch].attempt)
                batch: list[tuple[int, data.Record]] = []
                for origin in node.inputs:
                    of_it = records if origin == data.SOURCE else data.as_records(reference.fired[origin])
                    batch += [(origin, record) for record in of_it]
                reference = reference.follow(commit_id, batch, graph, world.vnodes, world.timers)
            if world.sink[epoch][1] != reference.fired:
                self.fail(f"epoch {epoch}: sink {world.sink[epoch][1]}, oracle {reference.fired}")
