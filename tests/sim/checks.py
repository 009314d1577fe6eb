"""What must always hold, checked after every step, apart from the world that moves.

`Violation` is damage: rows lost, doubled or of two attempts; members that disagree; a watermark that went back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferry.contract import messages as m
from ferry.contract.names import CommitId, InstanceId, Step, Term
from ferry.contract.routing import Table, Version
from ferry.protocol import coordinator as dcore
from ferry.protocol import instance as icore
from ferry.protocol.groups import GroupChange
from tests.sim import data, spark

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.world import World


class Violation(Exception):
    """An invariant is broken."""


class Livelock(Exception):
    """Nothing moves although every fault is healed."""


class Checks:
    """Knows everything, touches nothing."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.fragments: dict[m.Fragment, list[data.Record]] = {}
        self.prepares: dict[CommitId, m.Prepare] = {}
        self.root = data.Reference(None, live={v: {} for v in range(world.vnodes)})
        self.references: dict[CommitId | None, data.Reference] = {None: self.root}
        self.leaders: dict[tuple[int, Term], InstanceId] = {}
        self.known: dict[Version, Table] = {}
        """Tables of which the leaders were looked at."""
        self.held: dict[str, dict[int, bool]] = {}
        """In-sync members of the journal, and the virtual nodes that they hold."""
        self.emitted_label: dict[int, CommitId] = {}
        self.covered: dict[CommitId, spark.Range] = {}
        """What of the source a committed label is made of."""
        self.read_label: dict[Step, CommitId] = {}

    def fail(self, what: str) -> None:
        raise Violation(what)

    # ---- attempts and the reference
    def prepared(self, prepare: m.Prepare) -> None:
        label = CommitId(prepare.step, prepare.attempt)
        known = self.prepares.get(label)
        if known is not None and known.winners != prepare.winners:
            self.fail(f"label {label} names two inputs: {known.winners} and {prepare.winners}")
        self.prepares[label] = prepare

    def put(self, host: Host, label: CommitId) -> None:
        """A member begins to put a label: from now on there is a reference for it."""
        if label in self.references or not host.files.saved.holds:
            return
        parent = self.references.get(host.files.saved.committed)
        if parent is None:
            self.fail(f"{host.name} puts {label} on top of {host.files.saved.committed}, which nobody put")
            return
        p = self.prepares[label]
        batch = [r for _, fragments in p.winners for f in fragments for r in self.fragments[f]]
        reference = parent.follow(label, batch, self.world.vnodes)
        if (p.low, p.high) != (reference.low, reference.high):
            self.fail(
                f"{label} was prepared with watermarks {(p.low, p.high)}, committed inputs say "
                f"{(reference.low, reference.high)}"
            )
        if label.step.operator:
            want = sorted(data.as_records(label.step.operator - 1, parent.fired))
            if sorted(batch) != want:
                self.fail(f"{label} is of other rows than the operator before fired: {sorted(batch)} {want}")
        self.references[label] = reference

    # ---- members
    def saved(self, host: Host, before: icore.Saved) -> None:
        now = host.files.saved
        if now.generation < before.generation:
            self.fail(f"{host.name}: generation went back")
        if before.committing is not None and now.committing is None and now.committed != before.committing.label:
            if host.lost_at < 0 or now.holds:
                self.fail(f"{host.name}: gives up {before.committing.label}, which it has begun to put")
            return  # It is no copy, as one without files.
        first = len(self.references) == 1 and not host.strangers
        if now.holds != before.holds and (now.committed is not None or first):
            # An empty one that takes the first table of the job from a zombie is no copy of what was put since, nor of
            # what is put by an earlier life of it.
            host.stale, host.lost_at = False, -1
        if now.committed != before.committed:
            if host.name in self.held:
                if now.high < before.high:
                    self.fail(f"{host.name}: watermark went back from {before.high} to {now.high}")
                if before.committed is not None and now.committed is not None:
                    if before.committed.step >= now.committed.step and before.holds:
                        self.fail(f"{host.name}: committed {now.committed} after {before.committed}")
            self.contents(host, before.holds)
            self.agreement()
            if now.committed is not None:
                self.covered[now.committed] = spark.covered(now.meta)

    def contents(self, host: Host, vnodes: tuple[int, ...]) -> None:
        """State of an in-sync member equals the reference of its label."""
        held, label = self.held.get(host.name), host.files.saved.committed
        if held is None or label is None:
            return
        reference = self.references.get(label)
        for v in vnodes:
            if v not in held:
                continue
            if reference is None:
                self.fail(f"{host.name} is in sync for virtual node {v} at {label}, which no member has put")
                return
            low, live = reference.low, reference.live[v]
            have = host.files.state.get(v, {})
            if have != live:
                have = {r: x for r, x in have.items() if data.end_of(r[0], r[1]) > low}
            if have != live:
                self.fail(f"{host.name} holds {have} for virtual node {v} at {label}, not {live}")

    def agreement(self) -> None:
        """In-sync members agree on every committed step and are at most one step apart."""
        labels: dict[Step, tuple[CommitId, str]] = {}
        ordinals = []
        for name in self.held:
            host = self.world.hosts[name]
            label = host.files.saved.committed
            if not host.files.saved.holds or host.stale or (label is None and (not host.alive or host.lost_at >= 0)):
                continue
            if label is None:
                ordinals.append(-1)
                continue
            ordinals.append(label.step.epoch * self.world.operators + label.step.operator)
            other = labels.setdefault(label.step, (label, name))
            if other[0] != label:
                self.fail(f"members disagree: {name} committed {label}, {other[1]} {other[0]}")
        if ordinals and max(ordinals) - min(ordinals) > 1:
            self.fail(f"in-sync members are more than one step apart: {sorted(ordinals)}")

    # ---- groups
    def journaled(self, before: Table | None, table: Table) -> None:
        self.installed(table)
        self.held = {}
        for v, group in enumerate(table.groups):
            for name in group.in_sync:
                self.held.setdefault(name, {})[v] = True
            old = before.groups[v].in_sync if before else group.in_sync
            for name in group.in_sync:
                if name in old:
                    continue
                host = self.world.hosts[name]
                # A member that lost its files meanwhile, or found older ones, says so when it answers; it is no copy and
                # is treated as none.
                if not host.stale and (host.lost_at < 0 or host.files.saved.committed is not None):
                    self.contents(host, (v,))

    def demoted(self, changes: list[GroupChange]) -> None:
        """Only a replica that was slow is."""
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
    def emitted(self, rows: dcore.FiredRows, got: list[Any]) -> None:
        epoch = rows.label.step.epoch
        reference = self.references.get(rows.label)
        if reference is None:
            self.fail(f"rows of {rows.label} are given to the sink, which no member put")
            return
        if got != reference.fired:
            self.fail(f"the sink gets {got} for epoch {epoch}, {rows.label} fires {reference.fired}")
        if rows.late != reference.late:
            self.fail(f"epoch {epoch}: {rows.late} late records counted, {reference.late} were late")
        other = self.emitted_label.setdefault(epoch, rows.label)
        if other != rows.label:
            self.fail(f"epoch {epoch} was given to the sink as {other} and as {rows.label}")

    def spark_committed(self, epoch: int) -> None:
        if epoch not in self.world.sink:
            self.fail(f"Spark committed epoch {epoch}, the sink has nothing")
        log, made = self.world.spark.offsets, self.covered[self.emitted_label[epoch]]
        # It may be lost since: the next driver writes it again, or, of the epoch before its own, only where that ends.
        if epoch in log and log[epoch] not in (made, (made[1], made[1])):
            self.fail(f"Spark committed epoch {epoch} as blocks {log[epoch]}, the sink has blocks {made}")
        if epoch - 1 in self.emitted_label and self.covered[self.emitted_label[epoch - 1]][1] != made[0]:
            before = self.covered[self.emitted_label[epoch - 1]]
            self.fail(f"the sink has blocks {before} for epoch {epoch - 1}, and {made} for epoch {epoch}")

    def end(self) -> None:
        """The whole story: what the sink holds is what one process would have written."""
        world = self.world
        reference = self.root
        for epoch in range(world.spark.ended() + 1):
            last = self.references[self.emitted_label[epoch]]
            for operator in reversed(range(world.operators)):
                if last.label is None or last.label.step != Step(epoch, operator) or last.parent is None:
                    self.fail(f"epoch {epoch} ends with {last.label} in place of operator {operator}")
                    return
                last = last.parent
            if last is not reference:
                self.fail(f"epoch {epoch} follows {last.label}, not {reference.label}")
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
            batch = [r for s in data.between(world.seed, blocks, (0, 0), world.keys, world.splits) for r in s]
            for operator in range(world.operators):
                label = CommitId(Step(epoch, operator), self.emitted_label[epoch].attempt)
                if operator:
                    batch = data.as_records(operator - 1, reference.fired)
                reference = reference.follow(label, batch, world.vnodes)
            if world.sink[epoch][1] != reference.fired:
                self.fail(f"epoch {epoch}: sink {world.sink[epoch][1]}, oracle {reference.fired}")
