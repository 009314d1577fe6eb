"""Builds all parts of one life of the driver, once and in order; only Spark runs already.

program               the compiled pipeline, the work of its tasks, the Spark session
loop                  the coordinator: its machine decides, the journal keeps the decisions
restoring             the checkpoint that the job begins with
sink_startup          rolls back and opens the sinks before the first epoch
checkpoint_scheduler  takes durable checkpoints, if the job has a location for them
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ferry.connectors.sink import distinct, identify
from ferry.connectors.splits import Splits
from ferry.contract.catalogue import Catalogue
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.manifest import Manifest
from ferry.contract.notes import EpochNotes
from ferry.contract.settings import RunSettings
from ferry.contract.status import BEGAN_AGAIN
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.coordinator.loop import Loop
from ferry.driver import inputs, session, standby
from ferry.driver.announcer import Announcer
from ferry.driver.beginning import beginning, begun_with, require_newest
from ferry.driver.beside import plan_of, shadow_or_void
from ferry.driver.checkpoint import Checkpoint
from ferry.driver.checkpoint_scheduler import CheckpointScheduler
from ferry.driver.probation import tried
from ferry.driver.program import Program, prepared
from ferry.driver.program_parts import digests_of
from ferry.driver.restoring import Restoring
from ferry.driver.retiring import Texts
from ferry.driver.sink_startup import SinkStartup
from ferry.driver.stages import StageHook
from ferry.durable.catalog import CheckpointCatalog
from ferry.durable.location import Location
from ferry.environment import Environment
from ferry.protocol.boundaries import lasts_for_ever
from ferry.registry import JobRegistry, JournalStore, RedisJournal
from ferry.spark import compile
from ferry.spark.split_reader import SplitsReader
from ferry.spark.tasks.warmup import warm_up
from ferry.system import program_texts

log = logging.getLogger("ferry.driver")

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder of a pod's credentials for the API server."""


@dataclass(frozen=True, slots=True)
class Life:
    """The parts of one life of the driver."""

    settings: RunSettings
    env: Environment
    checkpoint: Checkpoint
    """Spark's checkpoint: the offsets of each epoch."""
    stop: threading.Event
    """Set when the job must stop."""
    metrics: DriverMetrics
    announcer: Announcer
    program: Program
    """it begins with"""
    texts: Texts
    splits: dict[str, Splits]
    """Ferry's sources of the program that it begins with"""
    readers: list[SplitsReader]
    """which plan epochs over them, unless Spark's query does"""
    loop: Loop
    stage: StageHook
    restoring: Restoring
    sink_startup: SinkStartup
    checkpoint_scheduler: CheckpointScheduler | None


def begun(settings: RunSettings, env: Environment) -> Life | None:
    """A life of the driver. None: it is a standby, and the job has ended."""
    job_registry = JobRegistry(settings.run, settings.redis, settings.secret)
    journal = _journal(settings, env)
    announcer = Announcer(job_registry, journal, settings.slots, env.life)
    before, table = announcer.journaled()
    record = beginning(before, table, settings)
    if not env.standby:
        record = tried(record, before, table, announcer)
    program_texts.require(record, settings.path, settings.secret)
    if not record.is_shadow:
        compile.load(*record.pipeline)  # Refuses a broken text before Spark starts.
    spark = session.start(settings, env, announcer.starting)
    session.watch_over(spark)
    metrics = DriverMetrics(settings.job, settings.directory, settings.slow_ms)
    checkpoint = Checkpoint(settings.path / "checkpoint")
    is_begun = env.begun or checkpoint.begun()[0] >= 0
    texts, known = Texts(spark, settings), before or Catalogue((), ())
    text = inputs.built(lambda: shadow_or_void(record, lambda: texts.build(record)), is_begun, metrics)
    texts.keep(text)
    plan, signatures = inputs.built(
        lambda: plan_of(settings, record, text, lambda number: texts.of(number, known)), is_begun, metrics
    )
    program = prepared(settings, env, spark, plan, signatures, record.number)
    if env.standby:
        if not _await_turn(program, settings, partial(require_newest, announcer, record, settings)):
            return None
        require_newest(announcer, record, settings)
        before, table = announcer.journaled()  # Programs may have been deployed, or refused, while it was a standby.
        record = tried(beginning(before, table, settings), before, table, announcer)
    descriptors = [operator.descriptor for operator in plan.operators]
    record = replace(record, sources=digests_of(text.signatures) or record.sources)
    catalogue = begun_with(before, record, descriptors)
    if weakness := journal.weakness():
        log.warning("%s", weakness)
        metrics.problems.warn("JournalNotSafe", weakness)
    tell_windows(metrics, descriptors)
    stop, stage, where = threading.Event(), StageHook(settings), settings.checkpoint
    catalog = None if where is None else CheckpointCatalog(Location(where.location, settings.job))
    sink_startup = SinkStartup(distinct(plan.sinks), settings, stop)

    def rewind(manifest: Manifest, loop: Loop) -> bool:
        identify(distinct(plan.sinks), settings.job, settings.run, manifest.job)
        checkpoint.rewind(manifest.epoch, EpochNotes.load(manifest.meta).spark)
        return sink_startup.rewind(manifest.epoch, loop, metrics)

    restoring = Restoring(settings, catalogue, descriptors, catalog, rewind)
    committed = checkpoint.ended()
    operators = len(descriptors)
    loop = Loop(settings, job_registry, journal, operators, stage, committed, restoring.begin, restoring.rewind)
    announcer.record(restoring.catalogue, table.version.generation if table is not None else 0)
    announcer.keeps()
    checkpoint_scheduler = None
    if where is not None and catalog is not None:
        published = partial(_has_checkpoint, restoring, metrics)
        checkpoint_scheduler = CheckpointScheduler(
            settings, where, lambda: announcer.catalogue, catalog, loop, metrics, published
        )
    return Life(
        settings=settings,
        env=env,
        checkpoint=checkpoint,
        stop=stop,
        metrics=metrics,
        announcer=announcer,
        program=program,
        texts=texts,
        readers=[],
        splits={name: source for name, source in plan.sources.items() if isinstance(source, Splits)},
        loop=loop,
        stage=stage,
        restoring=restoring,
        sink_startup=sink_startup,
        checkpoint_scheduler=checkpoint_scheduler,
    )


def tell_windows(metrics: DriverMetrics, descriptors: Sequence[OperatorDescriptor]) -> None:
    """Tell how long the state of these operators lasts: moves at the boundary of a window depend on it."""
    metrics.unbounded = "; ".join(why for descriptor in descriptors if (why := lasts_for_ever(descriptor)))
    bounded = all(descriptor.kind != "process" for descriptor in descriptors) and not metrics.unbounded
    metrics.window_rest.windows = tuple(descriptor.window for descriptor in descriptors) if bounded else ()


def _has_checkpoint(restoring: Restoring, metrics: DriverMetrics) -> None:
    """This life has written a checkpoint: the job no longer needs the checkpoint that it began with."""
    restoring.over()
    metrics.problems.caught_up(BEGAN_AGAIN)


def _await_turn(program: Program, settings: RunSettings, check: Callable[[], None]) -> bool:
    """Wait as a standby until this driver must take over. False: the job has ended.

    Raises BeginsAgain once another program was deployed: the next process has it.
    """
    from ferry.coordinator import control  # loads a web framework: now, not during the takeover

    assert control
    descriptors = [operator.descriptor for operator in program.plan.operators]

    def warm() -> None:
        check()
        if program.loops is not None:
            program.loops.await_all()
        else:
            warm_up(program.spark, descriptors, settings.cores)

    return standby.await_turn(warm)


def _journal(settings: RunSettings, env: Environment) -> JournalStore:
    """The journal in the API server if the operator chose it; else the journal in Redis."""
    in_redis = RedisJournal(settings.run, settings.redis, settings.secret)
    if env.journal is None:
        return in_redis
    from ferry.registry.api_journal import Access, ApiJournal

    access = Access(env.api_server, ACCOUNT / "token", ACCOUNT / "ca.crt")
    return ApiJournal(access, *env.journal, in_redis, env.begun)
