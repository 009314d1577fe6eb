"""`ferry explain`: what the pipeline of a job file is, or why a job has the size that it has; see `main`.

It reads arguments, calls what does the work, and prints.
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
    plot: Annotated[Path | None, typer.Option(help="Of a job file: draw its pipeline (PNG, SVG or PDF).")] = None,
    as_json: AsJson = False,
) -> None:
    """Of a job file: show its pipeline, what reads what, and how epochs are planned. Nothing is started.

    Of a job that runs: show the last decision about the number of workers, with all it was made from.
    """
    if Path(job).suffix in (".yaml", ".yml"):
        return _pipeline(Path(job), tuple(sets or ()), plot, as_json)
    if sets or plot is not None:
        raise Refusal(f"--set and --plot are for a job file, as {job}.yaml")
    document = targets.find(ctx.obj, job).describe()
    found = (document["status"] or {}).get("autoscale") or document.get("autoscale")
    if not found:
        raise Refusal(f"{job}: {_why_nothing(document)}")
    if as_json:
        show_json({"job": document["job"], **found})
    else:
        show(decision_table(document, found))


def _pipeline(file: Path, sets: tuple[str, ...], plot: Path | None, as_json: bool) -> None:
    job = spec.load(file, sets)
    checked = check.pipeline(job, file)
    if checked.plan is None:
        raise spec.JobRefused([checked.refused])
    if job.spec.epoch.mode == "micro-batch":
        checked.plan["planned"] = checked.plan["planned"] or "spec.epoch.mode says so"
    if plot is not None:
        from ferry_operator.local.timeline.plot import draw_pipeline  # Matplotlib is large and only pictures need it.

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
        return "only users change its size: spec.autoscale.max is not set"
    if document.get("suspended"):
        return "nothing is decided while it is suspended"
    return "nothing is decided yet: ask again in a few seconds"


def decision_table(document: Record, found: Record) -> Table:
    """The decision, and its inputs."""
    table = Table.grid(padding=(0, 2))
    reason = Text(found["reason"], style=STYLES.get(found["reason"], "green"))
    table.add_row(Text(document["job"], style="bold"), reason.append(f" ({found['mode']})", style="dim"))
    for title, line in _lines(document["spec"], found):
        table.add_row(title, Text(line))
    return table


def _lines(spec: Record, found: Record) -> Iterator[tuple[str, str]]:
    yield "decision", found.get("message", "")
    asked = f"{spec['workers']} x {spec['instancesPerWorker']}"
    wanted = f"{found['workers']} x {found['instancesPerWorker']}"
    yield "workers", f"asked for {asked}, wanted {wanted} instances; from {found['min']} to {found['max']} workers"
    if found.get("arrivingPerSecond") is not None:
        backlog = (
            f", {found['backlog']:,} wait" if found.get("backlog") is not None else ", it is not known how many wait"
        )
        speeds = f"{found['arrivingPerSecond']:,.0f}/s arrive, {found['recordsPerSecond']:,.0f}/s are read"
        yield "records", f"{speeds}{backlog}; over {found['measuredSeconds']:,.1f} s"
        busy = f"{found['busyTasks']:.2f} tasks and {found['busyInstances']:.2f} instances with records, on average"
        yield "busy", f"{busy}; {found['busyEpochs']:.2f} with epochs as such"
    if found.get("trueRate") is not None:
        yield "true rate", f"{found['trueRate']:,.0f} records/s, if a worker did nothing else"
    if found.get("used") is not None:
        yield "needed", f"{found['used']:.0%} of the workers' time; it may be {found['target']:.0%}"
    cooldown = f"{found['cooldownSeconds']:,.0f} s"
    yield (
        "since",
        f"this size for {found['sizeSeconds']:,.0f} s, low for {found['lowSeconds']:,.0f} s; cooldown {cooldown}",
    )
