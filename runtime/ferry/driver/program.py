"""The program of a driver: the compiled pipeline, the work of its tasks, and the mode of epochs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import SparkSession

from ferry.connectors.users import refused
from ferry.contract.certificates import authority, issue
from ferry.contract.errors import SpecRefused
from ferry.contract.notes import EpochNotes
from ferry.contract.run_directory import DEAD_LETTER
from ferry.contract.settings import CONTINUOUS, MICRO_BATCH, RunSettings
from ferry.contract.tickets import Right
from ferry.coordinator.driver_metrics import EpochRecord
from ferry.driver.expectations import Violation
from ferry.driver.loops import Loops
from ferry.driver.program_parts import Signatures
from ferry.environment import Environment
from ferry.spark.compile import CompiledPipeline
from ferry.spark.feeds import why_planned, works_of
from ferry.spark.split_reader import SLOTS, slots
from ferry.spark.tasks.ingest import IngestWork
from ferry.system import flight_places


@dataclass(frozen=True, slots=True)
class Program:
    """The program of a running or standby driver."""

    spark: SparkSession
    plan: CompiledPipeline
    works: dict[int, IngestWork]
    """the work of tasks, by operator"""
    mode: str
    """the mode of epochs, with its reason"""
    loops: Loops | None
    """None: each ingest run is a Spark job"""
    signatures: Signatures
    """of its sources and sinks"""
    number: int = 1


class Versions(Protocol):
    """The programs of the job."""

    def version(self, number: int, epoch: int) -> Program:
        """The program of an epoch that begins now, or is repeated; loaded, with open sinks."""

    def settled(self, number: int) -> None:
        """An epoch of this program is committed."""

    def leaves(self, why: str, again: bool) -> bool:
        """Whether another program takes over an epoch whose first step fails in the user's code; `again`: once more."""

    def ended(self, epoch: EpochRecord, notes: EpochNotes, violations: Sequence[Violation]) -> None:
        """An epoch is over, whose rows violate these expectations."""


def prepared(
    settings: RunSettings,
    env: Environment,
    spark: SparkSession,
    plan: CompiledPipeline,
    signatures: Signatures,
    number: int = 1,
) -> Program:
    """Build the program and start its loops. Raises SpecRefused for an impossible mode of epochs."""
    if env.has_executors:
        (settings.path / SLOTS).unlink(missing_ok=True)  # counted by the previous driver
    works = works_for(settings, env, plan)
    mode = _mode(settings, plan, works)
    loops = _loops(settings, env, spark, number, works) if mode == CONTINUOUS else None
    return Program(spark, plan, works, mode, loops, signatures, number)


def works_for(settings: RunSettings, env: Environment, plan: CompiledPipeline) -> dict[int, IngestWork]:
    """The work of tasks, by operator. Raises SpecRefused."""
    trusted = authority(settings.secret).decode() if settings.encrypted else None
    # Tasks on other hosts share only mounted folders with the driver.
    shared = settings.dead_letter or (None if env.has_executors else str(settings.path / DEAD_LETTER))
    with refused("the program"):
        return works_of(plan, trusted, shared)


def _mode(settings: RunSettings, plan: CompiledPipeline, works: dict[int, IngestWork]) -> str:
    mode, planned = settings.epoch_mode, why_planned(plan, works)
    if mode == CONTINUOUS and planned:
        raise SpecRefused(f"epoch.mode: continuous is impossible: {planned}; choose auto or micro-batch")
    if mode == MICRO_BATCH:
        return MICRO_BATCH
    return f"{MICRO_BATCH}: {planned}" if planned else CONTINUOUS


def _loops(
    settings: RunSettings, env: Environment, spark: SparkSession, number: int, works: dict[int, IngestWork]
) -> Loops:
    """One loop per core."""
    trusted = authority(settings.secret).decode() if settings.encrypted else None
    if env.host:
        place = flight_places.at_host(env.host, env.loops_port, settings.encrypted)
    else:
        place = flight_places.at_own_socket(settings.path, "loops", settings.redis)
    identity = issue(settings.secret) if place.tls else None

    def wanted() -> int:
        return slots(settings.path) if env.has_executors else settings.cores

    return Loops(spark, number, works, place, identity, trusted, Right.root(settings.secret), wanted)
