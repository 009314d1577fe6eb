"""Disasters of the simulated world, and restores: the choice of a checkpoint, of a driver and of instances.

Either everything is lost, and a new run restores from the store; or all copies of one virtual node are lost, and the same
run restores.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ferry.contract import messages as m
from ferry.contract.names import InstanceId, Term
from ferry.contract.programs import Programs, program_at
from ferry.contract.routing import Group, Table, Version
from tests.sim import checks, faults
from tests.sim.driver import Driver
from tests.sim.host import Files, Host
from tests.sim.links import Links
from tests.sim.spark import Spark
from tests.sim.store import Manifest, Store


class Restores(Links):
    """Disasters and restores of the world."""

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
    since: dict[int, int]
    crash: Callable[[Host], None]
    kill_driver: Callable[[Driver], None]
    note: Callable[[str, Any], None]
    new_driver: Callable[[], None]
    roll_back: Callable[[Host, Files], None]

    sink_fence = 0
    """Generation of the last driver that truncated the sinks: they refuse lower generations."""
    suspends = False
    """The job is to be suspended."""
    loses_while_collecting = False
    lost_while_collecting = False
    """The next restore chooses the oldest checkpoint, slowly, while its files may be removed."""
    unbegun = 0
    """Disasters that have not happened yet."""
    run_number = 0
    """Number of the job's run: each run has its own journal."""
    begins_anew = False
    """The next driver begins a new run with a restore."""

    # ---- what is lost
    def disaster(self, what: str) -> None:
        """Cause a disaster, if the job has a checkpoint."""
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
        """The store loses a file that a manifest names."""
        named = sorted({name for one in self.store.manifests.values() for name in one.files})
        if named:
            name = self.rnd.choice(named)
            self.note("fault", f"the store loses {name}")
            self.store.files.pop(name, None)
            self.store.lost[name] = True

    def lose_copies(self) -> None:
        """Lose all copies of one virtual node at once."""
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
        """An instance comes back with older files, and another driver starts."""
        if host is self.hosts[host.name] and self.driver is not None and self.journal is not None:
            self.roll_back(host, files)
            if not host.alive:
                self.kill_driver(self.driver)

    def collecting(self) -> None:
        """Lose everything while a driver removes files."""
        if self.loses_while_collecting:
            self.loses_while_collecting, self.lost_while_collecting = False, True
            self.after(self.rnd.randint(0, 6), self.lose_everything)

    def lose_everything(self) -> None:
        """Lose instances with their files, drivers and the journal. Sinks and store keep their data."""
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

    # ---- restores
    def choose(self, then: Callable[[Manifest, str], None], generation: int | None = None) -> None:
        """Pin a checkpoint, mostly the newest, and check that it still exists."""
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
        """Begin a new run, with another number of instances and another assignment."""

        def chosen(manifest: Manifest, origin: str) -> None:
            if self.journal is not None:
                self.new_driver()  # A zombie has begun the run.
            elif self.driver is None or not self.driver.alive:
                self.initial = self.table_of(Version(manifest.generation, 0), origin, settled(manifest))
                self.since = dict(manifest.since)
                self.settle_truth(manifest)
                self.new_driver_now()

        self.choose(chosen)

    def swap(self, driver: Driver) -> None:
        """Restore a checkpoint in the same run, because a virtual node has no copy left."""

        def chosen(manifest: Manifest, origin: str) -> None:
            if not driver.alive:
                return
            if self.journal is not None and self.journal.version == driver.core.table.version:
                version = Version(driver.generation, driver.core.table.version.number + 1)
                self.note(driver.name, f"the job begins again from {manifest.name}")
                self.journal, self.writer = self.table_of(version, origin, settled(manifest)), driver.name
                self.since = dict(manifest.since)
                self.checks.journaled(None, self.journal)
                for name in self.hosts:
                    self.net.send(driver.name, name, "control", m.Install(self.journal), None)
            self.after(self.rnd.choice((0, 1, 3, 10)), self.kill_driver, driver)

        self.choose(chosen, driver.generation)

    def table_of(self, version: Version, origin: str, programs: Programs) -> Table:
        """A table with random running instances; no group has two members on one worker."""
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
        return Table(version, groups, initial=True, origin=origin, programs=programs)

    def truncate(self, manifest: Manifest) -> None:
        """Remove the rows after a checkpoint from the sinks. If the sinks have another branch of the job, reset them to the checkpoint."""
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
        """Keep the history of a checkpoint, which may be on an abandoned branch."""
        at: Any = manifest.truth
        while at is not None and at.commit_id is not None:
            self.checks.references[at.commit_id] = at
            self.checks.covered[at.commit_id] = manifest.covered[at.commit_id]
            at = at.parent

    def settle_truth(self, manifest: Manifest) -> None:
        """A new run numbers its attempts from the begin; of the last run only the history of the checkpoint counts."""
        before = self.checks
        self.checks = checks.Checks(before.world)
        self.checks.root, self.checks.references = before.root, {None: before.root}
        self.remember(manifest)
        self.checks.emitted_label, self.checks.emitted_in = before.emitted_label, before.emitted_in

    def look_at_the_store(self) -> None:
        """At the end: every checkpoint that is retained can be restored."""
        for manifest in self.store.listed():
            self.store.verify(manifest)


def settled(manifest: Manifest) -> Programs:
    """The program of the epoch of a checkpoint: the checkpoint has the state of altered operators."""
    epoch = manifest.commit.commit_id.step.epoch
    return (program_at(manifest.programs, epoch)._replace(altered=()),)
