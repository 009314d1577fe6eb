"""Commands about durable checkpoints, which runs of this machine and jobs on a cluster have alike; see `main`.

It reads arguments, calls what does the work, and prints.
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
from ferry_operator.kube.api.notes import is_name
from ferry_operator.local.run_command import FAILED, RunCommand

app = typer.Typer()

Wait = Annotated[float, typer.Option(help="Seconds to wait for it.")]

WAIT_SECONDS = 600.0
"""A first checkpoint has all of the state in it."""

LOOK_SECONDS = 0.1

FILES = ".yaml", ".yml"
"""Suffixes of a job file, where a command takes a file or a name."""


@app.command()
def checkpoint(
    ctx: typer.Context,
    job: Job,
    name: Annotated[str | None, typer.Option(help="What it is called: it stays until it is deleted.")] = None,
    wait: Wait = WAIT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Take a durable checkpoint now, and wait until it is complete."""
    if name is not None and not is_name(name):
        raise Refusal(
            f"--name {name!r}: a name has small letters, digits, '.' and '-'; it is no number, and not 'latest' or 'none'"
        )
    found = targets.find(ctx.obj, job).checkpoint(name, wait)
    if as_json:
        show_json({"job": job, "name": name, **found})
        return
    later = f", after {found['asked']}" if found["number"] != found["asked"] else f" ({name})" if name else ""
    print(f"{job}: checkpoint {found['number']}{later}, as of epoch {found['epoch']}, {found['bytes']:,} bytes written")


@app.command()
def checkpoints(
    ctx: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of the job, which may be gone; or its job file.")],
    location: Annotated[
        str | None,
        typer.Option(metavar="URL", help="state.checkpoint.location of the job; not needed while it is there."),
    ] = None,
    delete: Annotated[int | None, typer.Option(metavar="NUMBER", help="Delete this one.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the durable checkpoints of a job, as this process finds them at their location, or delete one."""
    # Stores of objects are known to Arrow, which is large.
    from ferry_operator.cli import shelf

    job, where = _where(ctx.obj, job, location)
    if delete is not None:
        shelf.remove(where, job, delete)
        done(job, as_json, f"checkpoint {delete} is deleted; its files go with the next one that the job takes")
        return
    found = shelf.listed(where, job)
    if as_json:
        show_json({"job": job, "location": where, "checkpoints": found})
    elif found:
        show(shelf.table(found, time.time()))
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
        typer.Option(help="What sinks have from later epochs: truncate it, or keep it."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="With so many workers.")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change a field; on this machine only.")
    ] = None,
    events: Annotated[int | None, typer.Option(min=1, help="As for `ferry run`.")] = None,
    output: Annotated[Path | None, typer.Option(metavar="DIR", help="As for `ferry run`.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, no summary.")] = False,
    as_json: AsJson = False,
) -> None:
    """Begin from a durable checkpoint: runs a job on this machine, or has a suspended job on a cluster go on."""
    if ctx.obj.cluster or not job.endswith(FILES):
        if job.endswith(FILES) or sets or events is not None or output is not None:
            raise Refusal(
                "on a cluster name the job; what else is to be changed: `kubectl edit`, while it is suspended"
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
    """Take a last durable checkpoint, and let all processes or pods go; `resume`, or `ferry run`, goes on from it."""
    one = targets.find(ctx.obj, job)
    text = one.suspend()
    if not isinstance(one, Local):
        done(job, as_json, text)
        return
    deadline = time.monotonic() + wait
    while one.there():
        if time.monotonic() > deadline:
            say(f"{job}: still without its last checkpoint after {wait:g} s: `ferry status {job}` says what is wrong")
            raise typer.Exit(FAILED)
        time.sleep(LOOK_SECONDS)
    done(job, as_json, "suspended")


def _where(target: Target, job: str, location: str | None) -> tuple[str, str]:
    """Name of the job, and where its checkpoints are."""
    if job.endswith(FILES):
        one = spec.load(Path(job))
        job, found = one.metadata.name, location or one.spec.state.checkpoint.location
    elif location is not None:
        found = location
    else:
        there = targets.find(target, job)
        found = there.location()
        if found is not None and "://" not in found and not isinstance(there, Local):
            raise Refusal(
                f"{job}: its checkpoints are at {found}, a directory of its pods: where it is here, say by --location"
            )
    if found is None:
        raise Refusal(f"{job}: it has no durable checkpoints; of a job that had some: --location")
    return job, found
