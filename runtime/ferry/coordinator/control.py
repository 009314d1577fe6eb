"""The control endpoint of the driver: status, the desired placement, stop, metrics. Every call but /healthz needs a
token.

Must never change groups itself: it posts events to the loop.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Protocol

import prometheus_client as prom
from fastapi import Body, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel, Field, StringConstraints

from ferry.contract import limits
from ferry.contract.catalogue import PROBATION_SECONDS, SLOWER, DeployRequest
from ferry.contract.certificates import issue, server_context
from ferry.contract.errors import FerryError, Refusal, SpecRefused, Unreachable
from ferry.contract.plans import TIME_MAX, TIME_MIN, Plan
from ferry.contract.program_text import TEXT_BYTES_MAX, packed
from ferry.contract.programs import Programs
from ferry.contract.run_directory import DRIVER, DriverAddress
from ferry.contract.settings import RunSettings
from ferry.contract.status import KNOWN, CheckpointStatus, ProgramStatus
from ferry.contract.tickets import derived
from ferry.coordinator.driver_metrics import EPOCH_STAGES, DriverMetrics, ProgramCounts
from ferry.coordinator.loop import Loop
from ferry.coordinator.move_metrics import Load, StateCollector
from ferry.coordinator.status import status_of
from ferry.protocol.coordinator import Coordinator
from ferry.system import files
from ferry.system.api_server import ApiServer, Application, guarded


class CheckpointCommands(Protocol):
    """The part of the driver that takes durable checkpoints."""

    def take(self, name: str | None) -> int:
        """Request a checkpoint; returns its number. Raises Refusal."""

    def suspend(self) -> int:
        """Request the last checkpoint and the end of the job; returns the checkpoint's number."""


class DeployCommands(Protocol):
    """The part of the driver that deploys programs."""

    def programs(self) -> list[dict[str, Any]]:
        """All programs that are remembered, the newest first."""

    def brief(self) -> tuple[ProgramStatus, ...]:
        """The program in force, and the newest one if it is another one."""

    def catalogue(self) -> dict[str, Any]:
        """{"catalogue": `Catalogue` as text, "inForce": ids of the operators in force}."""

    def request(self, request: DeployRequest) -> int:
        """Begin a deploy; returns the number of the program. Raises Refusal while another one is under way."""

    def rollback(self, number: int | None, at: int = 0, withdraw: int | None = None) -> int:
        """Deploy an earlier program again, or only give up a deploy; returns its new number. Raises Refusal."""

    def rewind(self, identity: str = "", leaves: int | None = None) -> int:
        """Go back to a state before the program in force; returns the number of its program. Raises Refusal.

        `leaves`: the program to leave; a job that has left it already stays where it is.
        """


class DeployBody(BaseModel):
    """Body of a request for another program."""

    module: str | None = None
    file: str | None = None
    folder: str | None = None
    arguments: dict[str, Any] | None = None
    at: Annotated[int, Field(ge=0)] = 0
    text: Annotated[str, StringConstraints(max_length=TEXT_BYTES_MAX)] = ""
    """the text of the program, which `file` only names then"""
    attempt: str = ""
    shadow: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    keep: Annotated[float, Field(ge=0, le=30 * 86400)] = 0
    """seconds"""
    at_time: Annotated[int, Field(ge=TIME_MIN, le=TIME_MAX)] | None = None
    """event time, in milliseconds since 1970"""
    probation: Annotated[float, Field(ge=0, le=30 * 86400)] = PROBATION_SECONDS
    """seconds"""
    slower: Annotated[float, Field(ge=0, le=1_000_000)] = SLOWER
    rewind: bool = False
    base: Annotated[int, Field(ge=0)] = 0
    """the program that the user looked at; 0: no matter which one is in force"""


class RollbackBody(BaseModel):
    """Body of a request for an earlier program."""

    to: Annotated[int, Field(ge=1)] | None = None
    at: Annotated[int, Field(ge=0)] = 0
    withdraw: Annotated[int, Field(ge=1)] | None = None
    """Only give up the deploy of this program."""
    rewind: bool = False
    """Go back to the state before the program in force, too."""
    leaves: Annotated[int, Field(ge=1)] | None = None
    """Of a rewind: the program to leave."""
    attempt: Annotated[str, StringConstraints(max_length=64)] = ""
    """Equal for a request that is repeated because its answer was late: it is carried out once."""


class DurableCheckpointBody(BaseModel):
    """Body of a request for a checkpoint."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")] | None = None


class CopyLimit(BaseModel):
    """Body of a request to limit the bandwidth of copies."""

    bytes: Annotated[int, Field(ge=0)]
    """bytes a second, of each instance; 0: unlimited"""


def app(
    loop: Loop,
    metrics: DriverMetrics,
    registry: prom.CollectorRegistry,
    token: str,
    stop: Callable[[], None],
    checkpoints: CheckpointCommands | None = None,
    deploys: DeployCommands | None = None,
) -> Application:
    """The HTTP application."""

    served = FastAPI(title="Ferry coordinator", docs_url=None, redoc_url=None, openapi_url=None)

    @served.get("/healthz")
    def healthz() -> Response:
        idle = loop.seconds_since_pass()
        return Response(f"the loop came round {idle:.1f} s ago\n", 200 if idle < limits.HANG_SECONDS else 503)

    taken: list[Plan] = []
    one_at_a_time = threading.Lock()
    rolled_back: dict[str, int] = {}
    one_rollback = threading.Lock()

    def newest() -> Plan | None:
        """The last plan of this driver, or of its predecessor; as it is in force, if it has begun."""
        in_force = loop.machine.moves.plan
        return taken[0] if taken and (in_force is None or in_force.number < taken[0].number) else in_force

    @served.get("/status")
    def status(request: Request) -> Response:
        # No response model: FastAPI would check every value of a long document again.
        programs = deploys.brief() if deploys is not None else ()
        known = request.headers.get(KNOWN, "").split()
        now = status_of(metrics, loop.machine, loop.move_metrics, loop.bandwidth, programs, known)
        return JSONResponse(now.to_wire())

    @served.put("/desired")
    def desired(document: Annotated[dict[str, Any], Body()]) -> dict[str, int]:
        try:
            plan = Plan.from_wire(document)
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        wanted = loop.machine.table.virtual_nodes
        if len(plan.placements) != wanted:
            raise HTTPException(422, f"{len(plan.placements)} placements for {wanted} virtual nodes")
        with one_at_a_time:
            if (last := newest()) is not None and plan.token < last.token:
                raise HTTPException(409, f"token {plan.token} is superseded by {last.token}")
            taken[:] = [plan]
            loop.post(plan)
        return {"number": plan.number}

    @served.get("/desired")
    def last_desired() -> Response:
        if (plan := newest()) is None:
            raise HTTPException(404, "this job has no plan")
        return JSONResponse(plan.to_wire())

    @served.put("/bandwidth")
    def limit_copies(limit: CopyLimit) -> dict[str, int]:
        loop.bandwidth = limit.bytes
        return {"bytes": limit.bytes}

    @served.post("/stop")
    def stop_job() -> dict[str, str]:
        stop()
        return {"state": "stopping"}

    def asked(ask: Callable[[CheckpointCommands], int]) -> dict[str, int]:
        if checkpoints is None:
            raise HTTPException(409, "the job has no state.checkpoint.location: it takes no checkpoints")
        try:
            return {"number": ask(checkpoints)}
        except Refusal as error:
            raise HTTPException(409, str(error)) from None
        except FerryError as error:
            raise HTTPException(503, str(error)) from None

    @served.post("/checkpoint", status_code=202)
    def take_checkpoint(request: DurableCheckpointBody) -> dict[str, int]:
        return asked(lambda one: one.take(request.name))

    @served.post("/suspend", status_code=202)
    def suspend() -> dict[str, int]:
        return asked(lambda one: one.suspend())

    @served.get("/programs")
    def programs() -> Response:
        return JSONResponse(deploys.programs() if deploys is not None else [])

    @served.get("/catalogue")
    def catalogue() -> Response:
        if deploys is None:
            raise HTTPException(409, "the driver has not begun yet")
        return JSONResponse(deploys.catalogue())

    @served.put("/program", status_code=202)
    def deploy(body: DeployBody) -> dict[str, int]:
        if deploys is None:
            raise HTTPException(409, "the driver has not begun yet")
        try:
            text = packed(body.text) if body.text else ""
            return {"number": deploys.request(DeployRequest(**{**body.model_dump(), "text": text}))}
        except SpecRefused as error:
            raise HTTPException(422, str(error)) from None
        except Refusal as error:
            raise HTTPException(409, str(error)) from None
        except Unreachable as later:
            raise HTTPException(423, str(later)) from None

    @served.post("/rollback", status_code=202)
    def rollback(body: RollbackBody) -> dict[str, int]:
        if deploys is None:
            raise HTTPException(409, "the driver has not begun yet")
        try:
            if body.rewind:
                return {"number": deploys.rewind(leaves=body.leaves)}
            with one_rollback:
                if not body.attempt or body.attempt not in rolled_back:
                    number = deploys.rollback(body.to, body.at, body.withdraw)
                    rolled_back.clear()
                    rolled_back[body.attempt] = number
                return {"number": rolled_back[body.attempt]}
        except Refusal as error:
            raise HTTPException(409, str(error)) from None
        except Unreachable as later:
            raise HTTPException(423, str(later)) from None

    @served.get("/metrics")
    def metrics_text() -> Response:
        return Response(prom.generate_latest(registry), media_type=prom.CONTENT_TYPE_LATEST)

    return guarded(served, token, {"/healthz"})


def collect(loop: Loop, metrics: DriverMetrics) -> prom.CollectorRegistry:
    """Prometheus metrics: the loop's, and gauges that read counters when they are scraped."""
    registry = loop.move_metrics.registry
    machine = loop.machine

    def kept() -> CheckpointStatus:
        return metrics.checkpoint or CheckpointStatus()

    gauges: list[tuple[str, str, Callable[[], float]]] = [
        ("ferry_epoch", "Last finished epoch", lambda: metrics.epoch),
        ("ferry_records", "Records taken into committed epochs", lambda: metrics.rows),
        ("ferry_late_records", "Records dropped because all their windows were final", lambda: metrics.late),
        ("ferry_malformed_records", "Records set aside", lambda: metrics.malformed),
        ("ferry_records_per_second", "Over the last epochs", lambda: metrics.rates()[0]),
        ("ferry_epoch_seconds", "Median of the last epochs", lambda: metrics.rates()[1]),
        ("ferry_program", "Number of the newest program", lambda: machine.table.programs[-1].number),
        ("ferry_generation", "Generation of this driver", lambda: machine.generation),
        ("ferry_instances_alive", "Instances that obey this driver", lambda: len(machine.alive)),
        ("ferry_journal_up", "1 when group changes are possible", lambda: float(machine.journaling.up)),
        ("ferry_learners", "Members being warmed", lambda: sum(len(g.learners) for g in machine.table.groups)),
        ("ferry_replicas_missing", "Planned copies that are not in sync", lambda: replicas_missing(machine)),
        (
            "ferry_replica_lag_epochs",
            "Epochs since the oldest copy that is not in sync was begun",
            lambda: loop.move_metrics.replica_lag(metrics.epoch),
        ),
        ("ferry_checkpoint_epoch", "Last epoch that is in a durable checkpoint", lambda: kept().epoch),
        (
            "ferry_checkpoint_age_seconds",
            "Since the last durable checkpoint",
            lambda: time.time() - (kept().at or math.nan),
        ),
        (
            "ferry_checkpoint_delayed",
            "1 while a durable checkpoint is late or fails",
            lambda: float(metrics.problems.is_late()),
        ),
        ("ferry_checkpoint_bytes", "Bytes written by the last durable checkpoint", lambda: kept().bytes),
        ("ferry_checkpoint_total_bytes", "Bytes that a restore from it reads, at most", lambda: kept().total_bytes),
        ("ferry_watermark_lag_seconds", "Event time behind the clock", lambda: metrics.watermark_lag(machine)),
    ]
    for name, text, read in gauges:
        prom.Gauge(name, text, registry=registry).set_function(read)
    stages = prom.Gauge("ferry_epoch_stage_seconds", "Median of the last epochs", ["stage"], registry=registry)
    for stage in EPOCH_STAGES:
        stages.labels(stage).set_function(partial(metrics.stage_seconds, stage))

    def loads() -> list[Load]:
        return loop.move_metrics.loads(machine.table, metrics.rates()[0])

    registry.register(StateCollector(lambda: machine.table, loads))
    registry.register(metrics.latency)
    registry.register(LagCollector(metrics))
    registry.register(ProgramCollector(lambda: machine.table.programs, lambda: metrics.programs))
    return registry


class LagCollector(Collector):
    """Backlog of the sources that know it, and violations of expectations."""

    def __init__(self, metrics: DriverMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """A gauge of each source, a counter of each expectation."""
        family = GaugeMetricFamily("ferry_source_lag_records", "Records that wait to be read", labels=["source"])
        for source, many in self._metrics.lags.items():
            family.add_metric([source], many)
        yield family
        violations = CounterMetricFamily(
            "ferry_expectation_violations", "Rows that violate an expectation", labels=["expectation"]
        )
        for name, many in sorted(self._metrics.violations.items()):
            violations.add_metric([name], many)
        yield violations


class ProgramCollector(Collector):
    """First epochs and counters, by program."""

    def __init__(self, programs: Callable[[], Programs], counts: Callable[[], Mapping[int, ProgramCounts]]) -> None:
        self._programs = programs
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """A gauge for the program of the last committed epoch, and of the next one; counters of the newest programs."""
        text = "First epoch of a program in force"
        family = GaugeMetricFamily("ferry_program_first_epoch", text, labels=["program"])
        for program in self._programs():
            family.add_metric([str(program.number)], program.since)
        yield family
        counters: list[tuple[str, str, Callable[[ProgramCounts], float]]] = [
            ("ferry_program_epochs", "Finished epochs of a program", lambda counts: counts.epochs),
            ("ferry_program_epoch_seconds", "Time of all its epochs together", lambda counts: counts.seconds),
            ("ferry_program_records", "Records in its epochs", lambda counts: counts.rows),
            ("ferry_program_fired_rows", "Rows of its operators", lambda counts: counts.fired),
            ("ferry_program_late_records", "Late records in its epochs", lambda counts: counts.late),
            ("ferry_program_malformed_records", "Records set aside in its epochs", lambda counts: counts.malformed),
        ]
        known = self._counts()
        for name, text, read in counters:
            counter = CounterMetricFamily(name, text, labels=["program"])
            for number, counts in known.items():
                counter.add_metric([str(number)], read(counts))
            yield counter


def replicas_missing(machine: Coordinator) -> int:
    """Number of planned copies that are not in sync."""
    wanted = zip(machine.table.groups, machine.moves.placements(), strict=True)
    return sum(max(0, len(placement) - len(group.in_sync)) for group, placement in wanted)


def serve(
    loop: Loop,
    metrics: DriverMetrics,
    registry: prom.CollectorRegistry,
    settings: RunSettings,
    stop: Callable[[], None],
    address: tuple[str, int],
    checkpoints: CheckpointCommands | None = None,
    deploys: DeployCommands | None = None,
) -> str:
    """Listen at (host, port), 0 for any free port; write `driver.json`; return the URL."""
    context = server_context(issue(settings.secret)) if settings.encrypted else None
    served = app(loop, metrics, registry, derived(settings.secret, "control"), stop, checkpoints, deploys)
    url = ApiServer(served, address, context).url
    with files.replacing(settings.path / DRIVER) as new:
        new.write_text(DriverAddress(url, os.getpid(), loop.machine.generation).dump())
    return url
