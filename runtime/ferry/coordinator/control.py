"""The control endpoint of the driver: status, the desired placement, stop, metrics. A token on every call but /healthz.

Must never change groups itself: it hands the loop events.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import prometheus_client as prom
import uvicorn
from fastapi import APIRouter, Body, Depends, FastAPI, Header, HTTPException, Response

from ferry.contract import limits
from ferry.contract.addresses import is_v6, netloc
from ferry.contract.certificates import issue, server_context
from ferry.contract.documents import RunSettings
from ferry.contract.placement import DesiredPlacement
from ferry.contract.tickets import derived
from ferry.coordinator.loop import Loop
from ferry.coordinator.meters import Load, StateCollector
from ferry.coordinator.progress import EPOCH_STAGES, Progress
from ferry.protocol.coordinator import Coordinator, Desired


def app(
    loop: Loop, progress: Progress, registry: prom.CollectorRegistry, token: str, stop: Callable[[], None]
) -> FastAPI:
    """The HTTP application."""

    def authenticate(authorization: Annotated[str, Header()] = "") -> None:
        if not hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
            raise HTTPException(401, "a valid bearer token is needed")

    served = FastAPI(title="Ferry coordinator", docs_url=None, redoc_url=None, openapi_url=None)

    @served.get("/healthz")
    def healthz() -> Response:
        stands = loop.stands_for()
        return Response(f"the loop came round {stands:.1f} s ago\n", 200 if stands < limits.HANG_SECONDS else 503)

    api = APIRouter(dependencies=[Depends(authenticate)])
    last: list[DesiredPlacement] = []
    one_at_a_time = threading.Lock()

    @api.get("/status")
    def status() -> dict[str, Any]:
        return progress.status(loop.machine, loop.meters).to_wire()

    @api.put("/desired")
    def desired(document: Annotated[dict[str, Any], Body()]) -> dict[str, int]:
        try:
            one = DesiredPlacement.from_wire(document)
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        wanted = loop.machine.table.virtual_nodes
        if len(one.placements) != wanted:
            raise HTTPException(422, f"{len(one.placements)} placements for {wanted} virtual nodes")
        with one_at_a_time:
            if last and one.token < last[0].token:
                raise HTTPException(409, f"token {one.token} is superseded by {last[0].token}")
            last[:] = [one]
            loop.post(Desired(one.number, one.placements))
        return {"number": one.number}

    @api.get("/desired")
    def last_desired() -> dict[str, Any]:
        if not last:
            raise HTTPException(404, "no placement was given to this driver")
        return last[0].to_wire()

    @api.post("/stop")
    def stop_job() -> dict[str, str]:
        stop()
        return {"state": "stopping"}

    @api.get("/metrics")
    def scrape() -> Response:
        return Response(prom.generate_latest(registry), media_type=prom.CONTENT_TYPE_LATEST)

    served.include_router(api)
    return served


def metrics(loop: Loop, progress: Progress) -> prom.CollectorRegistry:
    """Prometheus metrics: those of the loop, and what can be read from the counters when they are scraped."""
    registry = loop.meters.registry
    machine = loop.machine
    gauges: list[tuple[str, str, Callable[[], float]]] = [
        ("ferry_epoch", "Last finished epoch", lambda: progress.epoch),
        ("ferry_records", "Records taken into committed epochs", lambda: progress.rows),
        ("ferry_late_records", "Records dropped because all their windows were final", lambda: progress.late),
        ("ferry_malformed_records", "Records set aside", lambda: progress.malformed),
        ("ferry_records_per_second", "Over the last epochs", lambda: progress.rates()[0]),
        ("ferry_epoch_seconds", "Median of the last epochs", lambda: progress.rates()[1]),
        ("ferry_generation", "Generation of this driver", lambda: machine.generation),
        ("ferry_instances_alive", "Instances that obey this driver", lambda: len(machine.alive)),
        ("ferry_journal_up", "1 when group changes are possible", lambda: float(machine.journal_up)),
        ("ferry_learners", "Members being warmed", lambda: sum(len(g.learners) for g in machine.table.groups)),
        ("ferry_replicas_missing", "Copies that are wanted and not in sync", lambda: replicas_missing(machine)),
        (
            "ferry_replica_lag_epochs",
            "Epochs since the oldest copy that is not in sync was begun",
            lambda: loop.meters.replica_lag(progress.epoch),
        ),
        ("ferry_watermark_lag_seconds", "Event time behind the clock", lambda: progress.watermark_lag(machine)),
    ]
    for name, text, read in gauges:
        prom.Gauge(name, text, registry=registry).set_function(read)
    stages = prom.Gauge("ferry_epoch_stage_seconds", "Median of the last epochs", ["stage"], registry=registry)
    for stage in EPOCH_STAGES:
        stages.labels(stage).set_function(partial(progress.stage_seconds, stage))

    def loads() -> list[Load]:
        return loop.meters.loads(machine.table, progress.rates()[0])

    registry.register(StateCollector(lambda: machine.table, loads))
    return registry


def replicas_missing(machine: Coordinator) -> int:
    """Copies that are wanted and not in sync."""
    wanted = zip(machine.table.groups, machine.placements(), strict=True)
    return sum(max(0, len(placement) - len(group.in_sync)) for group, placement in wanted)


def serve(
    loop: Loop,
    progress: Progress,
    registry: prom.CollectorRegistry,
    settings: RunSettings,
    stop: Callable[[], None],
    address: tuple[str, int],
) -> str:
    """Listen at (host, port), 0 for any free port; write `driver.json`; return the URL."""
    listener = socket.create_server(address, family=socket.AF_INET6 if is_v6(address[0]) else socket.AF_INET)
    scheme, context = ("https", server_context(issue(settings.secret))) if settings.encrypted else ("http", None)
    url = f"{scheme}://{netloc(address[0], listener.getsockname()[1])}"
    served = app(loop, progress, registry, derived(settings.secret, "control"), stop)
    config = uvicorn.Config(served, log_level="warning", access_log=False)
    config.ssl_context_factory = (lambda *_: context) if context is not None else None
    server = uvicorn.Server(config)
    threading.Thread(target=lambda: server.run(sockets=[listener]), name="control", daemon=True).start()
    target = settings.path / "driver.json"
    hidden = settings.path / ".driver.json"
    hidden.write_text(json.dumps({"url": url, "pid": os.getpid(), "generation": loop.machine.generation}))
    hidden.rename(target)
    return url
