"""Commands for durable checkpoints of runs on this machine and of jobs on a cluster; see `main`.

It reads arguments, calls other rooms, and prints.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from ferry.contract.errors import Refusal
from ferry_operator.cli import targets
from ferry_operator.cli.client import Local
from ferry_operator.cli.options import AsJson, Job
from ferry_operator.cli.targets import Target
from ferry_operator.cli.terminal import done, say, show, show_json
from ferry_operator.job import spec
from ferry_operator.job.settings import Options
from ferry_operator.kube.api.checkpoint_request import is_name
from ferry_operator.local.run_command import FAILED, RunCommand

app = typer.Typer()

Wait = Annotated[float, typer.Option(help="Seconds to wait for the checkpoint.")]

WAIT_SECONDS = 600.0
"""Long enough for a first checkpoint, which holds the whole state."""

LOOK_SECONDS = 0.1

FILES = ".yaml", ".yml"
"""Suffixes that tell a job file from the name of a job."""


@app.command()
def checkpoint(
    ctx: typer.Context,
    job: Job,
    name: Annotated[
        str | None, typer.Option(help="Name of the checkpoint. A named checkpoint stays until it is deleted.")
    ] = None,
    wait: Wait = WAIT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Take a durable checkpoint now, and wait until it is complete."""
    if name is not None and not is_name(name):
        raise Refusal(
            f"--name {name!r}: a name has small letters, digits, '.' and '-'; it is no number, and not 'latest' or 'none'"
        )
    record = targets.find(ctx.obj, job).checkpoint(name, wait)
    if as_json:
        show_json({"job": job, "name": name, **record})
        return
    later = f", after {record['asked']}" if record["number"] != record["asked"] else f" ({name})" if name else ""
    print(
        f"{job}: checkpoint {record['number']}{later}, as of epoch {record['epoch']}, {record['bytes']:,} bytes written"
    )


@app.command()
def checkpoints(
    ctx: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of the job, also of a deleted job; or its job file.")],
    location: Annotated[
        str | None,
        typer.Option(metavar="URL", help="state.checkpoint.location of the job; not needed while the job exists."),
    ] = None,
    delete: Annotated[int | None, typer.Option(metavar="NUMBER", help="Delete this checkpoint.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the durable checkpoints at the location of a job, or delete one of them.

    This process reads the location with its own rights; the job need not exist.
    """
    # Arrow reads the location; it is large, so only this command imports it.
    from ferry_operator.cli import stored_checkpoints

    job, where = _where(ctx.obj, job, location)
    if delete is not None:
        stored_checkpoints.remove(where, job, delete)
        done(job, as_json, f"checkpoint {delete} is deleted; the next checkpoint of the job deletes its files")
        return
    records = stored_checkpoints.listed(where, job)
    if as_json:
        show_json({"job": job, "location": where, "checkpoints": records})
    elif records:
        show(stored_checkpoints.table(records, time.time()))
    else:
        say(f"{job}: there are no checkpoints at {where}")


@app.command()
def restore(
    ctx: typer.Context,
    job: Annotated[
        str, typer.Argument(metavar="JOB.yaml", help="The job file; on a cluster the name of a suspended job.")
    ],
    origin: Annotated[
        str, typer.Option("--from", metavar="CHECKPOINT", help="latest, a name, a number, or the URL of a manifest.")
    ],
    sink: Annotated[
        Literal["truncate", "keep"] | None,
        typer.Option(help="Output of later epochs in the sinks: truncate it, or keep it."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of workers.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change a field of the spec; on this machine only."),
    ] = None,
    events: Annotated[int | None, typer.Option(min=1, help="See `ferry run`.")] = None,
    output: Annotated[Path | None, typer.Option(metavar="DIR", help="See `ferry run`.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, no summary.")] = False,
    as_json: AsJson = False,
) -> None:
    """Restore a durable checkpoint: run a job on this machine, or resume a suspended job on a cluster."""
    if ctx.obj.cluster or not job.endswith(FILES):
        if job.endswith(FILES) or sets or events is not None or output is not None:
            raise Refusal(
                "on a cluster use the name of the job; change other fields by `kubectl edit` while it is suspended"
            )
        done(job, as_json, targets.on_cluster(ctx.obj, job).restore(origin, sink, workers))
        return
    more = [f"restoreFrom={origin}"]
    more += [f"restoreSink={sink}"] if sink is not None else []
    more += [f"workers={workers}"] if workers is not None else []
    options = Options(events, output)
    raise typer.Exit(targets.run(RunCommand(Path(job), (*(sets or ()), *more), (), options, None, quiet, as_json)))


@app.command()
def suspend(ctx: typer.Context, job: Job, wait: Wait = WAIT_SECONDS, as_json: AsJson = False) -> None:
    """Take a last durable checkpoint, then end all processes or pods. `ferry resume` on a cluster, or `ferry run --set
    restoreFrom=latest` on this machine, continues from it."""
    target = targets.find(ctx.obj, job)
    text = target.suspend()
    if not isinstance(target, Local):
        done(job, as_json, text)
        return
    deadline = time.monotonic() + wait
    while target.exists():
        if time.monotonic() > deadline:
            say(f"{job}: still without its last checkpoint after {wait:g} s: see `ferry status {job}`")
            raise typer.Exit(FAILED)
        time.sleep(LOOK_SECONDS)
    done(job, as_json, "suspended")


def _where(target: Target, job: str, location: str | None) -> tuple[str, str]:
    """The name of the job, and the location of its checkpoints."""
    if job.endswith(FILES):
        document = spec.load(Path(job))
        job, where = document.metadata.name, location or document.spec.state.checkpoint.location
    elif location is not None:
        where = location
    else:
        running = targets.find(target, job)
        where = running.location()
        if where is not None and "://" not in where and not isinstance(running, Local):
            raise Refusal(
                f"{job}: its checkpoints are at {where}, a directory of its pods; give its path here by --location"
            )
    if where is None:
        raise Refusal(f"{job}: the job has no durable checkpoints; if it had some before, use --location")
    return job, where
