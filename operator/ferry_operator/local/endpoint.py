"""The supervisor's HTTP endpoint: what other terminals and the driver ask of a running job.

It translates between HTTP and `requests`, and decides nothing. Every request carries a bearer token, which is derived
from the run's secret.

| request | answer |
|---|---|
| GET /job | the job as `view.describe` has it |
| PATCH /spec {workers?, instancesPerWorker?, handover?, balance?} | scales; how plans are cut, and whether load moves |
| POST /move {vnodes, instance} · POST /drain {worker} · POST /kill {what} · POST /stop | does it |
| POST /plan {plan} · DELETE /plan | takes a plan; takes the last one back |
| POST /checkpoint {name} | {"number"} of a durable checkpoint that is under way |
| POST /suspend | the run ends after a last one |
| POST /stage {epoch, stage} | from the driver: runs what is due there, then answers |

409 with {"reason"} is a refusal: nothing changed.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from ferry.contract.errors import FerryError, Refusal
from ferry.system.api_server import Application, guarded
from ferry_operator.control import plan_file
from ferry_operator.control.commands import AT_WINDOW, Command, parse_command
from ferry_operator.job.models_balance import BalanceSpec
from ferry_operator.job.models_handover import Handover
from ferry_operator.local.requests import (
    Ask,
    BeginCheckpoint,
    CancelPlan,
    ChangeJob,
    DescribeJob,
    ReachStage,
    Request,
    StopRun,
    SubmitPlan,
    SuspendRun,
)


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SpecPatch(_Body):
    """What may change; None changes nothing. Of `handover`, what holds for the next plan."""

    workers: int | None = None
    instancesPerWorker: int | None = None
    handover: Handover | None = None
    balance: BalanceSpec | None = None


class MoveRequest(_Body):
    """Lead these virtual nodes on this instance."""

    vnodes: list[int]
    instance: str
    at_window: bool = False


class Drain(_Body):
    """Empty this worker."""

    worker: int


class Kill(_Body):
    """End without warning: 'driver', a worker 'K' or an instance 'K.I'."""

    what: str


class SubmittedPlan(_Body):
    """A plan as its file has it."""

    plan: str


class CheckpointBody(_Body):
    """A durable checkpoint, with a name or without."""

    name: str | None = None


class StageReached(_Body):
    """Where the driver waits."""

    epoch: int
    stage: str


def kill_command(what: str) -> Command:
    """The action for what `ferry kill` names."""
    if what == "driver":
        return parse_command("kill-driver")
    return parse_command(f"kill-instance={what}" if "." in what else f"kill-worker={what}")


def application(ask: Ask, token: str) -> Application:
    """The routes; `ask` is called from threads of the endpoint."""

    app = FastAPI(openapi_url=None)

    def answer(request: Request) -> JSONResponse:
        return JSONResponse(ask(request))

    def perform(*commands: Command) -> JSONResponse:
        return answer(ChangeJob(commands))

    @app.exception_handler(FerryError)
    def refused(request: Any, error: Exception) -> JSONResponse:
        return JSONResponse({"reason": str(error)}, 409 if isinstance(error, Refusal) else 503)

    @app.get("/job")
    def job() -> JSONResponse:
        return answer(DescribeJob())

    @app.patch("/spec")
    def change(patch: SpecPatch) -> JSONResponse:
        sizes = {"workers": patch.workers, "instances": patch.instancesPerWorker}
        commands = [parse_command(f"{kind}={number}") for kind, number in sizes.items() if number is not None]
        return answer(ChangeJob(tuple(commands), patch.handover, patch.balance))

    @app.post("/move")
    def move(body: MoveRequest) -> JSONResponse:
        place = body.instance + (AT_WINDOW if body.at_window else "")
        return perform(*[parse_command(f"move={vnode}:{place}") for vnode in body.vnodes])

    @app.post("/drain")
    def drain(body: Drain) -> JSONResponse:
        return perform(parse_command(f"drain={body.worker}"))

    @app.post("/kill")
    def kill(body: Kill) -> JSONResponse:
        return perform(kill_command(body.what))

    @app.post("/stop")
    def stop() -> JSONResponse:
        return answer(StopRun())

    @app.post("/plan")
    def submit(body: SubmittedPlan) -> JSONResponse:
        return answer(SubmitPlan(plan_file.read(body.plan)))

    @app.delete("/plan")
    def cancel() -> JSONResponse:
        return answer(CancelPlan())

    @app.post("/checkpoint")
    def checkpoint(body: CheckpointBody) -> JSONResponse:
        return answer(BeginCheckpoint(body.name))

    @app.post("/suspend")
    def suspend() -> JSONResponse:
        return answer(SuspendRun())

    @app.post("/stage")
    def stage(body: StageReached) -> JSONResponse:
        return answer(ReachStage(body.epoch, body.stage))

    return guarded(app, token)
