"""Events of a job for `kubectl describe`: changes of its status, and executed steps. Pure.

The name of an event is a digest of its content: the same event again raises the count of the existing object.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from ferry_operator.control import decide as d
from ferry_operator.control.autoscaling import CHANGES
from ferry_operator.job.models import API_VERSION, KIND
from ferry_operator.job.status import (
    AUTOSCALER_ACTIVE,
    DEFINITION_OLDER,
    ROLLED_OUT,
    BalanceReport,
    ProgramReport,
    TransportStatus,
)
from ferry_operator.kube import steps as s
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.observe.facts import Problem, stamp
from ferry_operator.kube.observe.program import SHADOW
from ferry_operator.kube.report.status import StatusReport

COMPONENT = "ferry-operator"
MESSAGE_MAX = 1000

AT_ONCE, EACH_SECONDS = 50, 6.0
"""Events of a job about changes and problems: at once, and the time after which there may be one more."""

USER_LIMITS = {
    "AtMaximum": "the load needs more than",
    "NotLimitedByWorkers": "records wait, but more workers would not help; the maximum is",
}
"""Limits that only the user can change. Texts without measured numbers, so that repeated events have one object."""


@dataclass(frozen=True, slots=True)
class Notice:
    """The content of an event."""

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(slots=True)
class EventAllowance:
    """The events that a job may have now. Users' code in a driver can report other problems at every look."""

    left: float = AT_ONCE
    at: float = 0.0

    def of(self, notices: Iterable[Notice], now: float) -> Iterator[Notice]:
        """The notices that may be written; after them one that says so if there are more."""
        self.left, self.at = min(AT_ONCE, self.left + max(0.0, now - self.at) / EACH_SECONDS), now
        for notice in notices:
            if self.left < 1:
                text = "the job has more events than are written: its conditions have the present problems"
                yield Notice("Warning", "EventsWithheld", text)
                return
            self.left -= 1
            yield notice


def changes(report: StatusReport) -> Iterator[Notice]:
    """Events about changes between two statuses."""
    now, before = report.status, report.before
    for condition in now.conditions:
        old = before.condition(condition.type)
        turned = old is None or (old.status, old.reason) != (condition.status, condition.reason)
        if not turned:
            continue
        match condition.type, condition.status:
            case "Ready", "True":
                yield Notice("Normal", "Ready", condition.message)
            case "Ready", _ if condition.reason in ("Suspending", "Suspended"):
                continue  # by request
            case "Ready", _ if old is not None and old.status == "True":
                yield Notice("Warning", "NotReady", f"{condition.reason}: {condition.message}")
            case "Handover", "True" if old is None or old.status != "True":
                yield Notice("Normal", "HandoverStarted", condition.message)
            case "Handover", "False" if old is not None and old.status == "True" and condition.reason == "Settled":
                yield Notice("Normal", "HandoverFinished", f"after {now.last_handover}")
            case "Handover", "False" if condition.reason == "GivenUp":
                yield Notice("Warning", "HandoverGivenUp", condition.message)
            case "ReplicasInSync", "False" if condition.reason == "TooFewWorkers":
                yield Notice("Warning", condition.reason, condition.message)
            case kind, _ if kind == AUTOSCALER_ACTIVE and now.autoscale is not None:
                if condition.reason in CHANGES and now.autoscale.mode == "advise":
                    yield Notice("Normal", "RescaleAdvised", now.autoscale.message)
                elif condition.reason == "Overruled":
                    yield Notice("Warning", "AutoscalerOverruled", condition.message)
                elif (words := USER_LIMITS.get(condition.reason)) is not None:
                    yield Notice(
                        "Warning", condition.reason, f"{words} {now.autoscale.max} workers; see status.autoscale"
                    )
            case kind, _ if kind == ROLLED_OUT and condition.reason in ("Rolling", "Stopped"):
                begins = condition.reason == "Rolling"
                yield Notice(
                    "Normal" if begins else "Warning", "RollBegun" if begins else "RollStopped", condition.message
                )
            case kind, "True" if kind == DEFINITION_OLDER:
                yield Notice("Warning", DEFINITION_OLDER, condition.message)
            case "Progressing", "False" if condition.reason == "Paused":
                yield Notice("Normal", "Paused", condition.message)
    yield from _program_changes(now.program, before.program)
    yield from _transport_changes(now.transport, before.transport)
    yield from _checkpoint_changes(report)
    yield from _balance_changes(now.balance, before.balance)
    if now.phase != before.phase and now.phase == "Finished":
        yield Notice(
            "Normal", "Finished", f"{now.progress.rows if now.progress.rows is not None else 'all'} rows were read"
        )


def new_problems(problems: Sequence[Problem], before: Sequence[Problem]) -> Iterator[Notice]:
    """Events about new problems; a lasting problem does not hide a new problem with the same reason."""
    for problem in problems:
        if problem not in before:
            yield Notice("Warning", problem.reason, problem.message)


def _checkpoint_changes(report: StatusReport) -> Iterator[Notice]:
    """Events about the first checkpoint of a job, requested checkpoints, and the checkpoint at the start of a run."""
    now, before = report.status.checkpoint, report.before.checkpoint
    if now is not None and (before is None or before.number != now.number) and (before is None or now.name):
        called = f"{now.number} ({now.name})" if now.name else str(now.number)
        yield Notice("Normal", "CheckpointComplete", f"{called}, as of epoch {now.epoch}, {now.total_bytes} bytes")
    if report.restored is not None:
        yield Notice("Normal", "Restored", f"from {report.restored}; epoch {report.status.epoch} is done")


def _program_changes(now: ProgramReport | None, before: ProgramReport | None) -> Iterator[Notice]:
    """Events about another program in force, and about a shadow; a refusal is a problem, with an event of its own."""
    if now is None or before is None:
        return
    if _has_shadow(now) and not _has_shadow(before):
        what = (
            f"{now.message.partition(':')[0]} runs beside program {now.number}: its rows are compared, and not written"
        )
        yield Notice("Normal", "ShadowBegun", what)
    if now.number == before.number:
        return
    reason = "ProgramRolledBack" if now.number < before.number or now.again is not None else "ProgramDeployed"
    as_before = f"; it is program {now.again} again" if now.again is not None else ""
    found = f"; {now.message}" if now.phase == "InForce" and now.message else ""
    yield Notice("Normal", reason, f"program {now.number} is in force from epoch {now.since} on{as_before}{found}")


def _has_shadow(program: ProgramReport) -> bool:
    return program.phase == "Deploying" and f": {SHADOW}" in program.message


def _balance_changes(now: BalanceReport | None, before: BalanceReport | None) -> Iterator[Notice]:
    """One event about a useful move; its present numbers are in the status."""
    if now is not None and now.advice is not None and (before is None or before.advice is None):
        yield Notice("Normal", "Unbalanced", now.advice)


def _transport_changes(now: TransportStatus | None, before: TransportStatus | None) -> Iterator[Notice]:
    """One event about unexpected links; another when the reason changes, and when the links are as expected again."""
    old = before or TransportStatus(kind="none")
    if now is None:
        return
    if now.reason is not None and (now.kind, now.reason) != (old.kind, old.reason):
        yield Notice("Warning", "TransportFallback", f"links are {now.kind} although RDMA is expected: {now.reason}")
    elif now.kind == "rdma" and now.reason is None and old.reason is not None:
        yield Notice("Normal", "TransportRestored", "all links are RDMA")
    if now.memory is not None and now.memory != old.memory:
        yield Notice("Warning", "PinnedMemory", now.memory)


def step_notice(step: s.Step) -> Notice | None:
    """The event about an executed step, or None."""
    match step:
        case d.StartWorker() | d.SetInstances():
            return Notice(
                "Normal", "WorkerStarted" if isinstance(step, d.StartWorker) else "WorkerChanged", s.describe(step)
            )
        case d.StopWorker():
            return Notice("Normal", "WorkerStopped", s.describe(step))
        case d.StartDriver():
            return Notice("Normal", "DriverStarted", s.describe(step))
        case d.SubmitDesired():
            return Notice("Normal", "Placed", s.describe(step))
        case s.CreatePlaceholder():
            return Notice("Normal", "PlaceholderMade", s.describe(step))
        case s.ReplaceDriver():
            return Notice("Normal", "DriverReplaced", s.describe(step))
        case s.ForceDeletePod():
            return Notice("Warning", "PodLost", s.describe(step))
        case s.DeletePod():
            return Notice("Normal", "PodDeleted", s.describe(step))
        case s.DeleteJob():
            return Notice("Normal", "Expired", s.describe(step))
        case s.RefuseSpec(_, message):
            return Notice("Warning", "SpecRefused", message)
        case s.Rescale(_, message):
            return Notice("Normal", "Rescaled", message)
        case s.RemoveAnnotations():
            return Notice("Normal", "Forgotten", s.describe(step))
        case s.EndRun(_, message):
            return Notice("Normal", "Suspended", f"{message}; its pods are deleted, its checkpoints stay")
        case (
            d.LimitCopies()
            | s.TakeOwnership()
            | s.RecordGoodSpec()
            | s.WriteBudget()
            | s.AllowEviction()
            | s.NoteReversal()
            | s.RecordMembers()
            | s.MarkWithoutSurge()
            | s.RecordDefaults()
            | s.WriteSettings()
        ):
            return None
        case s.RequestCheckpoint() | s.Suspend() | s.BeginRun() | s.NoteProgram() | s.LabelPod():
            return None
        case s.DeployProgram() | s.ReturnToProgram() | s.WithdrawProgram():
            return None  # The outcome is an event.
        case _:
            assert_never(step)


def event(job: Doc, notice: Notice, count: int, now: float) -> Doc:
    """The object of an event of this StreamJob."""
    metadata = job["metadata"]
    text = f"{metadata['uid']} {notice.kind} {notice.reason} {notice.message}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name']}.{hashlib.sha256(text.encode()).hexdigest()[:16]}",
            "namespace": metadata["namespace"],
            "labels": {names.MANAGED: names.MANAGER},
        },
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": notice.kind,
        "reason": notice.reason,
        "message": notice.message[:MESSAGE_MAX],
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": COMPONENT,
        "firstTimestamp": stamp(now),
        "lastTimestamp": stamp(now),
        "count": count,
    }
