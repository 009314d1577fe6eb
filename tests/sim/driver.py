"""One simulated driver process: `protocol.Coordinator`, its Spark query, and the tasks that it runs.

A zombie is a driver that still runs after another driver was started.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ferry.contract import messages as m
from ferry.contract.names import Fragment, InstanceId, Step
from ferry.contract.programs import predecessor
from ferry.contract.results import NO_RESULT, result_of
from ferry.protocol import coordinator as core
from tests.sim import data, spark
from tests.sim.checkpoints import Checkpoints
from tests.sim.loops import Done, Loops, Winners

if TYPE_CHECKING:
    from tests.sim.world import World


Batch = list[tuple[int, data.Record]]
"""Records of one task, each with the operator (or SOURCE) it was read from."""


class Driver:
    """The process; `name` is its end of every link."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.alive = True
        self.run = world.run_number
        self.pending_lost: dict[str, bool] = {}
        self.connections: dict[str, int] = {}
        """By instance: the life of the link that the coordinator knows."""
        self.ready = False
        self.covers: spark.Range | None = None
        """The blocks of the source in the current epoch."""
        self.spark = world.spark
        """Spark's folder at the start of this driver, or after its restore."""
        settings = replace(world.settings, ended=world.spark.ended())
        self.checkpoints = Checkpoints(self)
        self.loops = Loops(self) if world.scenario.continuous else None
        self.core = core.Coordinator(settings, world.initial, world.journal, world.rules, self.checkpoints.restore)
        self.generation = self.core.generation
        self.execute(
            self.core.step(core.Tick(world.clock.now))
        )  # as in the real loop: deadlines are counted from now on
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
        if self.alive and (type(event) is not core.Journaled or self.checkpoints.rewound(event)):
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
            case core.Emit():
                world.after(self.pace(), self.emit, effect)
            case core.Ready(committed, meta, final):
                self.ready = True
                self.checkpoints.begin()
                if world.compares_offsets:
                    self.spark.settle(committed, final, meta)
                if world.desired is not None:
                    world.after(1, self.take, world.desired)
                world.after(1, world.deploy)
                world.after(rnd.randint(2, 15), self.begin)
            case core.Halt(kind, reason):
                world.halted(self, kind, reason)
            case core.Close(instance, _):
                host = world.hosts[instance]
                world.sever(self.name, instance, max(host.frozen_until - world.clock.now, 0) + rnd.randint(1, 20))
            case core.Deployed():
                world.deployed(self, effect)
            case core.CodeFails():
                pass
            case core.Publish():
                self.checkpoints.publish(effect)
            case core.Note(changes=changes):
                world.checks.demoted([c for c in changes if c.kind == "demoted"])
            case _:
                raise AssertionError(effect)

    def node_of(self, step: Step) -> data.Node:
        """The operator of a step."""
        return self.world.node_of(self.core.table.programs, step)

    def pace(self) -> int:
        """Time until a job begins; a zombie may be very slow."""
        rnd = self.world.rnd
        slow = rnd.random() < (0.5 if self is not self.world.driver else 0.02)
        return rnd.randint(50, 600) if slow and not self.world.net.fair else rnd.randint(1, 4)

    # ---- Spark's query
    def begin(self) -> None:
        """Begin the epoch after the last one in the commit log."""
        if self.alive:
            self.offer(self.spark.ended() + 1)

    def offer(self, epoch: int) -> None:
        """Begin this epoch; after the last epoch with data epochs are empty, while group changes are pending."""
        if not self.alive:
            return
        world = self.world
        # A move between two instances that stay apart, or to a disk that stays full, is retried for ever.
        enough = world.epochs + 12
        rests = not self.core.moves.pending() or epoch >= enough
        if epoch >= world.epochs and rests and not world.suspends:
            if self is world.driver and world.quiet():
                world.finish(epoch)
                return
            world.after(30, self.offer, epoch)
            return
        if world.hold_back(epoch):
            world.after(20, self.offer, epoch)
            return
        self.covers = self.spark.plan(epoch, self.covers[1] if self.covers else None)
        self.take(core.EpochBegun(epoch))

    # ---- reading fired rows
    def rows(self, rows: core.FiredRows, then: Any, failed: Any) -> None:
        """Read from every instance that has rows, each at its own time."""
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
        part = self.world.hosts[name].read(rows.generation, rows.commit_id, rows.low, rows.high, vnodes)
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
        if self.world.compares_offsets and job.step.operator and self.covers != spark.covered(job.meta):
            self.world.kill_driver(self)
            return
        self.read(job, list(self.node_of(job.step).inputs), [], failed)

    def read(self, job: core.StartIngest, inputs: list[int], batches: list[Batch], failed: Any) -> None:
        """Read one input after the other, then stage the records."""
        if not inputs:
            self.stage(job, batches, failed)
            return
        origin, world = inputs.pop(0), self.world
        if origin == data.SOURCE:
            flavour = (self.generation, job.run) if world.varied else (0, 0)
            assert self.covers is not None
            parts = data.between(world.seed, self.covers, flavour, world.keys, world.splits)
            batches += [[(origin, record) for record in part] for part in parts]
            self.read(job, inputs, batches, failed)
            return

        def fetched(rows: list[Any]) -> None:
            batches.append([(origin, record) for record in data.as_records(rows)])
            self.read(job, inputs, batches, failed)

        self.rows(job.rows[origin], fetched, failed)

    def stage(self, job: core.StartIngest, batches: list[Batch], failed: Any) -> None:
        if job.run != self.core.attempts.run:
            return  # A program was taken back meanwhile: a real driver ends a run before it begins the next one.
        world = self.world
        node = self.node_of(job.step)
        operator = node.id
        if not job.helpers and batches:
            world.after(20, failed)
            return
        seen = spark.greatest(job.meta, len(world.timers))
        is_new = result_of(self.core.commits.results, operator) == NO_RESULT
        if is_new and (old := predecessor(self.core.table.programs, operator)) is not None:
            seen[operator] = seen[old]
        for batch in batches:
            seen[operator] = max([seen[operator], *(record[0] for origin, record in batch if origin == data.SOURCE)])

        def done(winners: Winners | None) -> None:
            if winners is None or not self.alive:
                failed()
                return
            named = tuple((InstanceId(h), tuple(winners[h])) for h in sorted(winners))
            self.require_once(named, batches)
            assert self.covers is not None
            high = data.watermark(node, seen[operator], [rows.high for rows in job.rows])
            # The first step of an epoch has its blocks in its notes, as with a real driver.
            covers = spark.covered(job.meta) if job.step.operator else self.covers
            self.take(core.Ingested(job.step, job.run, named, high, spark.notes(covers, seen)))

        if self.loops is not None:
            self.loops.ingest(job, batches, done)
        else:
            self.run_tasks(job, batches, done)

    def require_once(self, winners: Any, batches: list[Batch]) -> None:
        """Every record is in exactly one fragment of the winners."""
        have = sorted(x for _, fragments in winners for f in fragments for x in self.world.checks.fragments.get(f, ()))
        if have != sorted(x for batch in batches for x in batch):
            self.world.checks.fail(f"{self.name}: the fragments {winners} are not what was read")

    def run_tasks(self, job: core.StartIngest, batches: list[Batch], done: Done) -> None:
        """Run the tasks of a Spark job: some have two attempts, and one attempt wins."""
        world, rnd = self.world, self.world.rnd
        winners: Winners = {}
        ok, under_way = [True], [1]
        task = 0

        def end() -> None:
            under_way[0] -= 1
            if not under_way[0]:
                world.after(1, done, winners if ok[0] else None)

        for batch in batches:
            if not batch and rnd.random() < 0.5:
                continue
            for wins in (False, True) if rnd.random() < 0.1 else (True,):
                helper = rnd.choice(job.helpers)
                fragment = Fragment(job.step, self.generation, job.run, task)
                task += 1
                if wins:
                    winners.setdefault(helper, []).append(fragment)
                world.checks.fragments[fragment] = batch
                part = data.partial(self.node_of(job.step).id, [record for _, record in batch], world.vnodes)
                under_way[0] += 1
                world.after(rnd.randint(1, 6), self.stream, helper, fragment, part, ok, end)
        world.after(1, end)

    def hangs(self, name: str) -> bool:
        """Whether a request to this instance waits until the instance continues, or until the driver loses it."""
        host = self.world.hosts[name]
        return host.alive and host.frozen and name in self.core.alive

    def stream(
        self, helper: str, fragment: Fragment, part: dict[int, data.Partial], ok: list[bool], end: Callable[[], None]
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
    def emit(self, order: core.Emit) -> None:
        if self.covers != spark.covered(order.meta):  # Checkpoint.require_same
            self.world.kill_driver(self)
            return
        self.collect(order, ())

    def collect(self, order: core.Emit, got: tuple[list[Any], ...]) -> None:
        """Read the fired rows of one operator after the other, for the sinks."""
        if len(got) == len(order.rows):
            self.sink(order, got)
            return

        def fetched(rows: list[Any]) -> None:
            self.collect(order, (*got, rows))

        self.rows(order.rows[len(got)], fetched, lambda: self.take(core.ReadFailed(order.step)))

    def sink(self, order: core.Emit, got: tuple[list[Any], ...]) -> None:
        if not self.alive:
            return
        world, epoch = self.world, order.step.epoch
        if world.before("DSink", self):
            world.kill_driver(self)
            return
        held = world.sink.get(epoch)
        if self.generation < world.sink_fence:
            world.kill_driver(self)
            return
        if held is not None and held[0] > self.generation and world.scenario.fenced_sink:
            world.kill_driver(self)
            return
        world.checks.emitted(order, got)
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
        self.spark.commits[epoch] = True
        if self.spark is self.world.spark:
            self.world.checks.spark_committed(epoch)
        # No input is left: empty epochs come at intervals, for pending moves.
        idle = epoch + 1 >= self.world.epochs
        self.world.after(40 if idle else self.world.rnd.randint(0, 5), self.offer, epoch + 1)
