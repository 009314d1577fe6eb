"""One simulated driver process: `protocol.Coordinator`, its Spark query, and the tasks that it runs.

A zombie is the same object, left running after another one was started.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ferry.contract import messages as m
from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.names import InstanceId
from ferry.protocol import coordinator as core
from tests.sim import data, spark

if TYPE_CHECKING:
    from tests.sim.world import World


class Driver:
    """The process; `name` is its end of every link."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.alive = True
        self.pending_lost: dict[str, bool] = {}
        self.connections: dict[str, int] = {}
        """Which life of the link to each instance it has been told of."""
        self.ready = False
        self.covers: spark.Range | None = None
        """What the epoch under way covers of the source."""
        settings = replace(world.settings, ended=world.spark.ended())
        self.core = core.Coordinator(settings, world.initial, world.journal, world.rules)
        self.generation = self.core.generation
        self.execute(self.core.step(core.Tick(world.clock.now)))  # as the real loop: patience is counted from now on
        self.execute(self.core.start())
        if self.alive:
            world.after(world.rnd.randint(1, 40), self.tick)

    def tick(self) -> None:
        if self.alive:
            effects = self.core.step(core.Tick(self.world.clock.now))
            if effects:
                self.execute(effects)
            self.world.after(80, self.tick)

    def take(self, event: core.Event) -> None:
        if self.alive:
            self.world.note(self.name, event)
            effects = self.core.step(event)
            if effects:
                self.execute(effects)

    def execute(self, effects: list[core.Effect]) -> None:
        world, story = self.world, self.world.story
        for effect in effects:
            sent = type(effect) is core.Send
            if world.counts and world.before("D" + type(effect.message if sent else effect).__name__, self):
                world.kill_driver(self)
                return
            story.append((world.clock.now, self.name, effect))
            if sent:
                if type(effect.message) is m.Prepare:
                    world.checks.prepared(effect.message)
                world.net.send(self.name, effect.to, "control", effect.message, None)
            else:
                self.perform(effect)
            if not self.alive:
                return

    def perform(self, effect: core.Effect) -> None:
        world, rnd = self.world, self.world.rnd
        match effect:
            case core.Journal():
                world.after(rnd.randint(1, 5), world.journal_write, self, effect)
            case core.StartIngest():
                world.after(self.pace(), self.ingest, effect)
            case core.Emit(rows):
                world.after(self.pace(), self.emit, rows)
            case core.Ready(committed, meta, final):
                self.ready = True
                if world.compares_offsets:
                    world.spark.settle(committed, final, meta)
                if world.desired is not None:
                    world.after(1, self.take, world.desired)
                world.after(rnd.randint(2, 15), self.begin)
            case core.Halt(kind, reason):
                world.halted(self, kind, reason)
            case core.Close(instance, _):
                host = world.hosts[instance]
                world.sever(self.name, instance, max(host.frozen_until - world.clock.now, 0) + rnd.randint(1, 20))
            case core.Note(changes=changes):
                world.checks.demoted([c for c in changes if c.kind == "demoted"])
            case _:
                raise AssertionError(effect)

    def pace(self) -> int:
        """How long a job takes to begin; a driver that was given up may be very slow."""
        rnd = self.world.rnd
        slow = rnd.random() < (0.5 if self is not self.world.driver else 0.02)
        return rnd.randint(50, 600) if slow and not self.world.net.fair else rnd.randint(1, 4)

    # ---- Spark's query
    def begin(self) -> None:
        """Begin the epoch after the last one in the commit log."""
        if self.alive:
            self.offer(self.world.spark.ended() + 1)

    def offer(self, epoch: int) -> None:
        """Begin this epoch; beyond the last one only ticks, while group changes are pending."""
        if not self.alive:
            return
        world = self.world
        # A move between two that are apart for good, or to a disk that stays full, is begun again for ever.
        enough = world.epochs + 12
        if epoch >= world.epochs and (not self.core.pending() or epoch >= enough):
            if self is world.driver and world.quiet():
                world.finish(epoch)
                return
            world.after(30, self.offer, epoch)
            return
        if world.hold_back(epoch):
            world.after(20, self.offer, epoch)
            return
        self.covers = world.spark.plan(epoch, self.covers[1] if self.covers else None)
        self.take(core.EpochBegun(epoch))

    # ---- reading fired rows
    def rows(self, rows: core.FiredRows, then: Any, failed: Any) -> None:
        """Ask every reader, each at its own time."""
        self.fetch(rows, 0, [], then, failed)

    def fetch(self, rows: core.FiredRows, at: int, got: list[Any], then: Any, failed: Any) -> None:
        if not self.alive:
            return
        if at == len(rows.readers) or rows.fired == 0:
            then(sorted(got))
            return
        name, vnodes = rows.readers[at]
        if self.hangs(name):
            self.world.after(10, self.fetch, rows, at, got, then, failed)
            return
        part = self.world.hosts[name].read(rows.generation, rows.label, rows.low, rows.high, vnodes)
        if part is None:
            self.world.after(self.world.rnd.randint(5, 30), failed)
            return
        self.world.after(self.world.rnd.randint(0, 2), self.fetch, rows, at + 1, got + part, then, failed)

    # ---- ingest
    def ingest(self, job: core.StartIngest) -> None:
        def failed() -> None:
            self.take(core.IngestFailed(job.step, job.run))

        if not self.alive:
            return
        if job.rows is None:
            world = self.world
            flavour = (self.generation, job.run) if world.varied else (0, 0)
            assert self.covers is not None
            self.stage(job, data.between(world.seed, self.covers, flavour, world.keys, world.splits), failed)
        else:
            self.rows(
                job.rows, lambda rows: self.stage(job, [data.as_records(job.step.operator - 1, rows)], failed), failed
            )

    def stage(self, job: core.StartIngest, batches: list[list[data.Record]], failed: Any) -> None:
        world, rnd = self.world, self.world.rnd
        winners: dict[str, list[m.Fragment]] = {}
        greatest = int(job.meta.split()[0]) if job.meta else WATERMARK_NONE
        if not job.helpers and batches:
            world.after(20, failed)
            return
        ok, under_way = [True], [1]
        task = 0
        done: core.Event

        def end() -> None:
            under_way[0] -= 1
            if not under_way[0]:
                world.after(1, lambda: self.take(done) if ok[0] else failed())

        for batch in batches:
            if not batch and rnd.random() < 0.5:
                continue
            for wins in (False, True) if rnd.random() < 0.1 else (True,):
                helper = rnd.choice(job.helpers)
                fragment = m.Fragment(job.step, self.generation, job.run, task)
                task += 1
                if wins:
                    winners.setdefault(helper, []).append(fragment)
                world.checks.fragments[fragment] = batch
                part = data.partial(job.step.operator, batch, world.vnodes)
                under_way[0] += 1
                world.after(rnd.randint(1, 6), self.stream, helper, fragment, part, ok, end)
            if job.step.operator == 0:
                greatest = max([greatest, *(t for t, _, _ in batch)])
        named = tuple((InstanceId(h), tuple(winners[h])) for h in sorted(winners))
        if job.step.operator:
            assert job.rows is not None
            done = core.Ingested(job.step, job.run, named, job.rows.high, job.meta)
        else:
            high = greatest - data.DELAY if greatest != WATERMARK_NONE else WATERMARK_NONE
            assert self.covers is not None
            notes = f"{greatest} {self.covers[0]} {self.covers[1]}"
            done = core.Ingested(job.step, job.run, named, high, notes.encode())
        world.after(1, end)

    def hangs(self, name: str) -> bool:
        """Whether somebody who asks this instance has to wait until it goes on, or is lost to the driver."""
        host = self.world.hosts[name]
        return host.alive and host.frozen and name in self.core.alive

    def stream(
        self, helper: str, fragment: m.Fragment, part: dict[int, data.Partial], ok: list[bool], end: Callable[[], None]
    ) -> None:
        host = self.world.hosts[helper]
        if self.hangs(helper):
            self.world.after(10, self.stream, helper, fragment, part, ok, end)
            return
        if not host.alive or host.frozen:
            ok[0] = False
        else:
            host.staged[fragment] = part
            host.take(self.world.staged_event(fragment))
        end()

    # ---- the sink
    def emit(self, rows: core.FiredRows) -> None:
        if self.covers != spark.covered(rows.meta):  # Checkpoint.require_same
            self.world.kill_driver(self)
            return
        self.rows(rows, lambda got: self.sink(rows, got), lambda: self.take(core.ReadFailed(rows.label.step)))

    def sink(self, rows: core.FiredRows, got: list[Any]) -> None:
        if not self.alive:
            return
        world, epoch = self.world, rows.label.step.epoch
        if world.before("DSink", self):
            world.kill_driver(self)
            return
        held = world.sink.get(epoch)
        if held is not None and held[0] > self.generation and world.scenario.fenced_sink:
            world.kill_driver(self)
            return
        world.checks.emitted(rows, got)
        world.sink[epoch] = (self.generation, got)
        world.after(world.rnd.randint(0, 6), self.commit, epoch)

    def commit(self, epoch: int) -> None:
        """Spark's commit log, then the next epoch."""
        if not self.alive:
            return
        self.take(core.EpochEnded(epoch))
        if self.world.before("DSparkCommit", self):
            self.world.kill_driver(self)
            return
        self.world.spark.commits[epoch] = True
        self.world.checks.spark_committed(epoch)
        # Nothing is left to read: empty epochs come at intervals, for moves that are not over.
        idle = epoch + 1 >= self.world.epochs
        self.world.after(40 if idle else self.world.rnd.randint(0, 5), self.offer, epoch + 1)
