"""Commands that make, submit, list and cancel plans, of runs on this machine and of jobs on a cluster; see `main`.

It reads arguments, calls other rooms, and prints.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.table import Table
from rich.text import Text

from ferry.contract.errors import Refusal
from ferry_operator.cli import targets
from ferry_operator.cli.client import Local
from ferry_operator.cli.options import AsJson, Job, Sets, event_time
from ferry_operator.cli.terminal import done, say, show, show_json
from ferry_operator.control import plan_file
from ferry_operator.control.plan_file import PlanFile, Present
from ferry_operator.job import spec
from ferry_operator.job.models_handover import Handover
from ferry_operator.local.run_command import REFUSED
from ferry_operator.placement import strategies

if TYPE_CHECKING:
    from ferry_operator.cli.remote.remote import RemoteJob

app = typer.Typer()

STEPS_SHOWN = 6

SIZED = ("workers", "instancesPerWorker", "handover")
"""Fields of `spec` that a plan file may change."""


@app.command()
def plan(
    ctx: typer.Context,
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="Name of the job; with -f the name in the file.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="On a cluster: the changed job file.")
    ] = None,
    sets: Sets = None,
    patch: Annotated[
        str | None, typer.Option("--patch", "-p", help="On a cluster: a merge patch in JSON or YAML.")
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"Strategy of the plan: {', '.join(get_args(strategies.Name))}.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the plan to a file, for `submit`.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the effects of a change without making it: the moves and their steps; optionally write them as a plan.

    On a cluster the API server checks the change by a dry run, and the effects include restarts. The exit code is 2 if the
    API server or the operator would refuse the change.
    """
    sets = [*(sets or ()), *([f"handover.strategy={strategy}"] if strategy else ())]
    if patch is not None and (file is not None or sets):
        raise Refusal("--patch cannot be combined with -f, --set and --strategy")
    if patch is None and file is None and not sets:
        raise Refusal("name the change by -f FILE, --set PATH=VALUE or --patch PATCH")
    text = spec.apply_sets(spec.read(file), sets) if file is not None else None
    metadata = (text or {}).get("metadata") or {}
    name, where = job or metadata.get("name"), ctx.obj
    if not name or (text is not None and name != metadata.get("name")):
        raise Refusal("name the job" if not name else f"{file} is for the job {metadata.get('name')!r}")
    if metadata.get("namespace") and not where.namespace:
        where = replace(where, namespace=metadata["namespace"])
    target = targets.find(where, name)
    proposed: PlanFile | None
    if isinstance(target, Local):
        if text is not None or patch is not None:
            raise Refusal(f"{name} runs on this machine: name the change by --set PATH=VALUE")
        wanted = spec.apply_sets({"spec": {}}, sets)
        proposed, refused = _changed(*target.present(), wanted["spec"]), False
    else:
        wanted = {"spec": text} if text is not None else spec.apply_sets({"spec": {}}, sets)
        wanted = spec.read(patch.strip() + "\n") if patch is not None else wanted
        proposed, refused = _remote(target, text, wanted, output is not None, as_json)
    if proposed is not None:
        if output is not None:
            try:
                output.write_text(plan_file.dump(proposed))
            except OSError as error:
                raise Refusal(f"--output {output}: {error.strerror}") from None
        if isinstance(target, Local) or not as_json:
            _show(proposed, output, as_json)
    if refused:
        raise typer.Exit(REFUSED)


def _changed(present: Present, before: Handover, wanted: dict[str, Any]) -> PlanFile:
    """The plan for a change of SIZED fields. Raises Refusal for a change of other fields."""
    if other := [name for name in wanted if name not in SIZED]:
        raise Refusal(f"a plan changes {', '.join(SIZED)}, and not {', '.join(other)}")
    handover = before.model_dump(by_alias=True, exclude_unset=True, mode="json") | (wanted.get("handover") or {})
    return _make(present, spec.some_job({**present.size.to_wire(), **wanted, "handover": handover}))


def _make(present: Present, document: dict[str, Any]) -> PlanFile:
    """The plan from the present state to the spec of a document."""
    wanted = spec.check(document).spec
    return plan_file.make(present, wanted.size, wanted.handover)


def _remote(
    job: RemoteJob, text: dict[str, Any] | None, wanted: dict[str, Any], write: bool, as_json: bool
) -> tuple[PlanFile | None, bool]:
    """Show the effects of a change. Returns the plan if `write`, and whether the change would be refused."""
    from ferry_operator.cli.remote import proposal, tables

    present = job.object()
    if text is not None:
        wanted = proposal.of_file(text, present)
    changed = job.tried(wanted)
    proposed = proposal.proposal(present, changed, job.nodes())
    if as_json:
        show_json(proposed.to_wire())
    else:
        show(tables.proposal_table(proposed))
    if proposed.refusals or not write:
        return None, bool(proposed.refusals)
    if other := [change.path for change in proposed.changes if change.path.split(".")[1] not in SIZED]:
        raise Refusal(f"a plan changes {', '.join(SIZED)}, and not {', '.join(other)}")
    return _make(job.present()[0], changed), False


def _show(plan: PlanFile, output: Path | None, as_json: bool) -> None:
    if as_json:
        print(plan_file.dump(plan), end="")
        return
    forecast, table = plan.forecast, Table.grid(padding=(0, 2))
    table.add_row(Text(plan.job, style="bold"), "effects of the plan; nothing was changed")
    for name, before, after in (
        ("workers", plan.before.workers, plan.size.workers),
        ("instances per worker", plan.before.instances, plan.size.instances),
    ):
        table.add_row(name, f"{before} -> {after}" if before != after else str(after))
    table.add_row("strategy", plan.handover.strategy + ("" if plan.handover.warm else ", cold: epochs wait for copies"))
    table.add_row(
        "moves", f"{forecast.switchovers} new leaders, {forecast.copies} copies, {forecast.bytes / 1e6:,.1f} MB"
    )
    if forecast.seconds is not None:
        pause = f", a pause of at most {forecast.pause:.2g} s more than usual" if forecast.pause is not None else ""
        table.add_row("forecast", f"{forecast.seconds:,.1f} s{pause}, by the measurements of earlier moves")
    table.add_row("steps", str(len(plan.steps)))
    for number, (copies, switched) in enumerate(plan.steps[:STEPS_SHOWN], 1):
        words = [
            f"copies of {_listed(copies)}" if copies else "",
            f"new leaders of {_listed(switched)}" if switched else "",
        ]
        table.add_row(f"  {number}", ", ".join(filter(None, words)))
    if len(plan.steps) > STEPS_SHOWN:
        table.add_row("  ...", f"and {len(plan.steps) - STEPS_SHOWN} more")
    show(table)
    if output is not None:
        say(f"{output}: submit it with `ferry submit {plan.job} {output}`")


def _listed(vnodes: list[int]) -> str:
    return ", ".join(map(str, vnodes[:8])) + (f" and {len(vnodes) - 8} more" if len(vnodes) > 8 else "")


@app.command()
def submit(
    ctx: typer.Context,
    job: Job,
    file: Annotated[Path, typer.Argument(metavar="PLAN.json", help="A plan that `plan -o` has written.")],
    at_epoch: Annotated[int | None, typer.Option(min=0, help="First epoch at which the plan may begin.")] = None,
    at_event_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Watermark at which the plan may begin: 2026-11-22T10:00Z, or ms."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Submit a plan: its workers start now, and the plan begins at once, or when it is due."""
    try:
        submitted = plan_file.read(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal(f"{file} cannot be read: {error}") from None
    due = {"at_epoch": at_epoch, "at_event_time": event_time(at_event_time) if at_event_time is not None else None}
    dates = {name: value for name, value in due.items() if value is not None}
    if dates:
        handover = submitted.handover.model_copy(update=dates)
        submitted = plan_file.read(submitted.model_copy(update={"handover": handover}).dump())
    done(job, as_json, targets.find(ctx.obj, job).submit(submitted))


@app.command()
def plans(ctx: typer.Context, job: Job, as_json: AsJson = False) -> None:
    """List the plans of a job: the active plan with its progress, the scheduled plan, the submitted plan."""
    records = targets.find(ctx.obj, job).plans()
    if as_json:
        show_json(records)
        return
    table = Table("PLAN", "STATE", "STEPS", "WHAT", box=None, pad_edge=False)
    for record in records:
        table.add_row(str(record["plan"]), record["state"], record["steps"], record["what"])
    show(table)


@app.command()
def cancel(ctx: typer.Context, job: Job, as_json: AsJson = False) -> None:
    """Withdraw the submitted plan: the job returns to its previous size, by a new plan."""
    done(job, as_json, targets.find(ctx.obj, job).cancel())
