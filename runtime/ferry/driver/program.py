"""What a driver has to run, and with what: a plan, what tasks do for it, and how epochs are run."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession

from ferry.connectors.users import refused
from ferry.contract.certificates import authority, issue
from ferry.contract.errors import SpecRefused
from ferry.contract.run_directory import DEAD_LETTER
from ferry.contract.settings import CONTINUOUS, MICRO_BATCH, RunSettings
from ferry.contract.tickets import Right
from ferry.driver.loops import Loops
from ferry.environment import Environment
from ferry.spark.compile import CompiledPipeline
from ferry.spark.feeds import why_planned, works_of
from ferry.spark.split_reader import SLOTS, slots
from ferry.spark.tasks.ingest import IngestWork
from ferry.system import flight_places


@dataclass(frozen=True, slots=True)
class Program:
    """Of a driver that runs, or of one that is not needed yet."""

    spark: SparkSession
    plan: CompiledPipeline
    works: dict[int, IngestWork]
    """what tasks do, by operator"""
    mode: str
    """how epochs are run, and why"""
    loops: Loops | None
    """None: a job of Spark an ingest run"""


def prepared(settings: RunSettings, around: Environment, spark: SparkSession, plan: CompiledPipeline) -> Program:
    """Its tasks take their places already. Raises SpecRefused for a mode of epochs that cannot be."""
    if around.standalone:
        (settings.path / SLOTS).unlink(missing_ok=True)  # as the life before has counted them
    trusted = authority(settings.secret).decode() if settings.encrypted else None
    # On other hosts they share with the driver only what is mounted on both.
    shared = settings.dead_letter or (None if around.standalone else str(settings.path / DEAD_LETTER))
    with refused("the program"):
        works = works_of(plan, trusted, shared)
    mode = _mode(settings, plan, works)
    loops = _loops(settings, around, spark, works, trusted) if mode == CONTINUOUS else None
    return Program(spark, plan, works, mode, loops)


def _mode(settings: RunSettings, plan: CompiledPipeline, works: dict[int, IngestWork]) -> str:
    asked, planned = settings.epoch_mode, why_planned(plan, works)
    if asked == CONTINUOUS and planned:
        raise SpecRefused(f"epoch.mode: continuous cannot be: {planned}; auto, or micro-batch")
    if asked == MICRO_BATCH:
        return MICRO_BATCH
    return f"{MICRO_BATCH}: {planned}" if planned else CONTINUOUS


def _loops(
    settings: RunSettings, around: Environment, spark: SparkSession, works: dict[int, IngestWork], trusted: str | None
) -> Loops:
    """As many as there are cores for."""
    if around.host:
        place = flight_places.at_host(around.host, around.loops_port, settings.encrypted)
    else:
        place = flight_places.at_own_socket(settings.path, "loops", settings.redis)
    identity = issue(settings.secret) if place.tls else None

    def wanted() -> int:
        return slots(settings.path) if around.standalone else settings.cores

    return Loops(spark, works, place, identity, trusted, Right.root(settings.secret), wanted)
