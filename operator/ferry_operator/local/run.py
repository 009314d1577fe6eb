"""`ferry run`: from a job file and options to a supervised run, its summary and its exit code.

It composes spec, run directory, schedule and supervisor; everything is checked before anything is started.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ferry.contract.documents import LATEST, NOTHING, TIMELINE
from ferry.contract.errors import UNDECIDED, SpecRefused
from ferry_operator.control import balancing, decide, handovers
from ferry_operator.control.commands import Schedule, parse_all
from ferry_operator.control.restarts import Outcome
from ferry_operator.control.scaling_sizes import policy_for
from ferry_operator.job import spec
from ferry_operator.job.settings import Options, settings_for
from ferry_operator.local import environment
from ferry_operator.local.autoscaler import LocalAutoscaler
from ferry_operator.local.cluster.local import Programs
from ferry_operator.local.rundir import RunDirectory
from ferry_operator.local.supervisor import Supervisor
from ferry_operator.local.timeline import timeline
from ferry_operator.local.timeline.show import ProgressView, summary_table

OK, FAILED, REFUSED, NO_SUCH_JOB = 0, 1, 2, 4
"""Exit codes of `ferry`."""


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked on the command line."""

    job_file: Path
    sets: Sequence[str] = ()
    at: Sequence[str] = ()
    options: Options = field(default_factory=Options)
    plot: Path | None = None
    quiet: bool = False
    as_json: bool = False


def run(request: Request, programs: Programs | None = None) -> int:
    """Run a job to its end; returns the exit code. Raises SpecRefused before anything was started."""
    job = spec.load(request.job_file, request.sets)
    one = job.spec
    request = replace(request, options=request.options.over(one.output, one.events))
    schedule = Schedule(parse_all(request.at, one.workers, one.instances_per_worker, one.state.virtual_nodes))
    if one.suspended:
        raise SpecRefused(
            f"spec.{'suspend' if one.suspend else 'workers'}: only on Kubernetes is a job kept without processes; here: "
            "`ferry suspend JOB`, and later `ferry run JOB.yaml --set restoreFrom=latest`"
        )
    file = spec.pipeline_file(job, request.job_file)
    if file is not None and not file.is_file():
        raise SpecRefused(f"spec.pipeline.file: {file} does not exist")
    if request.plot is not None and not request.plot.absolute().parent.is_dir():
        raise SpecRefused(f"--plot {request.plot}: {request.plot.absolute().parent} is no directory")
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    for warning in spec.warnings(job):
        progress.print(Text(f"warning: {warning}", style="yellow"))
    directory = RunDirectory(job, environment.home())
    tail = timeline.TimelineTail(directory.path / TIMELINE, from_end=True)
    remove = False
    try:
        settings = replace(settings_for(job, request.job_file, directory, request.options), lasting=directory.given)
        wanted = decide.Wanted(
            one.workers,
            one.instances_per_worker,
            one.state.replicas,
            handovers.policy_of(one.handover),
            balancing.policy_of(one.balance),
            handovers.bandwidth_of(one.handover),
        )
        scaler, made = LocalAutoscaler(policy_for(job.spec, 0, 1)), programs or Programs()
        supervisor = Supervisor(settings, wanted, directory, schedule, environment.home(), made, scaler)
        with ProgressView(progress, request.quiet) as show:
            outcome = supervisor.run(show)
        records = tail.read()
        remove = outcome.ok and not directory.given and not request.options.keep
        kept = None if remove else directory.path
        _report(request, outcome, job.metadata.name, records, kept, directory.given, progress)
        for left in schedule.left() if outcome.ok else []:
            progress.print(Text(f"warning: --at '{left}' never became due", style="yellow"))
    finally:
        directory.close(remove)
    if outcome.kind == "stopped":
        return OK if request.options.events is None else FAILED
    return OK if outcome.ok else REFUSED if outcome.kind == "refused" else FAILED


def _report(
    request: Request,
    outcome: Outcome,
    job: str,
    records: list[timeline.Record],
    kept: Path | None,
    given: bool,
    progress: Console,
) -> None:
    """Summary to standard output, picture to its file, reasons to standard error."""
    summary = timeline.summarize(records)
    if request.as_json:
        document = {
            "job": job,
            "outcome": outcome.kind,
            "reason": outcome.reason,
            "directory": str(kept) if kept else None,
        }
        sys.stdout.write(json.dumps({**document, **summary.to_wire()}, indent=1) + "\n")
    elif not request.quiet and summary.epochs:
        Console(highlight=False).print(summary_table(summary, job))
    if request.plot is not None and summary.epochs:
        # Matplotlib is large and only pictures need it.
        from ferry_operator.local.timeline.plot import draw

        draw(records, request.plot, job)
    if not outcome.ok:
        progress.print(Text(f"{job}: {outcome.reason}", style="red"))
        if UNDECIDED in outcome.reason:
            again = f"ferry run {request.job_file} --set restoreFrom="
            progress.print(Text(f"either `{again}{LATEST}` or `{again}{NOTHING}`", style="yellow"))
    elif outcome.kind == "stopped" and request.options.events is not None:
        progress.print(Text(f"{job}: stopped before its {request.options.events:,} events were read", style="yellow"))
    elif outcome.kind == "suspended":
        again = f"ferry run {request.job_file}" + ("" if given else " --set restoreFrom=latest")
        progress.print(Text(f"{job}: suspended; it goes on with `{again}`", style="yellow"))
    if kept is not None and not request.quiet:
        progress.print(Text(f"files of the run: {kept}", style="dim"))
