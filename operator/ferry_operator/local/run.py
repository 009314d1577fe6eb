"""`ferry run`: from a job file and options to a supervised run, its summary and its exit code.

It composes spec, run directory, schedule and supervisor. All checks come before the first process.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ferry.contract.errors import UNDECIDED, SpecRefused
from ferry.contract.one_line import one_line
from ferry.contract.run_directory import DEAD_LETTER
from ferry.contract.settings import LATEST, NOTHING, RunSettings
from ferry.contract.timeline import TIMELINE, append_record
from ferry_operator.control import balancing, handovers
from ferry_operator.control.commands import Schedule, parse_all
from ferry_operator.control.observed import Wanted
from ferry_operator.control.restarts import Outcome
from ferry_operator.control.scaling_sizes import policy_for
from ferry_operator.job import spec
from ferry_operator.job.models import StreamJob
from ferry_operator.job.settings import settings_for
from ferry_operator.local import check, environment, machine_limits, outputs, program
from ferry_operator.local.autoscaler import LocalAutoscaler
from ferry_operator.local.cluster.local import Programs
from ferry_operator.local.registry import Registry
from ferry_operator.local.run_command import FAILED, OK, REFUSED, RunCommand
from ferry_operator.local.rundir import RunDirectory
from ferry_operator.local.supervisor import Supervisor
from ferry_operator.local.timeline import timeline
from ferry_operator.local.timeline.console import PlainConsole
from ferry_operator.local.timeline.show import INDENT, ProgressView, summary_table


def run(command: RunCommand, programs: Programs | None = None) -> int:
    """Run a job to its end. Returns the exit code. Raises SpecRefused before any process has started."""
    if programs is None:
        environment.require_java()
    job = spec.load(command.job_file, command.sets)
    fields = job.spec
    spec.require_local_pipeline(job)
    command = replace(command, options=command.options.over(fields.output, fields.events))
    schedule = Schedule(parse_all(command.at, fields.size, fields.state.virtual_nodes))
    if fields.suspended:
        raise SpecRefused(
            f"spec.{'suspend' if fields.suspend else 'workers'}: a job without processes exists only on Kubernetes; here "
            "use `ferry suspend JOB`, and later `ferry run JOB.yaml --set restoreFrom=latest`"
        )
    file = spec.pipeline_file(job, command.job_file)
    if file is not None and not file.is_file():
        raise SpecRefused(f"spec.pipeline.file: {file} does not exist")
    if command.plot is not None and not command.plot.absolute().parent.is_dir():
        raise SpecRefused(f"--plot {command.plot}: {command.plot.absolute().parent} is no directory")
    progress = PlainConsole(stderr=True, soft_wrap=True)
    for warning in spec.warnings(job):
        progress.say(f"warning: {warning}", "yellow", INDENT)
    machine_limits.require(fields.workers * fields.instances_per_worker)
    with Registry(environment.home()).only(job.metadata.name):
        return _run(command, programs or Programs(), job, schedule, progress)


def _run(command: RunCommand, programs: Programs, job: StreamJob, schedule: Schedule, progress: PlainConsole) -> int:
    """Run a checked job. The caller holds the lock of its name."""
    fields = job.spec
    directory = RunDirectory(job, environment.home())
    tail = timeline.TimelineTail(directory.path / TIMELINE, from_end=True)
    remove = not directory.named  # until a process starts
    try:
        settings = replace(settings_for(job, command.job_file, directory, command.options), lasting=directory.named)
        if not directory.resumed:
            # The driver refuses a run that has a location of checkpoints and does not say whether to restore.
            undecided = fields.restore_from is None and fields.state.checkpoint.location is not None
            outputs.require(settings, restores=undecided or fields.restore_from not in (None, NOTHING))
        copied = program.copy(settings.pipeline_module, settings.pipeline_file, directory.path)
        settings = replace(settings, program=copied)
        wanted = Wanted(
            fields.size,
            fields.state.replicas,
            handovers.policy_of(fields.handover),
            balancing.policy_of(fields.balance),
            handovers.bandwidth_of(fields.handover),
        )
        scaler = LocalAutoscaler(policy_for(job.spec, 0, 1))
        supervisor = Supervisor(settings, wanted, directory, schedule, environment.home(), programs, scaler)
        remove = False
        with ProgressView(progress, command.quiet, PlainConsole(stderr=command.as_json)) as show:
            refusal = check.refusal(settings) if not directory.resumed and programs == Programs() else ""
            outcome = Outcome("refused", refusal) if refusal else supervisor.run(show)
        records, refused = tail.read(), dead_letters(settings)
        with suppress(OSError):  # on a full disk
            ended = {"kind": "ended", "t": time.time(), "outcome": outcome.kind, "text": outcome.reason}
            append_record(directory.path, ended)
        letters = refused is not None and settings.dead_letter is None
        well = outcome.ok and not outcome.reason and supervisor.went_well and not letters
        remove = ((well and not command.options.keep) or bool(refusal)) and not directory.named
        kept = None if remove else directory.path
        _report(command, outcome, job.metadata.name, records, kept, directory.named, progress)
        if refused is not None and any(record.get("malformed") for record in records):
            progress.say(f"malformed records were set aside in {refused}", "yellow", INDENT)
        for left in schedule.left() if outcome.ok else []:
            progress.say(f"warning: --at '{left}' never became due", "yellow", INDENT)
    finally:
        directory.close(remove)
    if outcome.kind == "stopped":
        return OK if command.options.events is None and not outcome.reason else FAILED
    return OK if outcome.ok else REFUSED if outcome.kind == "refused" else FAILED


def _last_output(records: list[timeline.Record]) -> str:
    """The directories of sinks; empty: no sink has a directory, or no driver has reported them."""
    return next((str(record.get("text", "")) for record in reversed(records) if record["kind"] == "output"), "")


def _report(
    command: RunCommand,
    outcome: Outcome,
    job: str,
    records: list[timeline.Record],
    kept: Path | None,
    named: bool,
    progress: PlainConsole,
) -> None:
    """Write the summary to standard output, the picture to its file, and reasons to standard error.

    `named`: the job file names the directory, so that the next run continues in it.
    """
    summary = timeline.summarize(records)
    if command.as_json:
        document = {
            "job": job,
            "outcome": outcome.kind,
            "reason": outcome.reason,
            "directory": str(kept) if kept else None,
        }
        sys.stdout.write(json.dumps({**document, **summary.to_wire()}, indent=1) + "\n")
    elif not command.quiet and summary.epochs:
        PlainConsole().print(summary_table(summary, job))
    if command.plot is not None and summary.epochs:
        # Matplotlib is large and only pictures need it.
        from ferry_operator.local.timeline.plot import draw

        draw(records, command.plot, job)
    if not outcome.ok or outcome.reason:
        how = "stopped, and had failed" if outcome.ok else outcome.kind
        progress.say(f"{job}: {how}: {one_line(outcome.reason)}", "red", INDENT)
        if UNDECIDED in outcome.reason:
            again = f"ferry run {command.job_file} --set restoreFrom="
            progress.say(f"either `{again}{LATEST}` or `{again}{NOTHING}`", "yellow", INDENT)
    elif outcome.kind == "stopped" and command.options.events is not None:
        progress.say(f"{job}: stopped before its {command.options.events:,} events were read", "yellow", INDENT)
    elif outcome.kind == "suspended":
        again = f"ferry run {command.job_file}" + ("" if named else " --set restoreFrom=latest")
        progress.say(f"{job}: suspended; continue it with `{again}`", "yellow", INDENT)
    if (output := _last_output(records)) and not command.quiet:
        progress.say(f"output: {output}", "dim", INDENT)
    if kept is not None and (not command.quiet or not outcome.ok):
        logs = "" if outcome.ok and not outcome.reason else f"\nits log: ferry logs {job}"
        progress.say(f"files of the run: {kept}{logs}", "dim", INDENT)


def dead_letters(settings: RunSettings) -> str | None:
    """The folder with the malformed records of the run; None: there are none."""
    folder = Path(settings.dead_letter) if settings.dead_letter is not None else settings.path / DEAD_LETTER
    try:
        return str(folder) if any(file.is_file() for file in folder.rglob("*")) else None
    except OSError:
        return None
