"""Commands that change the program of a running job; see `main`.

It reads arguments, calls other rooms, and prints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Protocol, TypeVar

import typer
from pydantic import ValidationError

from ferry.contract.catalogue import SLOWER
from ferry.contract.durations import milliseconds
from ferry.contract.errors import Fault, SpecRefused, Unreachable
from ferry.contract.program_diff import OperatorFate
from ferry.system.priority import give_way
from ferry_operator.cli import targets
from ferry_operator.cli.client import LOOK_SECONDS, Local
from ferry_operator.cli.options import AsJson, Job, event_time
from ferry_operator.cli.program_tables import comparison, cost, fates_table, versions_table
from ferry_operator.cli.terminal import say, show, show_json
from ferry_operator.job import fields, spec
from ferry_operator.job.models_deploy import DeployPolicy
from ferry_operator.local.deploys import IN_FORCE, LocalDeploys
from ferry_operator.local.run_command import FAILED, REFUSED

if TYPE_CHECKING:
    from ferry_operator.cli.remote.deploys import RemoteDeploys
    from ferry_operator.cli.remote.remote import RemoteJob

app = typer.Typer()

T = TypeVar("T")

WAIT_SECONDS = 120.0


class JobPrograms(Protocol):
    """The programs of a job."""

    def programs(self) -> list[dict[str, Any]]:
        """All programs that are remembered, the newest first. Raises FerryError."""


Wait = Annotated[
    float,
    typer.Option(min=0, metavar="SECONDS", help="Maximum wait for the program, and for its first epoch."),
]


@app.command()
def deploy(
    ctx: typer.Context,
    job: Job,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The program; without it the present one.")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="pipeline.args.NAME=VALUE", help="Change an argument.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Show the effects, and change nothing.")] = False,
    at_epoch: Annotated[int, typer.Option(min=0, metavar="EPOCH", help="Not before this epoch.")] = 0,
    at_event_time: Annotated[
        str, typer.Option(metavar="TIME", help="Not before this watermark: 2026-11-22T10:00Z, or ms.")
    ] = "",
    shadow: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="EPOCHS",
            help="Run it beside the present one, and compare the rows of these epochs with rows.",
        ),
    ] = 0,
    keep: Annotated[
        str, typer.Option(metavar="TIME", help="Keep the present one up to date, for an exact rollback, such as 10m.")
    ] = "",
    probation: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Time in which the job goes back automatically, from the first rows on; the command waits for it. "
            "[default: 30s, without waiting]",
        ),
    ] = "",
    slower: Annotated[
        float,
        typer.Option(
            min=0, metavar="TIMES", help="How many times longer than before its epochs may last meanwhile; 0: any time."
        ),
    ] = SLOWER,
    wait: Wait = WAIT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Change the program of a running job: functions, arguments, and operators, from one epoch on, without a stop.

    The name identifies an operator: with the same key, window and aggregates it keeps its
    state. A program that cannot be deployed is refused with a reason, and the job goes on
    with its present program. The exit code is 2 then.

    With `--shadow` both programs read the same records, and only the rows of the present one
    are written. After these epochs the new one goes on alone if no row differs; else the
    present one does, and the exit code is 2. Within `--keep`, a rollback goes on with state
    as if nothing had been deployed.

    On probation, the job goes back automatically if rows violate an expectation of the program
    (`.expect(...)`), if its code fails before or in the first operator, if drivers die of it,
    or with `--slower` if its epochs last much longer.
    """
    if shadow and keep:
        raise SpecRefused("--shadow and --keep: choose one; a shadow leaves the present program in force")
    at_time = event_time(at_event_time) if at_event_time else None
    kept = milliseconds(keep, "--keep") / 1000 if keep else 0.0
    seconds = milliseconds(probation, "--probation") / 1000 if probation else 0.0
    _require(shadow=shadow or None, at_epoch=at_epoch, at_event_time=at_time, slower=slower)
    _require(keep=keep, probation=probation)
    more = {"shadow": shadow, "keep": kept, "at_time": at_time, "slower": slower}
    if probation:
        more["probation"] = seconds
    target, deadline = targets.find(ctx.obj, job), time.monotonic() + wait
    begin: Callable[[], int]
    deploys: JobPrograms

    def change(arguments: dict[str, Any]) -> dict[str, Any]:
        return _with(arguments, sets or ())

    if isinstance(target, Local):
        give_way()
        local = deploys = LocalDeploys(Path(target.entry.directory))
        fates, request = _patiently(job, lambda: local.compared(file, change, wait), deadline)
        if (file is not None or not sets) and (known := _patiently(job, lambda: local.known_text(request), deadline)):
            say(f"{job}: {known}")
        size = local.state_bytes() if check else None
        begin = partial(local.deploy, {**request, "at": at_epoch, **more})
    else:
        remote = deploys = _remote(target)
        if file is not None and (beside := _remote_helpers(file)):
            say(f"{job}: the program imports {', '.join(beside)}: the job takes such modules from its image")
        wanted = remote.request(file, change)
        fates, size = _patiently(job, lambda: remote.fates(wanted), deadline) if check else [], None
        early = {"shadow": shadow or None, "keep": keep or None, "atEpoch": at_epoch or None, "atEventTime": at_time}
        late = {"probation": probation or None, "slower": slower or None}
        how = {name: value for name, value in {**early, **late}.items() if value is not None}
        begin = partial(remote.deploy, wanted, how)
    if fates and not as_json:
        show(fates_table(fates))
    if check:
        if as_json:
            show_json({"job": job, "operators": [_fate(one) for one in fates], "stateBytes": size})
        else:
            print(cost(fates, size, bool(shadow or kept)))
        return
    number = _patiently(job, begin, deadline)
    _await(job, deploys, number, deadline, as_json)
    if shadow:
        _await_verdict(job, deploys, number, as_json)
    elif seconds:
        _await_probation(job, deploys, number)


@app.command()
def rollback(
    ctx: typer.Context,
    job: Job,
    to: Annotated[int | None, typer.Option(min=1, metavar="NUMBER", help="An earlier program; see `versions`.")] = None,
    rewind: Annotated[
        bool, typer.Option("--rewind", help="Go back to the newest checkpoint before the present program.")
    ] = False,
    wait: Wait = WAIT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Deploy an earlier program of a running job again; without `--to` the one before the present one.

    State goes forward: an operator keeps the present state, and an operator that returns goes on with its state as of the
    epoch in which it was removed. On a cluster the spec names the earlier program again. With `--rewind` state, sinks and
    offsets go back to the newest checkpoint before the present program, and its program reads the records since again.
    """
    target, deadline = targets.find(ctx.obj, job), time.monotonic() + wait
    if isinstance(target, Local):
        if rewind and to is not None:
            raise SpecRefused("--rewind: leave out --to, because the checkpoint has its program")
        local = LocalDeploys(Path(target.entry.directory))
        number = _patiently(job, lambda: local.rollback(to, rewind), deadline)
        return (_await_rewound if rewind else _await)(job, local, number, deadline, as_json)
    remote = _remote(target)
    wanted, how = _patiently(job, lambda: remote.rolled_back(to, rewind), deadline), {"rewind": True} if rewind else {}
    _await(job, remote, _patiently(job, partial(remote.deploy, wanted, how), deadline), deadline, as_json)


@app.command()
def versions(ctx: typer.Context, job: Job, as_json: AsJson = False) -> None:
    """List the programs that a running job has, had, or refused, the newest first."""
    target = targets.find(ctx.obj, job)
    deploys = LocalDeploys(Path(target.entry.directory)) if isinstance(target, Local) else _remote(target)
    programs = deploys.programs()
    if as_json:
        show_json({"job": job, "programs": programs})
        return
    show(versions_table(programs))


def _remote(job: RemoteJob) -> RemoteDeploys:
    # The client of Kubernetes is large, so it is imported only for a cluster.
    from ferry_operator.cli.remote.deploys import RemoteDeploys

    return RemoteDeploys(job)


def _remote_helpers(file: Path) -> list[str]:
    from ferry_operator.cli.remote.deploys import helpers

    return helpers(file)


def _with(arguments: dict[str, Any], sets: list[str] | tuple[str, ...]) -> dict[str, Any]:
    if wrong := [one for one in sets if not one.startswith("pipeline.args.")]:
        raise SpecRefused(f"--set {wrong[0]}: a deploy changes pipeline.args.NAME=VALUE only")
    document = spec.apply_sets({"spec": {"pipeline": {"args": arguments}}}, sets)
    changed: dict[str, Any] = document["spec"]["pipeline"]["args"]
    new = {name: value for name, value in changed.items() if name not in arguments or value != arguments[name]}
    spec.check(spec.some_job({"pipeline": {"module": "some", "args": new}}))
    return changed


def _require(**options: Any) -> None:
    """Raises SpecRefused for an option beyond the bounds of `spec.deploy`. Texts are durations."""
    how = {name: f"{milliseconds(v, name)}ms" if isinstance(v, str) else v for name, v in options.items() if v != ""}
    try:
        DeployPolicy.model_validate(how, by_alias=False, by_name=True)
    except ValidationError as error:
        wrong = error.errors()
        for one in wrong:
            name = str(one["loc"][0])
            one["loc"], one["input"] = (f"--{name.replace('_', '-')}",), options[name]
        raise SpecRefused("\n".join(map(fields.problem, wrong))) from None


def _fate(one: OperatorFate) -> dict[str, str]:
    return {"name": one.name, "fate": one.fate, "text": one.words}


def _patiently(job: str, ask: Callable[[], T], deadline: float) -> T:
    """The answer of the driver, which may be restarting. Raises Unreachable after the deadline."""
    shown = ""
    while True:
        try:
            return ask()
        except Unreachable as error:
            if time.monotonic() > deadline:
                raise
            if str(error) != shown:
                shown = str(error)
                say(f"{job}: {shown}")
            time.sleep(LOOK_SECONDS)


def _await_probation(job: str, deploys: JobPrograms, number: int) -> None:
    """Wait for the end of a probation. The exit code is 2 if the job goes back."""
    for record, programs in _looks(deploys, number):
        if why := record.get("wentBack") or record["refused"]:
            _went_back(job, number, why)
        if not record["probation"]:
            return say(f"{job}: program {number} has passed its probation")
        now = next((one for one in programs if one["state"] in IN_FORCE), record)
        if now["number"] > number and now.get("settles") != number:
            say(f"{job}: program {now['number']} is in force, and the probation of program {number} was not over")
            raise typer.Exit(FAILED)


def _looks(deploys: JobPrograms, number: int) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """A program and all programs, again and again. Raises Unreachable when no driver answers for WAIT_SECONDS."""
    answered = time.monotonic()
    while True:
        try:
            programs, answered = deploys.programs(), time.monotonic()
        except Unreachable:  # The driver is restarting, or the job has ended.
            programs = []
            if time.monotonic() > answered + WAIT_SECONDS:
                raise
        if (record := next((one for one in programs if one["number"] == number), None)) is not None:
            yield record, programs
        time.sleep(LOOK_SECONDS * 2)


def _went_back(job: str, number: int, why: str) -> NoReturn:
    say(f"{job}: the job goes back from program {number}: {why}")
    raise typer.Exit(REFUSED)


def _await_verdict(job: str, deploys: JobPrograms, number: int, as_json: bool) -> None:
    """Show the comparison of a shadow until it is over. The exit code is 2 if the job does not go on with it."""
    shown = ""
    for record, programs in _looks(deploys, number):
        compared = record["compared"]
        if compared and (text := comparison(compared)) != shown:
            say(f"{job}: {text}")
            shown = text
        if record["state"] != "shadow":
            now = next(one["number"] for one in programs if one["state"] in IN_FORCE)
            break
    failed = record.get("failed", "")
    differs = not compared or bool(compared["missing"] or compared["more"] or compared.get("violation") or failed)
    alone = [one for one in programs if one["settles"] == number]  # The present program goes on alone as another one.
    refused = next((one["refused"] for one in alone if one["refused"]), "")
    goes_on = not differs and any(one["since"] is not None and not one["refused"] for one in alone)
    if as_json:
        show_json({"job": job, **record, "inForce": now})
    else:
        for example in compared.get("examples", ()):
            print(f"  {example}")
        for name in compared.get("uncompared", ()):
            say(f"{job}: {name} was not compared")
        if violation := compared.get("violation"):
            say(f"{job}: {violation}")
        if goes_on:
            print(f"{job}: no row differs: program {now} goes on, which is program {number} alone")
    if not goes_on:
        ended = "the shadow is over" if compared else "the shadow was ended before its last epoch"
        ended = f"the shadow's code failed: {failed}" if failed else ended
        ended = f"no row differs, but the shadow could not go on alone: {refused}" if refused and not differs else ended
        say(f"{job}: {ended}, and program {now} goes on")
        raise typer.Exit(REFUSED)


def _await_rewound(job: str, deploys: JobPrograms, number: int, deadline: float, as_json: bool) -> None:
    """Wait until the next driver has restored the state, with its program in force."""
    while time.monotonic() < deadline:
        with suppress(Unreachable):
            record = next((one for one in deploys.programs() if one["number"] == number), {})
            if record.get("state") in IN_FORCE:
                if as_json:
                    show_json({"job": job, **record})
                else:
                    print(f"{job}: program {number} is in force again, with the state before the rollback's program")
                return
        time.sleep(LOOK_SECONDS)
    say(f"{job}: the state before is not restored yet: see `ferry status {job}`")
    raise typer.Exit(FAILED)


def _await(job: str, deploys: JobPrograms, number: int, deadline: float, as_json: bool) -> None:
    """Show the phases of a deploy until its end. A driver that restarts goes on with it."""
    shown = ""
    while True:
        try:
            record = next((record for record in deploys.programs() if record["number"] == number), None)
        except Fault as error:
            record, text = None, str(error)
            if shown != text:
                say(f"{job}: {text}")
                shown = text
        else:
            if record is None:
                say(f"{job}: the driver ended before it had journaled program {number}: deploy it again")
                raise typer.Exit(FAILED)
        state = record["state"] if record is not None else ""
        if state == "refused" and record is not None:
            if as_json:
                show_json({"job": job, **record})
            say(f"{job}: program {number} is refused: {record['refused']}. The job goes on with its present program")
            raise typer.Exit(REFUSED)
        if state == "over" and record is not None and record.get("wentBack"):
            if as_json:
                show_json({"job": job, **record})
            _went_back(job, number, record["wentBack"])
        if state in ("in force", "over", "shadow") and record is not None:
            if as_json and state != "shadow":
                show_json({"job": job, **record})
            elif not as_json:
                what = "runs as a shadow" if state == "shadow" else "is in force"
                print(f"{job}: program {number} {what} from epoch {record['since']} on")
            return
        if state and state != shown:
            say(f"{job}: program {number}: {state}")
            shown = state
        if time.monotonic() > deadline:
            say(f"{job}: program {number} is not in force yet: see `ferry versions {job}`")
            raise typer.Exit(FAILED)
        time.sleep(LOOK_SECONDS / 2)
