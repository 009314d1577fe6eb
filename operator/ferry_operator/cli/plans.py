"""Commands about plans, which runs of this machine and jobs on a cluster have alike: made and looked at, handed in, shown,
taken back; see `main`.

It reads arguments, calls what does the work, and prints.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.table import Table
from rich.text import Text

from ferry.contract.errors import Refusal
from ferry_operator.cli import targets
from ferry_operator.cli.client import Local
from ferry_operator.cli.options import AsJson, Job, Sets
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
"""Fields of `spec` that a plan file is about."""


@app.command()
def plan(
    ctx: typer.Context,
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="Name of the job; with -f: that of it.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="On a cluster: the changed job file.")
    ] = None,
    sets: Sets = None,
    patch: Annotated[
        str | None, typer.Option("--patch", "-p", help="On a cluster: a merge patch, JSON or YAML.")
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"{', '.join(get_args(strategies.Name))}.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the plan, for `submit`.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a change would do, without making it: what would move, in which steps; and write that as a plan.

    On a cluster the API server checks the change (a dry run, with the rules of the resource), and restarts are said,
    too. Ends with 2 when it, or the operator, would refuse it.
    """
    sets = [*(sets or ()), *([f"handover.strategy={strategy}"] if strategy else ())]
    if patch is not None and (file is not None or sets):
        raise Refusal("say what is to be changed: -f FILE, --set PATH=VALUE or --patch PATCH")
    if patch is None and file is None and not sets:
        raise Refusal("say what is to be changed: -f FILE, --set PATH=VALUE or --patch PATCH")
    text = spec.apply_sets(spec.read(file), sets) if file is not None else None
    metadata = (text or {}).get("metadata") or {}
    name, where = job or metadata.get("name"), ctx.obj
    if not name or (text is not None and name != metadata.get("name")):
        raise Refusal("name the job" if not name else f"{file} is of the job {metadata.get('name')!r}")
    if metadata.get("namespace") and not where.namespace:
        where = replace(where, namespace=metadata["namespace"])
    found = targets.find(where, name)
    proposed: PlanFile | None
    if isinstance(found, Local):
        if text is not None or patch is not None:
            raise Refusal(f"{name} runs on this machine: say what is to be changed by --set PATH=VALUE")
        wanted = spec.apply_sets({"spec": {}}, sets)
        proposed, refused = _changed(*found.present(), wanted["spec"]), False
    else:
        wanted = {"spec": text} if text is not None else spec.apply_sets({"spec": {}}, sets)
        wanted = spec.read(patch.strip() + "\n") if patch is not None else wanted
        proposed, refused = _remote(found, text, wanted, output is not None, as_json)
    if proposed is not None:
        if output is not None:
            try:
                output.write_text(plan_file.dump(proposed))
            except OSError as error:
                raise Refusal(f"--output {output}: {error.strerror}") from None
        if isinstance(found, Local) or not as_json:
            _show(proposed, output, as_json)
    if refused:
        raise typer.Exit(REFUSED)


def _changed(present: Present, before: Handover, wanted: dict[str, Any]) -> PlanFile:
    """The plan for a change of nothing but size and handover."""
    if other := [name for name in wanted if name not in SIZED]:
        raise Refusal(f"a plan is about {', '.join(SIZED)}, and not about {', '.join(other)}")
    handover = before.model_dump(by_alias=True, exclude_unset=True, mode="json") | (wanted.get("handover") or {})
    return _made(present, spec.some_job({**present.size.to_wire(), **wanted, "handover": handover}))


def _made(present: Present, document: dict[str, Any]) -> PlanFile:
    """The plan to what a document says."""
    one = spec.check(document).spec
    return plan_file.make(present, one.size, one.handover)


def _remote(
    job: RemoteJob, text: dict[str, Any] | None, wanted: dict[str, Any], write: bool, as_json: bool
) -> tuple[PlanFile | None, bool]:
    """Show what a change would do; the plan, if one is to be written, and whether it would be refused."""
    from ferry_operator.cli.remote import proposal, tables

    present = job.object()
    if text is not None:
        wanted = proposal.of_file(text, present)
    changed = job.tried(wanted)
    found = proposal.proposal(present, changed, job.nodes())
    if as_json:
        show_json(found.to_wire())
    else:
        show(tables.proposal_table(found))
    if found.refusals or not write:
        return None, bool(found.refusals)
    if other := [one.path for one in found.changes if one.path.split(".")[1] not in SIZED]:
        raise Refusal(f"a plan is about {', '.join(SIZED)}, and not about {', '.join(other)}")
    return _made(job.present()[0], changed), False


def _show(one: PlanFile, output: Path | None, as_json: bool) -> None:
    if as_json:
        print(plan_file.dump(one), end="")
        return
    forecast, table = one.forecast, Table.grid(padding=(0, 2))
    table.add_row(Text(one.job, style="bold"), "what the plan would do; nothing was changed")
    for name, before, after in (
        ("workers", one.before.workers, one.size.workers),
        ("instances per worker", one.before.instances, one.size.instances),
    ):
        table.add_row(name, f"{before} -> {after}" if before != after else str(after))
    table.add_row("strategy", one.handover.strategy + ("" if one.handover.warm else ", cold: epochs wait for copies"))
    table.add_row(
        "moves", f"{forecast.switchovers} new leaders, {forecast.copies} copies, {forecast.bytes / 1e6:,.1f} MB"
    )
    if forecast.seconds is not None:
        pause = f", a pause of {forecast.pause:.2g} s at most beyond the usual" if forecast.pause is not None else ""
        table.add_row("forecast", f"{forecast.seconds:,.1f} s{pause}, as moves went so far")
    table.add_row("steps", str(len(one.steps)))
    for number, (copies, switched) in enumerate(one.steps[:STEPS_SHOWN], 1):
        words = [
            f"copies of {_some(copies)}" if copies else "",
            f"new leaders of {_some(switched)}" if switched else "",
        ]
        table.add_row(f"  {number}", ", ".join(filter(None, words)))
    if len(one.steps) > STEPS_SHOWN:
        table.add_row("  ...", f"and {len(one.steps) - STEPS_SHOWN} more")
    show(table)
    if output is not None:
        say(f"{output}: hand it in with `ferry submit {one.job} {output}`")


def _some(vnodes: list[int]) -> str:
    return ", ".join(map(str, vnodes[:8])) + (f" and {len(vnodes) - 8} more" if len(vnodes) > 8 else "")


@app.command()
def submit(
    ctx: typer.Context,
    job: Job,
    file: Annotated[Path, typer.Argument(metavar="PLAN.json", help="What `plan -o` has written.")],
    at_epoch: Annotated[int | None, typer.Option(min=0, help="It does not begin before this epoch.")] = None,
    at_event_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Nor before the watermark is here: 2026-11-22T10:00Z, or ms.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Hand in a plan: its workers are started now, and it begins at once, or when it is due."""
    try:
        one = plan_file.read(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal(f"{file} cannot be read: {error}") from None
    due = {"at_epoch": at_epoch, "at_event_time": milliseconds(at_event_time) if at_event_time is not None else None}
    given = {name: value for name, value in due.items() if value is not None}
    if given:
        one = one.model_copy(update={"handover": one.handover.model_copy(update=given)})
        one = plan_file.read(one.dump())
    done(job, as_json, targets.find(ctx.obj, job).submit(one))


def milliseconds(text: str) -> int:
    """Event time as people write it, since 1970. Raises Refusal."""
    if text.removeprefix("-").isdecimal():
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise Refusal(f"--at-event-time {text}: a time is 2026-11-22T10:00Z, or milliseconds since 1970") from None
    if when.tzinfo is None:
        raise Refusal(f"--at-event-time {text}: say of which time zone: {text}Z, {text}+02:00")
    return round(when.timestamp() * 1000)


@app.command()
def plans(ctx: typer.Context, job: Job, as_json: AsJson = False) -> None:
    """List the plans of a job: the one in force and how far it is, one that waits, one that was handed in."""
    found = targets.find(ctx.obj, job).plans()
    if as_json:
        show_json(found)
        return
    table = Table("PLAN", "STATE", "STEPS", "WHAT", box=None, pad_edge=False)
    for one in found:
        table.add_row(str(one["plan"]), one["state"], one["steps"], one["what"])
    show(table)


@app.command()
def cancel(ctx: typer.Context, job: Job, as_json: AsJson = False) -> None:
    """Take back the plan that was handed in: the job gets its size of before, and is placed anew."""
    done(job, as_json, targets.find(ctx.obj, job).cancel())
