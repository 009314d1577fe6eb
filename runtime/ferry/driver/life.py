"""All parts of one life of the driver, built once and in order; nothing runs yet but Spark.

program    the compiled pipeline, the work of its tasks, the session of Spark
loop       the coordinator: its machine decides, the journal keeps what is decided
restoring  the checkpoint that the job begins with
opening    the sinks before the first epoch
keeper     the durable checkpoints, if the job has a place for them
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ferry.connectors.sink import identify
from ferry.contract.manifest import Manifest
from ferry.contract.notes import EpochNotes
from ferry.contract.settings import RunSettings
from ferry.contract.status import BEGAN_AGAIN
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.coordinator.loop import Loop
from ferry.driver import inputs, session, standby
from ferry.driver.announcer import Announcer
from ferry.driver.checkpoint import Checkpoint
from ferry.driver.keeper import Keeper
from ferry.driver.opening import OpeningSinks
from ferry.driver.program import Program, prepared
from ferry.driver.restoring import Restoring
from ferry.driver.stages import StageHook
from ferry.durable.catalog import CheckpointCatalog
from ferry.durable.location import Location
from ferry.environment import Environment
from ferry.protocol.boundaries import lasts_for_ever
from ferry.registry import JobRegistry, JournalStore, RedisJournal
from ferry.spark import compile
from ferry.spark.tasks.warmup import warm_up

log = logging.getLogger("ferry.driver")

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder of a pod's credentials for the API server."""


@dataclass(frozen=True, slots=True)
class Life:
    """See the module."""

    settings: RunSettings
    surroundings: Environment
    checkpoint: Checkpoint
    """Spark's checkpoint: the offsets of each epoch."""
    stop: threading.Event
    """Set when the job is to stop."""
    metrics: DriverMetrics
    announcer: Announcer
    program: Program
    loop: Loop
    stage: StageHook
    restoring: Restoring
    opening: OpeningSinks
    keeper: Keeper | None


def begun(settings: RunSettings, surroundings: Environment) -> Life | None:
    """A life of the driver. None: it is a standby, and no driver will be needed any more."""
    module = compile.load(*settings.pipeline)
    job_registry = JobRegistry(settings.run, settings.redis, settings.secret)
    journal = _journal(settings, surroundings)
    announcer = Announcer(job_registry, journal, settings.slots, surroundings.life)
    spark = session.start(settings, surroundings, announcer.starting)
    session.watch_over(spark)
    metrics = DriverMetrics(settings.job, settings.directory, settings.slow_ms)
    checkpoint = Checkpoint(settings.path / "checkpoint")
    args = settings.pipeline_args, settings.output, settings.events
    is_begun = surroundings.begun or checkpoint.begun()[0] >= 0
    plan = inputs.built(lambda: compile.build(spark, module, *args), is_begun, metrics)
    identify(plan.sinks, settings.job, settings.run)
    program = prepared(settings, surroundings, spark, plan)
    if surroundings.standby and not _await_turn(program, settings):
        return None
    descriptors = [operator.descriptor for operator in plan.operators]
    announcer.settle(descriptors)
    if weakness := journal.weakness():
        log.warning("%s", weakness)
        metrics.problems.warn("JournalNotSafe", weakness)
    metrics.unbounded = "; ".join(why for descriptor in descriptors if (why := lasts_for_ever(descriptor)))
    if all(descriptor.kind != "process" for descriptor in descriptors) and not metrics.unbounded:
        metrics.window_rest.windows = tuple(descriptor.window for descriptor in descriptors)
    stop, stage, where = threading.Event(), StageHook(settings), settings.checkpoint
    shelf = None if where is None else CheckpointCatalog(Location(where.location, settings.job))
    opening = OpeningSinks(plan.sinks, settings, stop)

    def rewind(manifest: Manifest, loop: Loop) -> bool:
        identify(plan.sinks, settings.job, settings.run, manifest.job)
        checkpoint.rewind(manifest.epoch, EpochNotes.load(manifest.meta).spark)
        return opening.rewind(manifest.epoch, loop, metrics)

    restoring = Restoring(settings, descriptors, shelf, rewind)
    committed = checkpoint.ended()
    operators = len(descriptors)
    loop = Loop(settings, job_registry, journal, operators, stage, committed, restoring.begin, restoring.rewind)
    keeper = None
    if where is not None and shelf is not None:
        published = partial(_has_checkpoint, restoring, metrics)
        keeper = Keeper(settings, where, descriptors, shelf, loop, metrics, published)
    return Life(
        settings, surroundings, checkpoint, stop, metrics, announcer, program, loop, stage, restoring, opening, keeper
    )


def _has_checkpoint(restoring: Restoring, metrics: DriverMetrics) -> None:
    """The job has a checkpoint of this life: the one that it began with is not needed any more."""
    restoring.over()
    metrics.problems.caught_up(BEGAN_AGAIN)


def _await_turn(program: Program, settings: RunSettings) -> bool:
    """Be ready to take over. False: no driver will be needed any more."""
    from ferry.coordinator import control  # loads a web framework: now, and not when every millisecond counts

    assert control
    if program.loops is not None:
        return standby.await_turn(program.loops.await_all)
    descriptors = [operator.descriptor for operator in program.plan.operators]
    return standby.await_turn(lambda: warm_up(program.spark, descriptors, settings.cores))


def _journal(settings: RunSettings, surroundings: Environment) -> JournalStore:
    """The journal in the API server, where the operator says so; else in Redis."""
    in_redis = RedisJournal(settings.run, settings.redis, settings.secret)
    if surroundings.journal is None:
        return in_redis
    from ferry.registry.api_journal import Access, ApiJournal

    access = Access(surroundings.api_server, ACCOUNT / "token", ACCOUNT / "ca.crt")
    return ApiJournal(access, *surroundings.journal, in_redis, surroundings.begun)
