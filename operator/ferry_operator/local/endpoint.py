"""The supervisor's HTTP endpoint on 127.0.0.1: what other terminals and the driver ask of a running job.

It translates between HTTP and `Control`, and decides nothing. Every request carries a bearer token, derived from the run's
secret.

| request | answer |
|---|---|
| GET /job | the job as `Control.job` describes it |
| PATCH /spec {workers?, instancesPerWorker?} | scales |
| POST /move {vnode, instance} · POST /drain {worker} · POST /kill {what} · POST /stop | does it |
| POST /stage {epoch, stage} | from the driver: runs what is due there, then answers |

409 with {"reason"} is a refusal: nothing changed.
"""

from __future__ import annotations

import hmac
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Protocol

import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from ferry.contract.errors import FerryError, Refusal
from ferry_operator.control.commands import Command, parse_command


class SupervisorPort(Protocol):
    """What the endpoint needs of a supervisor; called from threads of the endpoint. Raises Refusal."""

    def job(self) -> dict[str, Any]:
        """The job as plain values."""

    def perform(self, commands: Sequence[Command]) -> None:
        """Do these actions now; none of them when one names what is not there."""

    def stage(self, epoch: int, stage: str) -> None:
        """Do what is due at this stage of this epoch."""

    def stop(self) -> None:
        """Begin to end the run gracefully."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SpecPatch(_Body):
    """The numbers that may change; both None changes nothing."""

    workers: int | None = None
    instancesPerWorker: int | None = None


class MoveRequest(_Body):
    """Lead this vnode on this instance."""

    vnode: int
    instance: str


class Drain(_Body):
    """Empty this worker."""

    worker: int


class Kill(_Body):
    """End without warning: 'driver', a worker 'K' or an instance 'K.I'."""

    what: str


class StageReached(_Body):
    """Where the driver waits."""

    epoch: int
    stage: str


def kill_command(what: str) -> Command:
    """The action for what `ferry kill` names."""
    if what == "driver":
        return parse_command("kill-driver")
    return parse_command(f"kill-instance={what}" if "." in what else f"kill-worker={what}")


def application(control: SupervisorPort, token: str) -> FastAPI:
    """The routes."""

    def authorized(authorization: Annotated[str, Header()] = "") -> None:
        if not hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
            raise HTTPException(401, "the run's token is needed")

    app = FastAPI(dependencies=[Depends(authorized)], openapi_url=None)

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
        control.perform(commands)
        return JSONResponse({})

    @app.post("/move")
    def move(body: MoveRequest) -> JSONResponse:
        control.perform([parse_command(f"move={body.vnode}:{body.instance}")])
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

    @app.post("/stage")
    def stage(body: StageReached) -> JSONResponse:
        control.stage(body.epoch, body.stage)
        return JSONResponse({})

    return app


class Server:
    """A server for the application, in a thread, on a port the system chooses."""

    def __init__(self, make: Callable[[], FastAPI], context: ssl.SSLContext | None = None) -> None:
        """With a context, over TLS."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(64)
        self.url = f"{'http' if context is None else 'https'}://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            make(), log_config=None, access_log=False, lifespan="off", ws="none", timeout_graceful_shutdown=1
        )
        config.ssl_context_factory = (lambda *_: context) if context is not None else None
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="endpoint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the server."""
        self._server.should_exit = True
        self._thread.join(timeout=3.0)
        self._socket.close()
