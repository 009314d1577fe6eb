"""`ferry explain`: the pipeline of a job file, or the reason of a job's size; see `main`.

It reads arguments, calls other rooms, and prints.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from ferry.contract.errors import Refusal
from ferry_operator.cli import targets
from ferry_operator.cli.options import AsJson, Sets
from ferry_operator.cli.terminal import show, show_json
from ferry_operator.job import spec
from ferry_operator.local import check, graph

Record = dict[str, Any]

app = typer.Typer()

STYLES = {"ScaleOut": "cyan", "ScaleIn": "cyan", "Bounds": "cyan", "Cooldown": "yellow"}
STYLES |= {"AtMaximum": "red", "NotLimitedByWorkers": "red"}


@app.command()
def explain(
    ctx: typer.Context,
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="A job file (JOB.yaml), or the name of a job or of its run.")
    ],
    sets: Sets = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the pipeline of a job file (PNG, SVG or PDF).")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the pipeline of a job file, with its inputs and its epoch mode. Nothing is started.

    For a running job, show the last decision of the autoscaler with its inputs.
    """
    if Path(job).suffix in (".yaml", ".yml"):
        return _pipeline(Path(job), tuple(sets or ()), plot, as_json)
    if sets or plot is not None:
        raise Refusal(f"--set and --plot need a job file, such as {job}.yaml")
    document = targets.find(ctx.obj, job).describe()
    report = (document["status"] or {}).get("autoscale") or document.get("autoscale")
    if not report:
        raise Refusal(f"{job}: {_why_nothing(document)}")
    if as_json:
        show_json({"job": document["job"], **report})
    else:
        show(decision_table(document, report))


def _pipeline(file: Path, sets: tuple[str, ...], plot: Path | None, as_json: bool) -> None:
    job = spec.load(file, sets)
    checked = check.pipeline(job, file)
    if checked.plan is None:
        raise spec.JobRefused([checked.refused])
    if job.spec.epoch.mode == "micro-batch":
        checked.plan["planned"] = checked.plan["planned"] or "spec.epoch.mode is micro-batch"
    if plot is not None:
        from ferry_operator.local.timeline.plot import draw_pipeline  # Matplotlib is large, and only pictures need it.

        draw_pipeline(checked.plan, plot, job.metadata.name)
    if as_json:
        return show_json({"job": job.metadata.name, **checked.plan})
    table = Table.grid(padding=(0, 2))
    for title, line in graph.lines(checked.plan):
        table.add_row(Text(title, style="" if title.startswith(" ") else "bold"), Text(line))
    show(table)


def _why_nothing(document: Record) -> str:
    """Why there is no decision."""
    if not document.get("autoscaled"):
        return "no autoscaler: spec.autoscale.max is not set"
    if document.get("suspended"):
        return "nothing is decided while the job is suspended"
    return "nothing is decided yet: try again in a few seconds"


def decision_table(document: Record, report: Record) -> Table:
    """A decision with its inputs."""
    table = Table.grid(padding=(0, 2))
    reason = Text(report["reason"], style=STYLES.get(report["reason"], "green"))
    table.add_row(Text(document["job"], style="bold"), reason.append(f" ({report['mode']})", style="dim"))
    for title, line in _lines(document["spec"], report):
        table.add_row(title, Text(line))
    return table


def _lines(spec: Record, report: Record) -> Iterator[tuple[str, str]]:
    yield "decision", report.get("message", "")
    requested = f"{spec['workers']} x {spec['instancesPerWorker']}"
    wanted = f"{report['workers']} x {report['instancesPerWorker']}"
    yield (
        "workers",
        f"requested {requested}, wanted {wanted} instances; from {report['min']} to {report['max']} workers",
    )
    if report.get("arrivingPerSecond") is not None:
        backlog = f", {report['backlog']:,} wait" if report.get("backlog") is not None else ", the backlog is not known"
        speeds = f"{report['arrivingPerSecond']:,.0f}/s arrive, {report['recordsPerSecond']:,.0f}/s are read"
        yield "records", f"{speeds}{backlog}; over {report['measuredSeconds']:,.1f} s"
        busy = f"{report['busyTasks']:.2f} tasks and {report['busyInstances']:.2f} instances with records, on average"
        yield "busy", f"{busy}; {report['busyEpochs']:.2f} with the overhead of epochs"
    if report.get("trueRate") is not None:
        yield "true rate", f"{report['trueRate']:,.0f} records/s, at full use of one worker"
    if report.get("used") is not None:
        yield "needed", f"{report['used']:.0%} of the workers' time; the target is {report['target']:.0%}"
    cooldown = f"{report['cooldownSeconds']:,.0f} s"
    yield (
        "since",
        f"this size for {report['sizeSeconds']:,.0f} s, low for {report['lowSeconds']:,.0f} s; cooldown {cooldown}",
    )
