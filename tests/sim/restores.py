"""Disasters of the simulated world, and the way back: which checkpoint, by which driver, onto which instances.

Everything is lost at once, and a new run begins from the store; or all copies of a virtual node, and the same run does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ferry.contract import messages as m
from ferry.contract.names import InstanceId, Term
from ferry.contract.routing import Group, Table, Version
from tests.sim import checks, faults
from tests.sim.driver import Driver
from tests.sim.host import Files, Host
from tests.sim.links import Links
from tests.sim.spark import Spark
from tests.sim.store import Manifest, Store


class Restores(Links):
    """The part of the world that begins anew."""

    scenario: faults.Scenario
    store: Store
    stored: bool
    """Whether this job has durable checkpoints."""
    journal: Table | None
    initial: Table
    driver: Driver | None
    spark: Spark
    sink: dict[int, tuple[int, tuple[list[Any], ...]]]
    done: str
    vnodes: int
    crash: Callable[[Host], None]
    kill_driver: Callable[[Driver], None]
    note: Callable[[str, Any], None]
    new_driver: Callable[[], None]
    roll_back: Callable[[Host, Files], None]

    sink_fence = 0
    """The sinks refuse drivers of lower generations: they were truncated by this one."""
    suspends = False
    """The job is to be suspended."""
    loses_while_collecting = False
    lost_while_collecting = False
    """The next one who chooses a checkpoint takes the oldest, slowly: somebody may be removing it."""
    unbegun = 0
    """Disasters that have not happened yet."""
    run_number = 0
    """Of the job: each has a journal of its own."""
    begins_anew = False
    """The next driver is the first one of a run that begins with a checkpoint."""

    # ---- what is lost
    def disaster(self, what: str) -> None:
        """Nothing happens to a job that has no checkpoint yet."""
        self.unbegun -= 1
        begun = self.journal is not None and not self.journal.initial
        if not self.store.manifests:
            return
        if what == "suspend" and begun:
            self.suspends = True
        elif what == "collecting":
            self.loses_while_collecting = True
        elif what == "copies" and begun:
            self.lose_copies()
        else:
            self.lose_everything()

    def lose_file(self) -> None:
        """The store itself loses a file that counts."""
        named = sorted({name for one in self.store.manifests.values() for name in one.files})
        if named:
            name = self.rnd.choice(named)
            self.note("fault", f"the store loses {name}")
            self.store.files.pop(name, None)
            self.store.lost[name] = True

    def lose_copies(self) -> None:
        """Of one virtual node, all at once."""
        assert self.journal is not None
        group = self.rnd.choice(self.journal.groups)
        if self.rnd.random() < 0.5:
            host = self.hosts[self.rnd.choice(sorted(self.hosts))]
            self.after(self.rnd.randint(100, 400), self.older_life, host, copy.deepcopy(host.files))
        self.note("fault", f"all copies are lost of {group.in_sync}")
        for name in group.in_sync:
            host = self.hosts[name]
            host.lost_at = self.clock.now
            if host.alive:
                self.crash(host)
            host.files = Files()

    def older_life(self, host: Host, files: Files) -> None:
        """Files of the life before come back, and another driver asks for what there is."""
        if host is self.hosts[host.name] and self.driver is not None and self.journal is not None:
            self.roll_back(host, files)
            if not host.alive:
                self.kill_driver(self.driver)

    def collecting(self) -> None:
        """Everything is lost while somebody removes what nobody needs."""
        if self.loses_while_collecting:
            self.loses_while_collecting, self.lost_while_collecting = False, True
            self.after(self.rnd.randint(0, 6), self.lose_everything)

    def lose_everything(self) -> None:
        """Instances with their files, drivers, the journal. What the sinks have stays, and what is in the store."""
        self.note("fault", "everything is lost")
        self.suspends = False
        for link in list(self.net.links.values()):
            if link.earlier is not None:
                self.end_earlier(link.earlier)
        for driver in list(self.drivers.values()):
            driver.ready = False
            self.kill_driver(driver)
        self.journal, self.begins_anew, self.run_number = None, True, self.run_number + 1
        for name, host in list(self.hosts.items()):
            self.crash(host)
            self.hosts[name] = Host(host.world, name)
        for host in self.hosts.values():
            host.lost_at = -1
            if all(entry[2] != self.start or entry[3] != (host.name,) for entry in self.clock.heap):
                self.after(self.rnd.randint(1, 60), self.start, host.name)
        self.net.held.clear()

    # ---- the way back
    def choose(self, then: Callable[[Manifest, str], None], generation: int | None = None) -> None:
        """Pin a checkpoint, and look that it is still there: mostly the newest."""
        listed = self.store.listed()
        if not listed:
            self.done = "nothing to restore"
            return
        which, slow = self.rnd.choice((0, 0, 0, -1, -1)), 1
        if self.lost_while_collecting:
            self.lost_while_collecting, which, slow = False, -1, 8
        manifest = listed[which]
        origin = f"{manifest.name}#{manifest.generation if generation is None else generation}"

        def pinned() -> None:
            if not self.looks_after_pinning:
                self.store.pins[origin] = manifest
            self.after(self.store.delay(), look)

        def look() -> None:
            if self.looks_after_pinning and manifest.name not in self.store.manifests:
                self.store.pins.pop(origin, None)
                self.choose(then, generation)
            else:
                then(manifest, origin)

        if self.looks_after_pinning:
            self.store.pins[origin] = manifest
        self.after(slow * self.store.delay(), pinned)

    looks_after_pinning = True

    def begin_anew(self) -> None:
        """A new run: another assignment of another number of instances."""

        def chosen(manifest: Manifest, origin: str) -> None:
            if self.journal is not None:
                self.new_driver()  # One that was given up has begun it meanwhile.
            elif self.driver is None or not self.driver.alive:
                self.initial = self.table_of(Version(manifest.generation, 0), origin)
                self.settle_truth(manifest)
                self.new_driver_now()

        self.choose(chosen)

    def swap(self, driver: Driver) -> None:
        """No copy of something is left: the same run begins from a checkpoint."""

        def chosen(manifest: Manifest, origin: str) -> None:
            if not driver.alive:
                return
            if self.journal is not None and self.journal.version == driver.core.table.version:
                version = Version(driver.generation, driver.core.table.version.number + 1)
                self.note(driver.name, f"the job begins again from {manifest.name}")
                self.journal, self.writer = self.table_of(version, origin), driver.name
                self.checks.journaled(None, self.journal)
                for name in self.hosts:
                    self.net.send(driver.name, name, "control", m.Install(self.journal), None)
            self.after(self.rnd.choice((0, 1, 3, 10)), self.kill_driver, driver)

        self.choose(chosen, driver.generation)

    def table_of(self, version: Version, origin: str) -> Table:
        """Groups on any instances that run, but no two members on one worker."""
        away = {h.name.split(".")[0]: True for h in self.hosts.values() if h.frozen}
        workers = sorted({name.split(".")[0] for name in self.hosts})
        workers = [w for w in workers if w not in away] or workers
        some = self.rnd.sample(workers, self.rnd.randint(1, len(workers)))
        size = self.rnd.randint(1, min(len(some), 3))
        per = self.scenario.per_worker
        groups = tuple(
            Group(
                Term(*version),
                tuple(InstanceId(f"{w}.{self.rnd.randrange(per)}") for w in self.rnd.sample(some, size)),
            )
            for _ in range(self.vnodes)
        )
        return Table(version, groups, initial=True, origin=origin)

    def truncate(self, manifest: Manifest) -> None:
        """What the sinks have behind a checkpoint goes. Of another branch of the job they are put where it was."""
        checks, epoch = self.checks, manifest.commit.commit_id.step.epoch
        if all((checks.emitted_label.get(e), checks.emitted_in.get(e)) == x for e, x in manifest.emitted.items()):
            for e, (_, rows) in manifest.sink.items():
                if e not in self.sink or self.sink[e][1] != rows:
                    checks.fail(f"the sinks had {rows} for epoch {e}, and have {self.sink.get(e)}")
        else:
            self.sink.update(manifest.sink)
        for e in [e for e in self.sink if e > epoch]:
            del self.sink[e]
        checks.emitted_label = {e: label for e, (label, _) in manifest.emitted.items()}
        checks.emitted_in = {e: run for e, (_, run) in manifest.emitted.items()}
        self.remember(manifest)

    def remember(self, manifest: Manifest) -> None:
        """What led to a checkpoint, which may be of a branch that was left."""
        at: Any = manifest.truth
        while at is not None and at.commit_id is not None:
            self.checks.references[at.commit_id] = at
            self.checks.covered[at.commit_id] = manifest.covered[at.commit_id]
            at = at.parent

    def settle_truth(self, manifest: Manifest) -> None:
        """In a new run attempts are numbered anew: of the last one counts what led to the checkpoint."""
        before = self.checks
        self.checks = checks.Checks(before.world)
        self.checks.root, self.checks.references = before.root, {None: before.root}
        self.remember(manifest)
        self.checks.emitted_label, self.checks.emitted_in = before.emitted_label, before.emitted_in

    def look_at_the_store(self) -> None:
        """At the end: every checkpoint that is retained can be restored."""
        for manifest in self.store.listed():
            self.store.verify(manifest)
