"""The supervisor's HTTP endpoint, for other terminals and for the driver of the run.

It translates between HTTP and `requests`, and decides nothing. Every request carries a bearer token, which is derived
from the secret of the run.

| request | answer |
|---|---|
| GET /job | the job, by `view.describe` |
| PATCH /spec {workers?, instancesPerWorker?, handover?, balance?} | scales; sets the policies of handovers and balancing |
| POST /move {vnodes, instance} · POST /drain {worker} · POST /kill {what} · POST /stop | executes the command |
| POST /plan {plan} · DELETE /plan | submits a plan; withdraws it |
| POST /checkpoint {name} | begins a durable checkpoint; its {"number"} |
| POST /suspend | ends the run after a last checkpoint |
| POST /stage {epoch, stage} | from the driver: executes the commands that are due, then answers |

409 with {"reason"} is a refusal: the job is unchanged.
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
    """Live fields of the spec; None changes nothing. `handover` applies to the next plan."""

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
    """Kill 'driver', a worker 'K' or an instance 'K.I'."""

    what: str


class SubmittedPlan(_Body):
    """The text of a plan file."""

    plan: str


class CheckpointBody(_Body):
    """A durable checkpoint; None: without a name."""

    name: str | None = None


class StageReached(_Body):
    """The epoch and stage at which the driver waits."""

    epoch: int
    stage: str


def kill_command(target: str) -> Command:
    """The command that kills a target of `ferry kill`."""
    if target == "driver":
        return parse_command("kill-driver")
    return parse_command(f"kill-instance={target}" if "." in target else f"kill-worker={target}")


def application(ask: Ask, token: str) -> Application:
    """The routes; threads of the endpoint call `ask`."""

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
