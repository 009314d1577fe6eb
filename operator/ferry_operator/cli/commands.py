"""Commands for jobs on a cluster, which the `ferry` command has beside its own; see `main`.

It reads arguments, calls what does the work, and prints.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from ferry.contract.errors import Refusal
from ferry.contract.one_line import one_line, printable
from ferry_operator.cli import local_logs, targets
from ferry_operator.cli.options import AsJson, ClusterJob
from ferry_operator.cli.terminal import done, say, show_json
from ferry_operator.local.run_command import FAILED, OK, REFUSED

app = typer.Typer()

AnyJob = Annotated[str, typer.Argument(metavar="JOB", help="Name of the job, or of its run on this machine.")]
Worker = Annotated[int, typer.Argument(help="Worker.")]

WHERE = "On a cluster: --context, --namespace/-n and --kubeconfig as for kubectl, anywhere on the line."


@app.command(epilog=WHERE)
def watch(
    ctx: typer.Context,
    job: ClusterJob,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds after which it fails; 0: never.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Follow a handover until the job is at rest. Ends with 0 then, 1 if it fails or is paused, 2 if it was refused."""
    from ferry_operator.cli.remote.follow import FollowState, follow

    ends = {FollowState.REST: OK, FollowState.FINISHED: OK, FollowState.REFUSED: REFUSED}
    for line in follow(targets.on_cluster(ctx.obj, job), timeout):
        look = line.look
        if as_json:
            record = {"kind": line.kind, "state": look.state, "text": line.text, "event": line.event}
            show_json({**record, "workers": look.workers, "moving": look.moving}, None)
        else:
            print(f"{time.strftime('%H:%M:%S')}  {one_line(line.text)}", flush=True)
        if line.kind == "end":
            raise typer.Exit(ends.get(look.state, FAILED))


@app.command(epilog=WHERE)
def logs(
    ctx: typer.Context,
    job: AnyJob,
    worker: Annotated[int | None, typer.Option(min=0, help="Of this worker: its sidecar and its executor.")] = None,
    driver: Annotated[bool, typer.Option("--driver", help="Of the driver (the default).")] = False,
    operator: Annotated[bool, typer.Option("--operator", help="Of the operator.")] = False,
    container: Annotated[str | None, typer.Option("--container", "-c", help="'sidecar' or 'executor'.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines are written.")] = False,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Of the container before it was restarted.")
    ] = False,
    tail: Annotated[int | None, typer.Option(min=0, help="Lines from the end.")] = None,
) -> None:
    """Print the log of the driver, of a worker or of the operator; of a run of this machine also after its end."""
    if (worker is not None) + driver + operator > 1:
        raise Refusal("say one of --worker K, --driver and --operator")
    here = targets.directory(ctx.obj, job)
    if here is None:
        found = targets.on_cluster(ctx.obj, job).logs(worker, operator, container, follow, previous, tail)
    elif operator or container or previous:
        raise Refusal(
            f"{job} is a run of this machine: --driver or --worker K, and a log has every life of its process"
        )
    else:
        directory, lives = here
        found = local_logs.lines(directory, worker, tail, lives if follow else None)
    for line in found:
        sys.stdout.buffer.write(printable(line.decode("utf-8", "replace")).encode())
        if follow:
            sys.stdout.buffer.flush()
    sys.stdout.buffer.flush()


@app.command(epilog=WHERE)
def diagnose(
    ctx: typer.Context,
    job: ClusterJob,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where it goes.")] = None,
) -> None:
    """Collect all about a job in one archive: objects, events, pods, logs, the operator. Secrets are left out.

    Secret objects are never read; what looks like a secret in documents and logs is redacted.
    """
    from ferry_operator.cli.remote import bundle

    remote = targets.on_cluster(ctx.obj, job)
    stamp = f"{job}-diagnose-{time.strftime('%Y%m%d-%H%M%S')}"
    file = output or Path(f"{stamp}.tar.gz")
    if not file.absolute().parent.is_dir():
        raise Refusal(f"--output {file}: {file.absolute().parent} is no directory")
    found = bundle.collect(remote, say)
    bundle.write(found, file, stamp, time.time())
    for missing in found.missing:
        say(f"not in it: {missing}")
    print(file)


@app.command(epilog=WHERE)
def undrain(ctx: typer.Context, job: ClusterJob, worker: Worker, as_json: AsJson = False) -> None:
    """Let a worker that was drained hold state again."""
    done(job, as_json, targets.on_cluster(ctx.obj, job).undrain(worker))


@app.command(epilog=WHERE)
def unpin(
    ctx: typer.Context,
    job: ClusterJob,
    vnode: Annotated[int, typer.Argument(help="Virtual node.")],
    as_json: AsJson = False,
) -> None:
    """Let a virtual node that was moved by hand be where the planner wants it."""
    done(job, as_json, targets.on_cluster(ctx.obj, job).unpin(vnode))


@app.command(epilog=WHERE)
def pause(ctx: typer.Context, job: ClusterJob, as_json: AsJson = False) -> None:
    """Have the operator change nothing: epochs go on, copies take over, but what is lost is not made again."""
    done(job, as_json, targets.on_cluster(ctx.obj, job).pause())


@app.command(epilog=WHERE)
def resume(
    ctx: typer.Context,
    job: ClusterJob,
    workers: Annotated[int | None, typer.Option(min=1, help="Of a job that was suspended: with so many.")] = None,
    as_json: AsJson = False,
) -> None:
    """Have changes followed again; a job that was suspended goes on from its latest checkpoint."""
    done(job, as_json, targets.on_cluster(ctx.obj, job).resume(workers))


@app.command(epilog=WHERE)
def restart(ctx: typer.Context, job: ClusterJob, as_json: AsJson = False) -> None:
    """Restart the driver; it goes on from the state that the workers hold."""
    done(job, as_json, targets.on_cluster(ctx.obj, job).restart())
