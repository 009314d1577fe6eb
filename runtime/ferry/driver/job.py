"""One life of the driver: recover, start the query, run epochs, end."""

from __future__ import annotations

import gc
import logging
import queue
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

from pyspark.sql import DataFrame

from ferry import environment
from ferry.contract.errors import Bug, FerryError
from ferry.contract.exit_codes import ExitCode
from ferry.contract.notes import EpochNotes
from ferry.contract.settings import RunSettings
from ferry.contract.status import BEGAN_AGAIN
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.driver import inputs, life
from ferry.driver.checkpoint import Checkpoint
from ferry.driver.coordinator_orders import next_order
from ferry.driver.deploys import Deploys
from ferry.driver.epochs import Epochs
from ferry.driver.errors import Halted, Stopped, end_of
from ferry.driver.executors import warm
from ferry.driver.failures import user_error
from ferry.driver.program import Program
from ferry.driver.queries import Query, query_of
from ferry.driver.restoring import REWIND
from ferry.protocol import coordinator as core
from ferry.spark.compile import CompiledPipeline
from ferry.spark.shares import Batch
from ferry.spark.split_reader import TICKS
from ferry.system import files
from ferry.system.monitoring import MonitoringServer

log = logging.getLogger("ferry.driver")

GONE = ("unavailable", "away", "failed", REWIND)
"""Halts caused by lost state that a durable checkpoint may still hold, and the halt of a job that goes back to one."""


def run(settings: RunSettings) -> int:
    """Run the job until its bounded input is processed, or the user stops it. Returns the exit code."""
    mine = life.begun(settings, environment.read())
    if mine is None:
        return ExitCode.FINISHED
    try:
        return Job(mine).run()
    except Stopped:
        mine.metrics.note("stopped", f"{mine.metrics.rows} rows")
        return 0
    except Halted as halted:
        if halted.kind not in GONE:
            raise
        end = mine.restoring.begin_again(mine.loop, halted, mine.announcer.catalogue)
        if end is halted:
            raise
        mine.metrics.note("restore", str(end))
        raise end from halted
    finally:
        mine.restoring.over()


def resume(
    ready: core.Ready,
    plan: CompiledPipeline,
    checkpoint: Checkpoint,
    metrics: DriverMetrics,
    late: int,
    of_plan: Callable[[int], bool] = lambda epoch: True,
) -> tuple[int, bool]:
    """Resume from the committed epoch of the state. Raises StateUnavailable if its offsets are lost.

    `of_plan(epoch)`: whether the offsets of this epoch are of the sources of `plan`; another program may have other ones.

    Returns: the last committed epoch, and whether it was the last epoch of the input.
    """
    notes = EpochNotes.load(ready.meta)
    committed = ready.committed.step.epoch if ready.committed else -1
    foreign = [name for name, source in plan.sources.items() if isinstance(source, DataFrame)]
    splits = [name for name in plan.sources if name not in foreign]
    again = checkpoint.settle(committed, ready.final, notes.spark, foreign)
    if of_plan(committed):
        checkpoint.require_sources(committed, splits, foreign)
    metrics.resume(committed - again, notes, late, again)
    return committed, notes.flush and not again


class Job:
    """The running part of a life."""

    def __init__(self, of: life.Life) -> None:
        self._life = of
        self._failure: BaseException | None = None
        self._ticks = 0
        self._deploys = Deploys(of, self._open_sinks)

    def run(self) -> int:
        """Recover, then run epochs. Returns the exit code."""
        mine, loop, metrics = self._life, self._life.loop, self._life.metrics
        warm(mine.settings, mine.env, mine.program, loop, metrics)
        loop.start()
        if mine.checkpoint_scheduler is not None:
            mine.checkpoint_scheduler.start()
        threading.Thread(target=self._serve, name="control", daemon=True).start()
        query = query_of(mine, lambda: self._ticks)  # May take seconds; meanwhile the members answer.
        ready = next_order(loop)
        if not isinstance(ready, core.Ready):
            raise Bug(f"{ready} before the recovery was over")
        restoring = mine.restoring
        if (manifest := restoring.manifest) is not None and restoring.is_automatic:
            begun = f"checkpoint {manifest.number} of epoch {manifest.epoch}"
            metrics.problems.delayed(BEGAN_AGAIN, f"the job goes on from {begun}; offsets and sinks were rolled back")
        if mine.checkpoint_scheduler is None:
            restoring.over()
        newest = loop.machine.table.programs[-1]

        def of_plan(epoch: int) -> bool:
            """Offsets before the switch may be of the program before; this driver may have an earlier program."""
            return newest.number == 1 or (newest.since < epoch and newest.number == mine.program.number)

        committed, over = resume(ready, mine.program.plan, mine.checkpoint, metrics, loop.machine.commits.late, of_plan)
        metrics.epoch_mode = mine.program.mode
        metrics.note("mode", mine.program.mode)
        record = mine.announcer.catalogue.program(newest.number)
        if record is not None and record.number > 1:
            text = f"the job goes on with program {record.number} ({record.file or record.module})"
            metrics.note("deployed", f"{text}, which is in force from epoch {newest.since} on")
        metrics.note("ready", f"generation {loop.machine.generation}, committed up to epoch {committed}")
        before = mine.announcer.catalogue.program(loop.machine.table.programs[0].number)
        if before is None or not any(before.pipeline):  # Another job ran it, before a restore: its text is not here.
            loop.machine.deploying.stays = newest.number
        is_first_epoch = loop.machine.deploying.may_take_back(mine.program.number)
        if is_first_epoch:  # The epoch opens them: sinks that refuse, or are away, take the program back.
            mine.sink_startup.postpone()
        elif not mine.sink_startup.open(committed, loop, metrics, cut=self._restored and newest.since > committed):
            raise Stopped("the job was stopped")
        if over:
            metrics.note("finished", f"{metrics.rows} rows")
            return 0
        epochs = Epochs(
            mine.settings,
            loop,
            metrics,
            mine.checkpoint,
            mine.stage,
            mine.program,
            self._deploys,
            lambda programs: mine.announcer.catalogue.live(programs),
            is_first_epoch,
        )
        # A tick counts only if it is higher than the ticks in the offsets, which an older driver may have written.
        self._ticks = loop.machine.generation << 32
        self._deploys.start()
        # Objects loaded until now stay. A collection of all of them takes 100 ms, and falls into an epoch.
        gc.freeze()
        started = query(partial(self._epoch, epochs))
        log.info("%s begins", type(started).__name__)
        threading.Thread(target=self._tick, args=(epochs,), name="tick", daemon=True).start()
        if self._await_end(started, epochs):
            return ExitCode.SUSPENDED
        self._raise_failure(started, epochs)
        metrics.latency.flush()
        metrics.finished = epochs.finished
        if epochs.finished and not metrics.rows:
            metrics.problems.warn(inputs.NOT_READ, inputs.nothing_read(epochs.plan.sources, metrics.malformed))
        metrics.note("finished" if epochs.finished else "stopped", f"{metrics.rows} rows")
        return 0

    def _open_sinks(self, program: Program, committed: int, is_over: Callable[[], bool]) -> bool:
        loop, metrics = self._life.loop, self._life.metrics
        return self._life.sink_startup.follow(program.plan.sinks, committed, loop, metrics, is_over, self._restored)

    @property
    def _restored(self) -> bool:
        """Whether the job began with a checkpoint: a sink that only an earlier life had may hold epochs after it."""
        return bool(self._life.loop.machine.table.origin)

    def _serve(self) -> None:
        """Serve status and control. On its own thread, so that no epoch waits for the import."""
        from ferry.coordinator import control  # loads a web framework

        gc.freeze()
        mine, env = self._life, self._life.env
        registry = control.collect(mine.loop, mine.metrics)
        where = env.address, env.control_port
        stop = partial(mine.sink_startup.stop, mine.loop)
        url = control.serve(
            mine.loop, mine.metrics, registry, mine.settings, stop, where, mine.checkpoint_scheduler, self._deploys
        )
        if env.metrics_token is not None:
            MonitoringServer(registry, (env.address, env.metrics_port), env.metrics_token)
        if env.has_executors:
            mine.announcer.started(mine.loop.machine, url)

    def _epoch(self, epochs: Epochs, batch: Batch, epoch: int) -> None:
        try:
            epochs.run(batch, epoch)
        except Stopped:
            epochs.idle.set()
            raise
        except BaseException as error:
            self._failure = error
            raise

    def _await_end(self, query: Query, epochs: Epochs) -> bool:
        """Wait for the end of a query. Returns whether the job was suspended."""
        mine, metrics = self._life, self._life.metrics
        while query.isActive and not epochs.finished:
            if mine.stop.wait(0.02):
                break
            if mine.checkpoint_scheduler is not None and mine.checkpoint_scheduler.suspended.is_set():
                last = metrics.checkpoint
                text = f"checkpoint {last.number} as of epoch {last.epoch}" if last is not None else ""
                metrics.note("suspended", text)
                print(f"suspended: {text}", file=sys.stderr)
                return True
            self._check_halt(epochs)
        if epochs.finished:
            # The flush epoch is final once it is in the commit log of the query.
            deadline = time.monotonic() + 10
            while mine.checkpoint.ended() < metrics.epoch and time.monotonic() < deadline and query.isActive:
                time.sleep(0.005)
        elif mine.stop.is_set():
            epochs.stop_after_epoch()
        return False

    def _raise_failure(self, query: Query, epochs: Epochs) -> None:
        """Raise the error that ended a query, if an error did."""
        if self._failure is not None:
            raise self._failure
        if epochs.finished or self._life.stop.is_set():
            return
        # Outside of an epoch a source failed, or its planning process. A new driver resumes.
        if isinstance(failed := query.exception(), FerryError):
            raise failed
        if failed is not None and (users := user_error(failed, "a source")) is not None:
            raise users
        raise RuntimeError(f"the query ended unexpectedly: {failed}")

    def _check_halt(self, epochs: Epochs) -> None:
        """Raise the error of a halt that arrives between two epochs, because no epoch reads orders then."""
        if self._failure is not None:
            raise self._failure
        orders = self._life.loop.orders
        if epochs.idle.is_set():
            try:
                order = orders.get_nowait()
            except queue.Empty:
                return
            if isinstance(order, core.Halt) and epochs.idle.is_set():
                raise end_of(order)
            orders.put(order)

    def _tick(self, epochs: Epochs) -> None:
        """Start an epoch without data when group changes, the watermark or a processing-time timer wait for an epoch."""
        path, machine = self._life.settings.path, self._life.loop.machine
        waits = False
        while True:
            time.sleep(0.2)
            epochs.metrics.problems.tell_slow_code(machine)
            waits = inputs.pass_on(path, epochs.metrics, waits)
            waiting = machine.moves.pending() or machine.checkpoints.wanted is not None
            wanted = waiting or machine.deploying.is_due(epochs.metrics.epoch + 1)
            if wanted or epochs.wants_tick() or epochs.timer_is_due():
                self._ticks += 1
                with files.replacing(path / TICKS) as new:  # for the process of Ferry's source beside Spark's
                    new.write_text(str(self._ticks))
                time.sleep(0.2)
