"""Commands of `ferry` that are mostly for jobs on a cluster; see `main`.

It reads arguments, calls other rooms, and prints.
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
Worker = Annotated[int, typer.Argument(help="Index of the worker.")]

CLUSTER = "Commands for a job on a cluster"
WHERE = "On a cluster: --context, --namespace/-n and --kubeconfig as in kubectl, anywhere in the command line."


@app.command(epilog=WHERE, rich_help_panel=CLUSTER)
def watch(
    ctx: typer.Context,
    job: ClusterJob,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds after which the command fails; 0: never.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Follow a handover on a cluster until the job is at rest. Exit code: 0 at rest, 1 failed or paused, 2 refused."""
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
    worker: Annotated[
        int | None, typer.Option(min=0, help="Logs of this worker: its sidecar and its executor.")
    ] = None,
    driver: Annotated[bool, typer.Option("--driver", help="Log of the driver (the default).")] = False,
    operator: Annotated[bool, typer.Option("--operator", help="Logs of the operator.")] = False,
    container: Annotated[
        str | None, typer.Option("--container", "-c", help="Container of the worker: 'sidecar' or 'executor'.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log.")] = False,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Log of the container before its restart.")
    ] = False,
    tail: Annotated[int | None, typer.Option(min=0, help="Number of lines from the end.")] = None,
) -> None:
    """Print the log of the driver, a worker or the operator; for a run on this machine also after its end."""
    if (worker is not None) + driver + operator > 1:
        raise Refusal("use only one of --worker K, --driver and --operator")
    here = targets.directory(ctx.obj, job)
    if here is None:
        lines = targets.on_cluster(ctx.obj, job).logs(worker, operator, container, follow, previous, tail)
    elif operator or container or previous:
        raise Refusal(f"{job} is a run on this machine: use --driver or --worker K; a log has all lives of its process")
    else:
        directory, lives = here
        lines = local_logs.lines(directory, worker, tail, lives if follow else None)
    for line in lines:
        sys.stdout.buffer.write(printable(line.decode("utf-8", "replace")).encode())
        if follow:
            sys.stdout.buffer.flush()
    sys.stdout.buffer.flush()


@app.command(epilog=WHERE, rich_help_panel=CLUSTER)
def diagnose(
    ctx: typer.Context,
    job: ClusterJob,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="File of the archive.")] = None,
) -> None:
    """Collect the data of a job in one archive: objects, events, pods, logs, the operator. Secrets are left out.

    Secret objects are never read. Texts in documents and logs that look like secrets are redacted.
    """
    from ferry_operator.cli.remote import bundle

    remote = targets.on_cluster(ctx.obj, job)
    stamp = f"{job}-diagnose-{time.strftime('%Y%m%d-%H%M%S')}"
    file = output or Path(f"{stamp}.tar.gz")
    if not file.absolute().parent.is_dir():
        raise Refusal(f"--output {file}: {file.absolute().parent} is no directory")
    collected = bundle.collect(remote, say)
    bundle.write(collected, file, stamp, time.time())
    for missing in collected.missing:
        say(f"not in it: {missing}")
    print(file)


@app.command(epilog=WHERE, rich_help_panel=CLUSTER)
def undrain(ctx: typer.Context, job: ClusterJob, worker: Worker, as_json: AsJson = False) -> None:
    """Undo `drain`: let a worker hold state again."""
    done(job, as_json, targets.on_cluster(ctx.obj, job).undrain(worker))


@app.command(epilog=WHERE, rich_help_panel=CLUSTER)
def unpin(
    ctx: typer.Context,
    job: ClusterJob,
    vnode: Annotated[int, typer.Argument(help="Number of the virtual node.")],
    as_json: AsJson = False,
) -> None:
    """Undo `move`: let the planner place a virtual node again."""
    done(job, as_json, targets.on_cluster(ctx.obj, job).unpin(vnode))


@app.command(epilog=WHERE, rich_help_panel=CLUSTER)
def pause(ctx: typer.Context, job: ClusterJob, as_json: AsJson = False) -> None:
    """Stop reconciling. The job keeps running, and copies take over after failures, but lost pods are not recreated."""
    done(job, as_json, targets.on_cluster(ctx.obj, job).pause())


@app.command(epilog=WHERE, rich_help_panel=CLUSTER)
def resume(
    ctx: typer.Context,
    job: ClusterJob,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of workers of a suspended job.")] = None,
    as_json: AsJson = False,
) -> None:
    """Undo `pause` and `suspend`: reconcile again; a suspended job continues from its latest checkpoint."""
    done(job, as_json, targets.on_cluster(ctx.obj, job).resume(workers))


@app.command(epilog=WHERE, rich_help_panel=CLUSTER)
def restart(ctx: typer.Context, job: ClusterJob, as_json: AsJson = False) -> None:
    """Restart the driver. It continues with the state in the workers."""
    done(job, as_json, targets.on_cluster(ctx.obj, job).restart())
