"""The steps of a pass: the actions of `decide`, and steps that only a cluster needs. Values only.

| step | when |
|---|---|
| MoveNotes | an older release looked after the job: its notes go from annotations into the status; the rest waits for it |
| TakeOwnership | another operator took a pod over last: from then on that one's deletions miss; the rest waits for it |
| DropPod | a pod will not come back (`observe`) |
| DeletePod | a worker that leaves its pod is empty, an outdated pod never ran, or the job is over |
| Refuse | the driver, or a worker, cannot run under a new spec: the last good one is in force from the next pass |
| KeepSpec | an epoch was finished under a spec that is not recorded as good |
| WriteSettings | a pod is about to be made, and run.json is not what it should read: never under those that run |
| MakeBudget | there is no PodDisruptionBudget: nobody else may empty a node by force |
| EndDriver | it hangs; or its pod is out of date, no worker's is, and the next one has a place |
| MakePlaceholder | the next driver asks for more than the one before: a pod that does nothing looks for its place |
| AskCheckpoint | somebody asked for a checkpoint, and the driver was not told yet |
| Suspend | the job is to be suspended, and its driver does not know it yet: it takes a last checkpoint, and ends |
| EndRun | its last checkpoint is complete: the pods are no longer needed |
| BeginRun | the pods of such a run are gone: from then on the job is at its next run, which begins when it is resumed |
| ForgetAsked | the job has got another size: a worker that is gone is not drained any more, and a plan is for one size |
| Rescale | the autoscaler wants another size: the spec gets it, as from a user |
| NoteWithoutSurge | a worker is replaced without a surge worker, for lack of room |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never, get_args

from ferry_operator.control import decide as d
from ferry_operator.job.size import Size
from ferry_operator.kube.api import names
from ferry_operator.kube.api.notes import AskedCheckpoint
from ferry_operator.kube.observe.facts import Pod
from ferry_operator.kube.observe.older_notes import OlderNotes


@dataclass(frozen=True, slots=True)
class MoveNotes:
    """Move the notes of an operator of an older release from annotations into the status."""

    notes: OlderNotes


@dataclass(frozen=True, slots=True)
class TakeOwnership:
    """Write our token on a pod."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class DropPod:
    """Remove the object of a pod at once."""

    pod: Pod
    why: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Keep why the newest spec cannot run."""

    revision: str
    message: str


@dataclass(frozen=True, slots=True)
class KeepSpec:
    """Keep the spec in force as good."""


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """Put run.json in place."""

    fingerprint: str


@dataclass(frozen=True, slots=True)
class MakeBudget:
    """Make the PodDisruptionBudget."""


@dataclass(frozen=True, slots=True)
class EndDriver:
    """End the driver so that a new one takes over."""

    pod: Pod
    why: str


@dataclass(frozen=True, slots=True)
class MakePlaceholder:
    """Make the pod that looks for a place for the next driver."""


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod that holds no state; the next pass decides whether it is made again."""

    pod: Pod
    why: str


@dataclass(frozen=True, slots=True)
class NoteWithoutSurge:
    """Note on the pod of a worker that there is no surge worker for it."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class AskCheckpoint:
    """Ask the driver for a checkpoint, and note its answer."""

    request: AskedCheckpoint


@dataclass(frozen=True, slots=True)
class Suspend:
    """Ask the driver for a last checkpoint, and to end; and note on its pod that it was, for another request begins anew."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class EndRun:
    """Keep that the run is over."""

    before: str | None
    """`spec.restoreFrom` as it was when it began"""
    message: str


@dataclass(frozen=True, slots=True)
class BeginRun:
    """Forget a run that is over, and keep that the job is at its next run."""


@dataclass(frozen=True, slots=True)
class ForgetAsked:
    """Write these annotations of the job, unless a user has changed it meanwhile."""

    notes: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Rescale:
    """Write the workers and their instances into the spec, unless a user has changed it meanwhile."""

    size: Size
    message: str


Note = (
    MoveNotes
    | TakeOwnership
    | KeepSpec
    | NoteWithoutSurge
    | MakeBudget
    | WriteSettings
    | AskCheckpoint
    | Suspend
    | BeginRun
)

Step = d.Action | Note | DropPod | Refuse | EndDriver | MakePlaceholder | DeletePod | EndRun | ForgetAsked | Rescale

QUIET = get_args(Note)
"""Book-keeping, without a line in the status and an event."""


def describe(step: Step) -> str:
    """A step in words, for status and events."""
    match step:
        case d.StartWorker(index, instances):
            return f"start worker {index}" + (f" with {instances} instances" if instances > 1 else "")
        case d.StopWorker(index):
            return f"stop worker {index}, on which nothing is"
        case d.SetInstances(index, instances):
            return f"worker {index}: {instances} instances"
        case d.StartDriver():
            return "start the driver"
        case d.SubmitDesired(plan, _, basis, why):
            used = dict.fromkeys(i for placement in plan.placements for i in placement)
            over = f"{len(plan.placements)} virtual nodes over {len(used)} of {len(basis.usable)} instances"
            cut = f", in {len(plan.steps)} steps" if plan.steps else ""
            return f"plan {plan.number}: {over}{cut}{f', {why}' if why else ''}"
        case d.LimitCopies(bandwidth):
            return f"copies may use {f'{bandwidth} bytes a second' if bandwidth else 'what they can'}"
        case DropPod(pod, why) | DeletePod(pod, why) | EndDriver(pod, why):
            return f"{'end' if isinstance(step, EndDriver) else 'remove'} {pod.name}: {why}"
        case MakePlaceholder():
            return "look for a node for the next driver"
        case Refuse(_, message):
            return f"refuse the new spec: {message}"
        case EndRun(_, message):
            return f"the pods go: {message}"
        case Rescale(size, _):
            return f"scale to {size} workers x instances"
        case ForgetAsked(notes):
            what = [word for one, word in ((names.PLAN, "a plan"), (names.DRAIN, "drained workers")) if one in notes]
            return f"the job has another size: forget {' and '.join(what)} of the one before"
        case Suspend(_):
            return "wait for the last checkpoint"
        case (
            MoveNotes()
            | TakeOwnership()
            | KeepSpec()
            | MakeBudget()
            | NoteWithoutSurge()
            | WriteSettings()
            | AskCheckpoint()
            | BeginRun()
        ):
            return type(step).__name__
        case _:
            assert_never(step)
