"""One life of the driver: load the pipeline, recover, start the query, run epochs, end."""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ferry import environment
from ferry.contract.errors import Bug, FerryError
from ferry.contract.exit_codes import ExitCode
from ferry.contract.manifest import Manifest
from ferry.contract.notes import EpochNotes
from ferry.contract.settings import RunSettings
from ferry.contract.status import BEGAN_AGAIN
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.coordinator.loop import Loop
from ferry.driver import inputs, session, standby
from ferry.driver.announcer import Announcer
from ferry.driver.checkpoint import Checkpoint
from ferry.driver.ends import Halted, Stopped, end_of
from ferry.driver.epochs import Epochs
from ferry.driver.executors import Backend, Executors
from ferry.driver.failures import user_error
from ferry.driver.keeper import Keeper
from ferry.driver.opening import OpeningSinks
from ferry.driver.orders import next_order
from ferry.driver.patience import ReportedPatience, UserCodeTries
from ferry.driver.program import Program, prepared
from ferry.driver.query import OwnQuery
from ferry.driver.restoring import Restoring
from ferry.driver.stages import StageHook
from ferry.protocol import coordinator as core
from ferry.protocol.boundaries import lasts_for_ever
from ferry.registry import JobRegistry, JournalStore, RedisJournal
from ferry.spark import compile, sinks
from ferry.spark.source import SLOTS, TICKS, Batch, QueryBatch, SplitsReader, splits_source
from ferry.spark.splits import WHOLE, Splits
from ferry.spark.warmup import warm_up
from ferry.system import files
from ferry.system.monitoring import MonitoringServer

log = logging.getLogger("ferry.driver")

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds who it is."""

GONE = ("unavailable", "away", "failed")
"""Halts for state that nobody has who could go on: a durable checkpoint may have it."""

Run = Callable[[Batch, int], None]
"""What a query does for each epoch."""


class Query(Protocol):
    """Of Spark, or the driver's own: plans epochs and has them run."""

    @property
    def isActive(self) -> bool:
        """Whether further epochs may come."""

    def exception(self) -> Exception | None:
        """Why there are no more."""


class Job:
    """The driver of one run."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        self._surroundings = environment.read()
        self._checkpoint = Checkpoint(settings.path / "checkpoint")
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._stage = StageHook(settings)
        self._ticks = 0

    def run(self) -> int:
        """Until the bounded input has fired everything, or somebody stops the job."""
        module = compile.load(*self.settings.pipeline)
        job_registry = JobRegistry(self.settings.run, self.settings.redis, self.settings.secret)
        journal = self._journal()
        announcer = Announcer(job_registry, journal, self.settings.slots, self._surroundings.life)
        spark = session.start(self.settings, self._surroundings, announcer.starting)
        session.watch_over(spark)
        metrics = DriverMetrics(self.settings.job, self.settings.directory, self.settings.slow_ms)
        args = self.settings.pipeline_args, self.settings.output, self.settings.events
        begun = self._surroundings.begun or self._checkpoint.begun()[0] >= 0
        plan = inputs.built(lambda: compile.build(spark, module, *args), begun, metrics)
        sinks.identify(plan.sinks, self.settings.job, self.settings.run)
        program = prepared(self.settings, self._surroundings, spark, plan)
        if self._surroundings.standby and not self._await_turn(program):
            return ExitCode.FINISHED
        announcer.settle([o.descriptor for o in plan.operators])
        if weakness := journal.weakness():
            log.warning("%s", weakness)
            metrics.problems.warn("JournalNotSafe", weakness)
        descriptors = [o.descriptor for o in plan.operators]
        where = self.settings.checkpoint
        keeper = None if where is None else Keeper(self.settings, where, descriptors)
        opening = OpeningSinks(plan.sinks, self.settings, self._stop)

        def rewind(manifest: Manifest) -> bool:
            sinks.identify(plan.sinks, self.settings.job, self.settings.run, manifest.job)
            return self._rewind(manifest, opening, loop, metrics)

        restoring = Restoring(self.settings, descriptors, keeper, rewind)
        metrics.unbounded = "; ".join(why for one in descriptors if (why := lasts_for_ever(one)))
        if all(one.kind != "process" for one in descriptors) and not metrics.unbounded:
            metrics.window_rest.windows = tuple(one.window for one in descriptors)
        loop = Loop(
            self.settings,
            job_registry,
            journal,
            len(descriptors),
            self._stage,
            self._checkpoint.ended(),
            restoring.begin,
            restoring.rewind,
        )
        try:
            return self._run(program, loop, metrics, announcer, keeper, restoring, opening)
        except Stopped:
            metrics.note("stopped", f"{metrics.rows} rows")
            return 0
        except Halted as halted:
            if halted.kind not in GONE:
                raise
            end = restoring.begin_again(loop, halted)
            if end is halted:
                raise
            metrics.note("restore", str(end))
            raise end from halted
        finally:
            restoring.over()

    def _run(
        self,
        program: Program,
        loop: Loop,
        metrics: DriverMetrics,
        announcer: Announcer,
        keeper: Keeper | None,
        restoring: Restoring,
        opening: OpeningSinks,
    ) -> int:
        plan = program.plan
        self._warm_up(program, loop)
        loop.start()
        if keeper is not None:
            keeper.on_published = lambda: self._has_checkpoint(metrics, restoring)
            keeper.start(loop, metrics)
        stop = partial(opening.stop, loop)
        serve = partial(self._serve, loop, metrics, announcer, keeper, stop)
        threading.Thread(target=serve, name="control", daemon=True).start()
        query = self._query(program, loop, metrics)  # May take seconds, during which the members answer.
        ready = self._await_ready(loop)
        if (manifest := restoring.manifest) is not None and restoring.by_itself:
            begun = f"checkpoint {manifest.number} of epoch {manifest.epoch}"
            metrics.problems.delayed(BEGAN_AGAIN, f"the job goes on from {begun}; offsets and sinks were put back")
        if keeper is None:
            restoring.over()
        committed, over = self._resume(ready, plan, metrics, loop.machine.commits.late)
        metrics.epoch_mode = program.mode
        metrics.note("mode", program.mode)
        metrics.note("ready", f"generation {loop.machine.generation}, committed up to epoch {committed}")
        if not opening.open(committed, loop, metrics):
            raise Stopped("the job was stopped")
        if over:
            metrics.note("finished", f"{metrics.rows} rows")
            return 0
        where = self._checkpoint, self._stage
        epochs = Epochs(self.settings, program.spark, plan, loop, metrics, *where, program.works, program.loops)
        return self._run_query(query, loop, metrics, epochs, keeper)

    def _serve(
        self,
        loop: Loop,
        metrics: DriverMetrics,
        announcer: Announcer,
        keeper: Keeper | None,
        stop: Callable[[], None],
    ) -> None:
        """Answer who asks; on a thread of its own, for no epoch has to wait for that."""
        from ferry.coordinator import control  # Loads a web framework.

        around = self._surroundings
        registry = control.collect(loop, metrics)
        where = around.address, around.control_port
        url = control.serve(loop, metrics, registry, self.settings, stop, where, keeper)
        if around.metrics_token is not None:
            MonitoringServer(registry, (around.address, around.metrics_port), around.metrics_token)
        if around.standalone:
            announcer.started(loop.machine, url)

    def _has_checkpoint(self, metrics: DriverMetrics, restoring: Restoring) -> None:
        """One of this life: what it began with is history."""
        restoring.over()
        metrics.problems.caught_up(BEGAN_AGAIN)

    def _rewind(self, manifest: Manifest, opening: OpeningSinks, loop: Loop, metrics: DriverMetrics) -> bool:
        """Put offsets and sinks back to the end of the epoch that a restore begins with; False: the job is to stop."""
        self._checkpoint.rewind(manifest.epoch, EpochNotes.load(manifest.meta).spark)
        return opening.rewind(manifest.epoch, loop, metrics)

    # ---- starting
    def _await_turn(self, program: Program) -> bool:
        """Be ready; False when nobody will need this driver any more."""
        from ferry.coordinator import control  # now, and not when it is needed

        assert control
        if program.loops is not None:
            return standby.await_turn(program.loops.await_all)
        descriptors = [o.descriptor for o in program.plan.operators]
        return standby.await_turn(lambda: warm_up(program.spark, descriptors, self.settings.cores))

    def _warm_up(self, program: Program, loop: Loop) -> None:
        """Have the Python processes of the task slots ready: of those in this process now, of others when they come.

        Tasks that hold their place see to it themselves.
        """
        spark, loops = program.spark, program.loops
        descriptors = [o.descriptor for o in program.plan.operators]
        if loops is not None:
            loop.members.on_silent.append(loops.silent)
        if self._surroundings.standalone:
            file = self.settings.path / SLOTS
            executors = Executors(
                Backend(spark, self.settings.cores), file, lambda slots: warm_up(spark, descriptors, slots)
            )
            loop.members.on_silent.append(executors.silent)
            executors.start()
        if self._surroundings.standalone or loops is not None:
            return

        def warm() -> None:
            try:
                warm_up(spark, descriptors, self.settings.cores)
            except Exception as error:
                log.warning("Spark's workers could not be warmed up: %s", str(error)[:300])

        threading.Thread(target=warm, name="warm-up", daemon=True).start()

    def _journal(self) -> JournalStore:
        """In the API server where the operator says so, else in Redis."""
        around, settings = self._surroundings, self.settings
        in_redis = RedisJournal(settings.run, settings.redis, settings.secret)
        if around.journal is None:
            return in_redis
        from ferry.registry.api_journal import Access, ApiJournal

        access = Access(around.api_server, ACCOUNT / "token", ACCOUNT / "ca.crt")
        return ApiJournal(access, *around.journal, in_redis, around.begun)

    def _await_ready(self, loop: Loop) -> core.Ready:
        order = next_order(loop)
        if not isinstance(order, core.Ready):
            raise Bug(f"{order} before the recovery was over")
        return order

    def _resume(
        self, ready: core.Ready, plan: compile.CompiledPipeline, metrics: DriverMetrics, late: int
    ) -> tuple[int, bool]:
        """Go on from what the state has committed: (its last epoch, whether all of the input is behind it).

        Spark finds the offsets that belong to the state, else StateUnavailable is raised.
        """
        notes = EpochNotes.load(ready.meta)
        committed = ready.committed.step.epoch if ready.committed else -1
        foreign = [name for name, source in plan.sources.items() if isinstance(source, DataFrame)]
        splits = [name for name in plan.sources if name not in foreign]
        again = self._checkpoint.settle(committed, ready.final, notes.spark, foreign)
        self._checkpoint.require_sources(committed, splits, foreign)
        metrics.resume(committed - again, notes, late, again)
        return committed, notes.flush and not again

    def _query(self, program: Program, loop: Loop, metrics: DriverMetrics) -> Callable[[Run], Query]:
        """The query that will run epochs: the driver's own, or a streaming query where Spark has sources of its own."""
        spark, plan = program.spark, program.plan
        splits = {n: s for n, s in plan.sources.items() if isinstance(s, Splits)}
        frames = {n: s for n, s in plan.sources.items() if isinstance(s, DataFrame)}
        settings = self.settings
        rows, cores, interval = settings.epoch_max_rows, settings.cores, settings.epoch_interval_ms
        if not frames:
            first, where, ticks = dict.fromkeys(plan.first, rows), settings.path, lambda: self._ticks
            reader = SplitsReader(splits, rows, cores, where, True, first, ticks, metrics.problems.running)
            patience = ReportedPatience(loop, metrics, inputs.SOURCE_FAILING, inputs.SOURCE_QUIET_SECONDS)
            tell = partial(inputs.notice, metrics)
            waiting = patience, metrics.lags.update, tell, UserCodeTries(loop, metrics)

            def own(run: Run) -> OwnQuery:
                return OwnQuery(spark, reader, self._checkpoint, interval / 1000, run, *waiting).start()

            return own
        # Spark's own sources do not wait for what has to be read first: it is in the first epoch then.
        first = dict.fromkeys(plan.first, WHOLE)
        spark.dataSource.register(splits_source(splits, rows, cores, settings.path, first, settings.slow_ms))
        raw = spark.readStream.format("ferry").load()
        for name, frame in frames.items():
            tagged = frame.select(F.lit(name).alias("source"), F.struct("*").alias(f"s_{name}"))
            raw = raw.unionByName(tagged, allowMissingColumns=True)

        def start(run: Run) -> Query:
            return (
                raw.writeStream.foreachBatch(lambda frame, epoch: run(QueryBatch(frame), epoch))
                .option("checkpointLocation", str(settings.path / "checkpoint"))
                .trigger(processingTime=f"{interval} milliseconds")
                .start()
            )

        return start

    # ---- running
    def _run_query(
        self, start: Callable[[Run], Query], loop: Loop, metrics: DriverMetrics, epochs: Epochs, keeper: Keeper | None
    ) -> int:
        def one_epoch(batch: Batch, epoch: int) -> None:
            try:
                epochs.run(batch, epoch)
            except Stopped:
                epochs.idle.set()
                raise
            except BaseException as error:
                self._failure = error
                raise

        # They count only when they grow, and offsets have those of the driver before, which may have had another machine.
        self._ticks = loop.machine.generation << 32
        query = start(one_epoch)
        log.info("%s begins", type(query).__name__)
        ticker = threading.Thread(target=self._tick, args=(loop, epochs), name="tick", daemon=True)
        ticker.start()
        while query.isActive and not epochs.finished:
            if self._stop.wait(0.02):
                break
            if keeper is not None and keeper.suspended.is_set():
                last = metrics.checkpoint
                text = f"checkpoint {last.number} as of epoch {last.epoch}" if last is not None else ""
                metrics.note("suspended", text)
                print(f"suspended: {text}", file=sys.stderr)
                return ExitCode.SUSPENDED
            self._check_halt(loop, epochs)
        if epochs.finished:
            # The flush epoch is final only when the query has it in its commit log.
            deadline = time.monotonic() + 10
            while self._checkpoint.ended() < metrics.epoch and time.monotonic() < deadline and query.isActive:
                time.sleep(0.005)
        elif self._stop.is_set():
            epochs.stop_after_epoch()
        if self._failure is not None:
            raise self._failure
        if not epochs.finished and not self._stop.is_set():
            # Outside of an epoch: a source failed, or the process that plans it. A new driver goes on from there.
            if isinstance(failed := query.exception(), FerryError):
                raise failed
            if failed is not None and (users := user_error(failed, "a source")) is not None:
                raise users
            raise RuntimeError(f"the query ended by itself: {failed}")
        metrics.latency.flush()
        metrics.finished = epochs.finished
        if epochs.finished and not metrics.rows:
            metrics.problems.warn(inputs.NOT_READ, inputs.nothing_read(epochs.plan.sources, metrics.malformed))
        metrics.note("finished" if epochs.finished else "stopped", f"{metrics.rows} rows")
        return 0

    def _check_halt(self, loop: Loop, epochs: Epochs) -> None:
        """A halt between two epochs reaches nobody else."""
        if self._failure is not None:
            raise self._failure
        if epochs.idle.is_set():
            try:
                order = loop.orders.get_nowait()
            except queue.Empty:
                return
            if isinstance(order, core.Halt) and epochs.idle.is_set():
                raise end_of(order)
            loop.orders.put(order)

    def _tick(self, loop: Loop, epochs: Epochs) -> None:
        """Ask for an epoch without data when group changes wait for one, or the watermark, or a timer of the clock."""
        file, waits = self.settings.path / TICKS, False
        while True:
            time.sleep(0.2)
            epochs.metrics.problems.tell_slow_code(loop.machine)
            waits = inputs.pass_on(self.settings.path, epochs.metrics, waits)
            wanted = loop.machine.moves.pending() or loop.machine.checkpoints.wanted is not None
            if wanted or epochs.wants_tick() or epochs.timer_is_due():
                self._ticks += 1
                with files.replacing(file) as new:  # for the process of Ferry's source beside Spark's
                    new.write_text(str(self._ticks))
                time.sleep(0.2)
