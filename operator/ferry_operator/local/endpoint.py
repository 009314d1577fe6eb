"""The supervisor's HTTP endpoint: what other terminals and the driver ask of a running job.

It translates between HTTP and `SupervisorPort`, and decides nothing. Every request carries a bearer token, which is
derived from the run's secret.

| request | answer |
|---|---|
| GET /job | the job as `SupervisorPort.job` describes it |
| PATCH /spec {workers?, instancesPerWorker?, handover?, balance?} | scales; how plans are cut, and whether load moves |
| POST /move {vnodes, instance} · POST /drain {worker} · POST /kill {what} · POST /stop | does it |
| POST /plan {plan} · DELETE /plan | takes a plan; takes the last one back |
| POST /checkpoint {name} | {"number"} of a durable checkpoint that is under way |
| POST /suspend | the run ends after a last one |
| POST /stage {epoch, stage} | from the driver: runs what is due there, then answers |

409 with {"reason"} is a refusal: nothing changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from ferry.contract.errors import FerryError, Refusal
from ferry.system.api_server import Application, guarded
from ferry_operator.control import plan_file
from ferry_operator.control.commands import AT_WINDOW, Command, parse_command
from ferry_operator.control.plan_file import PlanFile
from ferry_operator.job.models_balance import BalanceSpec
from ferry_operator.job.models_handover import Handover


class SupervisorPort(Protocol):
    """What the endpoint needs of a supervisor; called from threads of the endpoint. Raises Refusal."""

    def job(self) -> dict[str, Any]:
        """The job as plain values."""

    def perform(self, commands: Sequence[Command]) -> None:
        """Do these actions now; none of them when one names what is not there."""

    def handover(self, wanted: Handover) -> None:
        """How plans are cut from now on; what is not set stays."""

    def balance(self, wanted: BalanceSpec) -> None:
        """Whether load moves by itself from now on; what is not set stays."""

    def submit(self, one: PlanFile) -> None:
        """The job gets the size of this plan, and its placements."""

    def cancel(self) -> None:
        """Take the plan back that was handed in."""

    def stage(self, epoch: int, stage: str) -> None:
        """Do what is due at this stage of this epoch."""

    def stop(self) -> None:
        """Begin to end the run gracefully."""

    def checkpoint(self, name: str | None) -> int:
        """Have a durable checkpoint taken; its number."""

    def suspend(self) -> None:
        """Begin to end the run with a last durable checkpoint."""


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


class PlanHandedIn(_Body):
    """A plan as its file has it."""

    plan: str


class CheckpointAsked(_Body):
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


def application(control: SupervisorPort, token: str) -> Application:
    """The routes."""

    app = FastAPI(openapi_url=None)

    @app.exception_handler(FerryError)
    def refused(request: Any, error: Exception) -> JSONResponse:
        return JSONResponse({"reason": str(error)}, 409 if isinstance(error, Refusal) else 503)

    @app.get("/job")
    def job() -> JSONResponse:
        return JSONResponse(control.job())

    @app.patch("/spec")
    def scale(patch: SpecPatch) -> JSONResponse:
        commands = []
        if patch.workers is not None:
            commands.append(parse_command(f"workers={patch.workers}"))
        if patch.instancesPerWorker is not None:
            commands.append(parse_command(f"instances={patch.instancesPerWorker}"))
        if patch.handover is not None:
            control.handover(patch.handover)
        if patch.balance is not None:
            control.balance(patch.balance)
        control.perform(commands)
        return JSONResponse({})

    @app.post("/move")
    def move(body: MoveRequest) -> JSONResponse:
        place = body.instance + (AT_WINDOW if body.at_window else "")
        control.perform([parse_command(f"move={vnode}:{place}") for vnode in body.vnodes])
        return JSONResponse({})

    @app.post("/drain")
    def drain(body: Drain) -> JSONResponse:
        control.perform([parse_command(f"drain={body.worker}")])
        return JSONResponse({})

    @app.post("/kill")
    def kill(body: Kill) -> JSONResponse:
        control.perform([kill_command(body.what)])
        return JSONResponse({})

    @app.post("/stop")
    def stop() -> JSONResponse:
        control.stop()
        return JSONResponse({})

    @app.post("/plan")
    def submit(body: PlanHandedIn) -> JSONResponse:
        control.submit(plan_file.read(body.plan))
        return JSONResponse({})

    @app.delete("/plan")
    def cancel() -> JSONResponse:
        control.cancel()
        return JSONResponse({})

    @app.post("/checkpoint")
    def checkpoint(body: CheckpointAsked) -> JSONResponse:
        return JSONResponse({"number": control.checkpoint(body.name)})

    @app.post("/suspend")
    def suspend() -> JSONResponse:
        control.suspend()
        return JSONResponse({})

    @app.post("/stage")
    def stage(body: StageReached) -> JSONResponse:
        control.stage(body.epoch, body.stage)
        return JSONResponse({})

    return guarded(app, token)
