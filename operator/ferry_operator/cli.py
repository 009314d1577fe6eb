"""The `ferry` command. Exit codes: 0 done, 1 failed, 2 refused (usage, job file, request), 4 no such job.

It reads arguments, calls what does the work, and prints; progress and errors go to standard error, results to standard
output.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ferry.contract.errors import FerryError, Refusal
from ferry_operator import client, environment, spec
from ferry_operator.registry import Entry, NoSuchJob, Registry
from ferry_operator.run import FAILED, NO_SUCH_JOB, OK, REFUSED, Request
from ferry_operator.run import run as run_job
from ferry_operator.rundir import Options
from ferry_operator.schedule import FORMS, join_at
from ferry_operator.show import job_table

app = typer.Typer(
    name="ferry",
    help="Stateful stream jobs on Spark whose state is replicated, moved, rescaled and reprogrammed while they run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The StreamJob document.")]
Job = Annotated[str, typer.Argument(metavar="JOB", help="Name of the job, or of its run (ferry ps).")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change a field, below spec.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def run(
    job: JobFile,
    sets: Sets = None,
    events: Annotated[int | None, typer.Option(min=1, help="Bound of generator sources: run to the end.")] = None,
    output: Annotated[Path | None, typer.Option(metavar="DIR", help="Replaces the directory of sinks.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the run's timeline (PNG, SVG, PDF).")] = None,
    at: Annotated[
        list[str] | None, typer.Option(metavar="'epoch=E[:STAGE] ACTION'", help=f"Act at an epoch. Actions: {FORMS}.")
    ] = None,
    keep: Annotated[bool, typer.Option(help="Keep the directory of the run.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, no summary.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Run a job on this machine: the whole cluster as processes, until it ends or is stopped."""
    options = Options(events, output, keep)
    raise typer.Exit(run_job(Request(job, tuple(sets or ()), tuple(at or ()), options, plot, quiet, as_json)))


@app.command()
def validate(job: JobFile, sets: Sets = None) -> None:
    """Check a job file; print every problem."""
    checked = spec.load(job, tuple(sets or ()))
    for warning in spec.warnings(checked):
        _say(f"warning: {warning}")
    file = spec.pipeline_file(checked, job)
    if file is not None and not file.is_file():
        raise spec.JobRefused([f"spec.pipeline.file: {file} does not exist"])
    print(f"{checked.metadata.name}: valid")


@app.command()
def ps(as_json: AsJson = False) -> None:
    """List the jobs that run on this machine."""
    entries = _registry().entries()
    if as_json:
        shown = ("name", "run", "pid", "directory", "started")
        print(json.dumps([{name: getattr(entry, name) for name in shown} for entry in entries], indent=1))
        return
    table = Table("JOB", "RUN", "PID", "FOR", "DIRECTORY", box=None, pad_edge=False)
    for entry in entries:
        minutes, seconds = divmod(int(time.time() - entry.started), 60)
        table.add_row(entry.name, entry.run, str(entry.pid), f"{minutes} min {seconds:02d} s", entry.directory)
    Console(highlight=False, soft_wrap=True).print(table)


@app.command()
def status(job: Job, as_json: AsJson = False) -> None:
    """Show workers, replica groups, moves, epochs and watermark."""
    _show(_ask(job, "GET", "/job"), as_json)


@app.command()
def top(
    job: Job, as_json: AsJson = False, every: Annotated[float, typer.Option(min=0.1, help="Seconds.")] = 1.0
) -> None:
    """Show the same again and again, until the job ends."""
    entry = _registry().find(job)
    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            try:
                document = client.ask(entry, "GET", "/job")
            except FerryError:
                if _still_there(entry):
                    raise
                return
            if as_json:
                print(json.dumps(document), flush=True)
            else:
                live.update(job_table(document), refresh=True)
            time.sleep(every)


@app.command()
def scale(
    job: Job,
    workers: Annotated[int | None, typer.Option(help="Workers.")] = None,
    instances: Annotated[int | None, typer.Option(help="Instances per worker.")] = None,
    as_json: AsJson = False,
) -> None:
    """Add or remove workers, or instances of each worker, while the job runs."""
    if workers is None and instances is None:
        raise Refusal("say --workers N or --instances N")
    wanted = {"workers": workers, "instancesPerWorker": instances}
    _ask(job, "PATCH", "/spec", {name: value for name, value in wanted.items() if value is not None})
    _done(job, as_json, "scaling; follow it with `ferry top`")


@app.command()
def move(
    job: Job,
    vnode: Annotated[int, typer.Argument(help="Virtual node.")],
    instance: Annotated[str, typer.Argument(metavar="WORKER.INSTANCE", help="Where it is to be led.")],
    as_json: AsJson = False,
) -> None:
    """Move one virtual node, and keep it there."""
    _ask(job, "POST", "/move", {"vnode": vnode, "instance": instance})
    _done(job, as_json, f"virtual node {vnode} moves to {instance}")


@app.command()
def drain(job: Job, worker: Annotated[int, typer.Argument(help="Worker.")], as_json: AsJson = False) -> None:
    """Move everything off a worker; it stays, empty."""
    _ask(job, "POST", "/drain", {"worker": worker})
    _done(job, as_json, f"worker {worker} is being emptied")


@app.command()
def kill(
    job: Job,
    what: Annotated[str, typer.Argument(help="'driver', a worker (K) or an instance (K.I).")],
    as_json: AsJson = False,
) -> None:
    """End something without warning, to see the recovery."""
    _ask(job, "POST", "/kill", {"what": what})
    _done(job, as_json, f"{what} was killed")


@app.command()
def stop(
    job: Job,
    as_json: AsJson = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the end.")] = 30.0,
) -> None:
    """End a job after the epoch under way."""
    entry = _registry().find(job)
    client.ask(entry, "POST", "/stop", {})
    deadline = time.monotonic() + wait
    while _still_there(entry):
        if time.monotonic() > deadline:
            _fail(f"{job}: still ending after {wait:g} s", FAILED)
        time.sleep(0.05)
    _done(job, as_json, "stopped")


def _registry() -> Registry:
    return Registry(environment.home())


def _still_there(entry: Entry) -> bool:
    return any(one.run == entry.run and one.pid == entry.pid for one in _registry().entries())


def _ask(job: str, method: str, path: str, document: dict[str, Any] | None = None) -> dict[str, Any]:
    return client.ask(_registry().find(job), method, path, document)


def _show(document: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(document, indent=1))
    else:
        Console(highlight=False, soft_wrap=True).print(job_table(document))


def _done(job: str, as_json: bool, text: str) -> None:
    print(json.dumps({"job": job, "done": text}) if as_json else f"{job}: {text}")


def _say(text: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text(text))


def _fail(text: str, code: int) -> None:
    _say(text)
    raise typer.Exit(code)


def guarded(command: Callable[[], Any]) -> int:
    """Run a command; errors become a line on standard error and an exit code."""
    try:
        code = command()
        return int(code) if isinstance(code, int) else OK
    except NoSuchJob as error:
        _say(f"ferry: {error}")
        return NO_SUCH_JOB
    except Refusal as error:
        _say(f"ferry: {error}")
        return REFUSED
    except FerryError as error:
        _say(f"ferry: {error}")
        return FAILED
    except typer.Exit as leaving:
        return leaving.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return FAILED


def main() -> None:
    """Entry of the `ferry` command."""
    environment.read_ferry_env()
    arguments = join_at(sys.argv[1:])

    def command() -> Any:
        try:
            return app(args=arguments, prog_name="ferry", standalone_mode=False)
        except typer.Abort:
            return FAILED

    try:
        code = guarded(command)
    except Exception as error:
        if not _is_usage(error):
            raise
        code = REFUSED
    sys.exit(code)


def _is_usage(error: Exception) -> bool:
    """Whether this is the argument parser's complaint; it is shown as the parser words it."""
    show = getattr(error, "show", None)
    if show is None:
        return False
    show()
    return True


if __name__ == "__main__":
    main()
