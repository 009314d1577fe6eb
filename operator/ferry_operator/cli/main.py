"""The `ferry` command, and `kubectl streamjob`. Exit codes: 0 done, 1 failed, 2 refused (usage, job file, request),
4 no such job.

It reads arguments, calls other rooms, and prints: progress and errors to standard error, results to standard output.
Commands for jobs on a cluster are in `cli.commands`, commands for checkpoints in `cli.checkpoints`, commands for plans in
`cli.plans`, commands for programs in `cli.deploys`.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from ferry.contract.errors import FerryError, Refusal
from ferry_operator.cli import checkpoints, client, commands, deploys, explain, init, plans, targets
from ferry_operator.cli.client import Local, Shown
from ferry_operator.cli.options import AsJson, Job, JobFile, Sets
from ferry_operator.cli.targets import Target, hoist
from ferry_operator.cli.terminal import done, say, show, show_json
from ferry_operator.control.commands import FORMS, join_at
from ferry_operator.job import spec
from ferry_operator.job.fields import names_of
from ferry_operator.job.models_balance import BalanceSpec
from ferry_operator.job.models_handover import Handover
from ferry_operator.job.settings import Options
from ferry_operator.local import check, environment
from ferry_operator.local.registry import NoSuchJob, Registry
from ferry_operator.local.run_command import FAILED, NO_SUCH_JOB, OK, REFUSED, RunCommand
from ferry_operator.local.timeline.console import PlainConsole

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)
app.add_typer(commands.app)
app.add_typer(checkpoints.app)
app.add_typer(plans.app)
app.add_typer(deploys.app)
app.add_typer(explain.app)
app.add_typer(init.app)


@app.callback()
def where(
    ctx: typer.Context,
    context: Annotated[str | None, typer.Option(metavar="NAME", help="Context of the kubeconfig.")] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace of the job.")] = None,
    kubeconfig: Annotated[
        str | None, typer.Option(metavar="FILE", help="Kubeconfig file, in place of KUBECONFIG.")
    ] = None,
) -> None:
    """Stateful stream jobs on Spark whose state is replicated, moved and rescaled while they run.

    A JOB is the name of a run on this machine. If there is no such run, it is the name of a StreamJob on the cluster of
    your kubeconfig. `kubectl streamjob` looks only on the cluster, and so does `ferry` with one of the options --context,
    --namespace and --kubeconfig, which may stand before or after the command.
    """
    ctx.obj = replace(ctx.obj or Target(), context=context, namespace=namespace, kubeconfig=kubeconfig)


@app.command()
def run(
    ctx: typer.Context,
    job: JobFile,
    sets: Sets = None,
    events: Annotated[int | None, typer.Option(min=1, help="Bound of generator sources: run to the end.")] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory of the sinks, in place of spec.output.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the run's timeline (PNG, SVG, PDF).")] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(metavar="'epoch=E[:STAGE] ACTION'", help=f"Execute an action at an epoch. Actions: {FORMS}."),
    ] = None,
    keep: Annotated[bool, typer.Option(help="Keep the directory of the run.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, no summary.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Run a job on this machine, with the whole cluster as processes, until the job ends or is stopped."""
    if ctx.obj.cluster:
        raise Refusal(f"`ferry run` runs a job on this machine; on a cluster: kubectl apply -f {job}")
    options = Options(events, output, keep)
    raise typer.Exit(targets.run(RunCommand(job, tuple(sets or ()), tuple(at or ()), options, plot, quiet, as_json)))


@app.command()
def validate(job: JobFile, sets: Sets = None) -> None:
    """Check a job file and build its pipeline like a driver; print all problems. Nothing is started."""
    checked = spec.load(job, tuple(sets or ()))
    for warning in spec.warnings(checked):
        say(f"warning: {warning}")
    file = spec.pipeline_file(checked, job)
    if file is not None and not file.is_file():
        raise spec.JobRefused([f"spec.pipeline.file: {file} does not exist"])
    if refused := check.pipeline(checked, job).refused:
        raise spec.JobRefused([refused])
    print(f"{checked.metadata.name}: valid")


@app.command()
def ps(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the runs on this machine, or the jobs of a namespace on a cluster."""
    if ctx.obj.cluster:
        _show(targets.namespace(ctx.obj), as_json)
        return
    entries = _registry().entries()
    if as_json:
        fields = ("name", "run", "pid", "directory", "started")
        show_json([{name: getattr(entry, name) for name in fields} for entry in entries])
        return
    table = Table("JOB", "RUN", "PID", "FOR", "DIRECTORY", box=None, pad_edge=False)
    for entry in entries:
        minutes, seconds = divmod(int(time.time() - entry.started), 60)
        table.add_row(entry.name, entry.run, str(entry.pid), f"{minutes} min {seconds:02d} s", entry.directory)
    show(table)


@app.command()
def status(ctx: typer.Context, job: Job, as_json: AsJson = False) -> None:
    """Show workers, moves, epochs and watermark; on a cluster also conditions, pods and events."""
    _show(targets.find(ctx.obj, job), as_json)


@app.command()
def top(
    ctx: typer.Context,
    job: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="Name of the job; without it, all jobs of a namespace on the cluster."),
    ] = None,
    as_json: AsJson = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two refreshes.")] = 1.0,
) -> None:
    """Refresh the status until the job ends."""
    shown: Shown = targets.namespace(ctx.obj) if job is None else targets.find(ctx.obj, job)
    with Live(console=PlainConsole(), auto_refresh=False) as live:
        while True:
            try:
                document = shown.describe()
            except FerryError:
                if shown.exists():
                    raise
                return
            if as_json:
                show_json(document, None)
            else:
                live.update(shown.table(document), refresh=True)
            if shown.ended(document):
                return
            time.sleep(every)


@app.command()
def scale(
    ctx: typer.Context,
    job: Job,
    workers: Annotated[int | None, typer.Option(help="Number of workers.")] = None,
    instances: Annotated[int | None, typer.Option(help="Number of instances per worker.")] = None,
    as_json: AsJson = False,
) -> None:
    """Change the number of workers, or of instances per worker, while the job runs."""
    if workers is None and instances is None:
        raise Refusal("use --workers N or --instances N")
    done(job, as_json, targets.find(ctx.obj, job).scale(workers, instances))


@app.command()
def move(
    ctx: typer.Context,
    job: Job,
    vnodes: Annotated[
        list[str] | None,
        typer.Argument(metavar="VNODE... WORKER.INSTANCE", help="Virtual nodes, and their new leader."),
    ] = None,
    origin: Annotated[
        str | None,
        typer.Option("--from", metavar="WORKER.INSTANCE", help="Move virtual nodes that this instance leads."),
    ] = None,
    share: Annotated[
        str, typer.Option(metavar="N/M", help="Share of the virtual nodes of --from, such as 1/2 or 0.25.")
    ] = "1",
    to: Annotated[str | None, typer.Option(metavar="WORKER.INSTANCE", help="New leader.")] = None,
    at_window: Annotated[
        bool, typer.Option("--at-window", help="Move at the boundary of a window, without state.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Move virtual nodes and pin them: `move JOB 7 9 1.0`, or `move JOB --from 0.0 --share 1/2 --to 1.0`."""
    target, words = targets.find(ctx.obj, job), list(vnodes or ())
    to = to or (words.pop() if words else None)
    if to is None or bool(words) == (origin is not None):
        raise Refusal("use VNODE... WORKER.INSTANCE, or --from WORKER.INSTANCE --to WORKER.INSTANCE")
    if not all(word.isdecimal() for word in words):
        raise Refusal(f"virtual nodes are numbers: {' '.join(words)}")
    moved = list(map(int, words)) if origin is None else first_share(target.led_by(origin), share, origin)
    done(job, as_json, target.move(moved, to, at_window))


def first_share(led: list[int], share: str, instance: str) -> list[int]:
    """The first virtual nodes of a list, in this share, but at least one. Raises Refusal."""
    match = re.fullmatch(r"([0-9]{1,4}(?:\.[0-9]{1,6})?)(?:/([1-9][0-9]{0,3}))?", share)
    part = Fraction(match[1]) / int(match[2] or 1) if match else Fraction(0)
    if not 0 < part <= 1:
        raise Refusal(f"--share {share}: a share is above 0 and at most 1, such as 1/2 or 0.25")
    if not led:
        raise Refusal(f"{instance} leads no virtual node")
    return led[: max(1, math.floor(len(led) * part))]


@app.command()
def handover(
    ctx: typer.Context,
    job: Job,
    sets: Annotated[
        list[str],
        typer.Argument(
            metavar="FIELD=VALUE...",
            help=f"Fields: {', '.join(names_of(Handover))}. Such as strategy=fluid or atEpoch=900.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Set fields of `spec.handover`: how the next plans are cut, and when they begin."""
    done(job, as_json, targets.find(ctx.obj, job).handover(_section("handover", sets)))


@app.command()
def balance(
    ctx: typer.Context,
    job: Job,
    sets: Annotated[
        list[str],
        typer.Argument(
            metavar="FIELD=VALUE...",
            help=f"Fields: {', '.join(names_of(BalanceSpec))}. Such as mode=auto or horizon=5m.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Set fields of `spec.balance`: whether virtual nodes move when the load is uneven."""
    done(job, as_json, targets.find(ctx.obj, job).balance(_section("balance", sets)))


def _section(name: str, sets: list[str]) -> dict[str, Any]:
    """The fields of a section of the spec from FIELD=VALUE arguments. Raises JobRefused."""
    document = spec.apply_sets(spec.some_job({}), [f"{name}.{text}" for text in sets])
    spec.check(document)
    return dict(document["spec"][name])


@app.command()
def drain(
    ctx: typer.Context,
    job: Job,
    worker: Annotated[int, typer.Argument(help="Index of the worker.")],
    as_json: AsJson = False,
) -> None:
    """Move all state off a worker. Its process stays, without state, until a scale-in removes it."""
    done(job, as_json, targets.find(ctx.obj, job).drain(worker))


@app.command()
def kill(
    ctx: typer.Context,
    job: Job,
    process: Annotated[str, typer.Argument(metavar="WHAT", help="'driver', a worker (K) or an instance (K.I).")],
    as_json: AsJson = False,
) -> None:
    """Kill a process of a run on this machine, to see the recovery."""
    target = _local(ctx.obj, job, f"kubectl delete pod {job}-driver (or {job}-worker-K) --grace-period=0 --force")
    client.ask(target.entry, "POST", "/kill", {"what": process})
    done(job, as_json, f"{process} was killed")


@app.command()
def stop(
    ctx: typer.Context,
    job: Job,
    as_json: AsJson = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the end.")] = 30.0,
) -> None:
    """End a run on this machine after its current epoch."""
    target = _local(ctx.obj, job, f"kubectl delete streamjob {job}")
    client.ask(target.entry, "POST", "/stop", {})
    deadline = time.monotonic() + wait
    while target.exists():
        if time.monotonic() > deadline:
            say(f"{job}: still ending after {wait:g} s")
            raise typer.Exit(FAILED)
        time.sleep(0.05)
    done(job, as_json, "stopped")


def _registry() -> Registry:
    return Registry(environment.home())


def _local(where: Target, job: str, otherwise: str) -> Local:
    """The run on this machine. `otherwise`: the command with the same effect on a cluster."""
    if where.cluster:
        raise Refusal(f"this command is for runs on this machine; on a cluster: {otherwise}")
    return Local(_registry().find(job), _registry())


def _show(shown: Shown, as_json: bool) -> None:
    document = shown.describe()
    if as_json:
        show_json(document)
    else:
        show(shown.table(document))


def guarded(command: Callable[[], Any], program: str = "ferry") -> int:
    """Run a command; an error becomes a line on standard error and an exit code."""
    try:
        code = command()
        return int(code) if isinstance(code, int) else OK
    except NoSuchJob as error:
        say(f"{program}: {error}")
        return NO_SUCH_JOB
    except Refusal as error:
        say(f"{program}: {error}")
        return REFUSED
    except FerryError as error:
        say(f"{program}: {error}")
        return FAILED
    except typer.Exit as leaving:
        return leaving.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return FAILED
    except OSError as error:
        say(f"{program}: {_words(error)}")
        return FAILED


def _words(error: OSError) -> str:
    try:
        Path.cwd()
    except FileNotFoundError:
        return "the directory of this shell was deleted: change to another directory"
    return str(error)


def main(plugin: bool = False) -> None:
    """Entry of the `ferry` command."""
    environment.read_ferry_env()
    arguments, called = hoist(join_at(sys.argv[1:])), Target(plugin)

    def command() -> Any:
        try:
            return app(args=arguments, prog_name=called.program, standalone_mode=False, obj=called)
        except typer.Abort:
            return FAILED

    try:
        code = guarded(command, called.program)
    except Exception as error:
        if not _is_usage(error):
            raise
        code = REFUSED
    sys.exit(code)


def kubectl_plugin() -> None:
    """Entry of `kubectl streamjob`."""
    main(plugin=True)


def _is_usage(error: Exception) -> bool:
    """Whether this is an error of the argument parser, which shows its own text."""
    show = getattr(error, "show", None)
    if show is None:
        return False
    show()
    return True
