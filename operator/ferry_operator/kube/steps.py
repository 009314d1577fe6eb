"""The steps of a reconcile: the actions of `decide`, and steps that only a cluster needs. Values only.

| step | when |
|---|---|
| TakeOwnership | a pod has the token of another operator: a patch changes its version, and late deletions miss |
| ForceDeletePod | a pod will not come back (`observe`) |
| DeletePod | a leaving worker is empty, an outdated pod never ran, or the job has ended |
| RefuseSpec | the driver, or a worker, cannot run under a new spec: the last good spec is in force from the next reconcile |
| RecordGoodSpec | an epoch was finished under a spec that is not yet recorded as good |
| WriteSettings | a new pod is due, and run.json is outdated; never for running pods alone |
| WriteBudget | the PodDisruptionBudget, which blocks evictions of workers with state, is missing or has another number |
| AllowEviction | a worker is drained and empty, or no longer: a label excludes its pod from the budget (`evictions`) |
| ReplaceDriver | the driver hangs; or its pod is outdated, no worker pod is, and the next driver has room |
| CreatePlaceholder | the next driver requests more than the present one: an idle pod finds a node for it |
| DeployProgram | the driver has another program in force than the spec wants, and has not refused the wanted one |
| ReturnToProgram | the spec names the program that is kept beside the one in force |
| WithdrawProgram | the driver deploys a program that the spec does not want any more |
| NoteProgram | the driver has answered for the program of the spec: an edit after its failure starts the job again |
| LabelPod | the pod has not the labels of the application and the executor of Spark that the driver names |
| RequestCheckpoint | a user requests a checkpoint, and the driver does not know the request |
| Suspend | the job is to be suspended, and its driver does not know: it takes a last checkpoint, and ends |
| EndRun | the last checkpoint is complete, or the user gives up a run without its key: the run no longer needs its pods |
| BeginRun | the pods of an ended run are deleted: the job moves to its next run, which starts at a resume |
| RemoveAnnotations | the size of the job has changed: drains of missing workers, and a plan for another size, are obsolete |
| Rescale | the autoscaler wants another size: it writes the spec like a user |
| RecordDefaults | the job has a turn to roll to other defaults, another pod is replaced, or all are |
| NoteReversal | another writer has put back the size that the autoscaler wrote |
| RecordMembers | the size of the job has changed, and other numbers than the recorded ones are workers |
| MarkWithoutSurge | a worker is replaced without a surge worker, for lack of room |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never, get_args

from ferry_operator.control import decide as d
from ferry_operator.job.size import Size
from ferry_operator.job.status import PodDefaults, RollNote, ScalingMemory
from ferry_operator.kube.api import names
from ferry_operator.kube.api.checkpoint_request import CheckpointRequest
from ferry_operator.kube.observe.facts import Pod
from ferry_operator.kube.observe.program import WantedProgram


@dataclass(frozen=True, slots=True)
class TakeOwnership:
    """Write the token of this operator on a pod."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class ForceDeletePod:
    """Delete a pod without a grace period."""

    pod: Pod
    why: str


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the StreamJob, and all that belongs to it."""

    why: str


@dataclass(frozen=True, slots=True)
class RefuseSpec:
    """Record why the newest spec cannot run."""

    revision: str
    message: str


@dataclass(frozen=True, slots=True)
class RecordGoodSpec:
    """Record the spec in force as good."""


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """Write run.json into its Secret."""

    fingerprint: str


@dataclass(frozen=True, slots=True)
class WriteBudget:
    """Create or change the PodDisruptionBudget."""

    minimum: int
    """the number of protected pods"""


@dataclass(frozen=True, slots=True)
class AllowEviction:
    """Set or remove the label of a pod that may leave."""

    pod: Pod
    allowed: bool


@dataclass(frozen=True, slots=True)
class ReplaceDriver:
    """End the driver; the next reconcile starts a new one."""

    pod: Pod
    why: str


@dataclass(frozen=True, slots=True)
class CreatePlaceholder:
    """Create the idle pod that finds a node for the next driver."""


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod without state; the next reconcile decides about a new one."""

    pod: Pod
    why: str


@dataclass(frozen=True, slots=True)
class RecordDefaults:
    """Record the defaults in force, and the turn of the job."""

    defaults: PodDefaults
    roll: RollNote | None


@dataclass(frozen=True, slots=True)
class MarkWithoutSurge:
    """Annotate the pod of a worker that leaves without a surge worker."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class DeployProgram:
    """Ask the driver to deploy a program."""

    program: WantedProgram


@dataclass(frozen=True, slots=True)
class ReturnToProgram:
    """Go back to the program that is kept."""

    number: int


@dataclass(frozen=True, slots=True)
class WithdrawProgram:
    """Give up the deploy that the driver works at."""

    number: int


@dataclass(frozen=True, slots=True)
class NoteProgram:
    """Annotate the driver's pod with the program that it has answered for."""

    pod: Pod
    identity: str


@dataclass(frozen=True, slots=True)
class LabelPod:
    """Label a pod with the application and the executor of Spark that run in it; None: without this label."""

    pod: Pod
    labels: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class RequestCheckpoint:
    """Request a checkpoint of the driver, and record the answer."""

    request: CheckpointRequest


@dataclass(frozen=True, slots=True)
class Suspend:
    """Ask the driver for a last checkpoint and its end. An annotation of its pod prevents a second request, which would
    start again."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class EndRun:
    """Record the end of the run."""

    before: str | None
    """`spec.restoreFrom` at the start of the run"""
    message: str


@dataclass(frozen=True, slots=True)
class NoteReversal:
    """Record that another writer has put back a size of the autoscaler, or that the record is over."""

    memory: ScalingMemory | None


@dataclass(frozen=True, slots=True)
class RecordMembers:
    """Record the workers by number, before another step follows the choice."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BeginRun:
    """Delete the entries of an ended run, and record the number of the next run."""


@dataclass(frozen=True, slots=True)
class RemoveAnnotations:
    """Write these annotations of the job; nothing if a user has changed the job meanwhile."""

    annotations: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Rescale:
    """Write workers and instances into the spec; nothing if a user has changed the job meanwhile."""

    size: Size
    message: str


Bookkeeping = (
    TakeOwnership
    | RecordGoodSpec
    | NoteReversal
    | RecordMembers
    | MarkWithoutSurge
    | RecordDefaults
    | WriteBudget
    | AllowEviction
    | WriteSettings
    | NoteProgram
    | LabelPod
    | RequestCheckpoint
    | Suspend
    | BeginRun
)

Step = (
    d.Action
    | Bookkeeping
    | ForceDeletePod
    | RefuseSpec
    | ReplaceDriver
    | CreatePlaceholder
    | DeleteJob
    | DeletePod
    | EndRun
    | RemoveAnnotations
    | Rescale
    | DeployProgram
    | ReturnToProgram
    | WithdrawProgram
)

BOOKKEEPING = get_args(Bookkeeping)
"""Steps of bookkeeping: without a line in the status, and without an event."""


def describe(step: Step) -> str:
    """The text of a step, for status and events."""
    match step:
        case d.StartWorker(index, instances):
            return f"start worker {index}" + (f" with {instances} instances" if instances > 1 else "")
        case d.StopWorker(index):
            return f"stop worker {index}, which holds no state"
        case d.SetInstances(index, instances):
            return f"set worker {index} to {instances} instances"
        case d.StartDriver():
            return "start the driver"
        case d.SubmitDesired(plan, _, basis, why):
            used = dict.fromkeys(i for placement in plan.placements for i in placement)
            over = f"{len(plan.placements)} virtual nodes over {len(used)} of {len(basis.usable)} instances"
            cut = f", in {len(plan.steps)} steps" if plan.steps else ""
            return f"plan {plan.number}: {over}{cut}{f', {why}' if why else ''}"
        case d.LimitCopies(bandwidth):
            return f"limit copies to {bandwidth} bytes a second" if bandwidth else "lift the limit of copies"
        case ForceDeletePod(pod, why) | DeletePod(pod, why) | ReplaceDriver(pod, why):
            return f"{'end' if isinstance(step, ReplaceDriver) else 'remove'} {pod.name}: {why}"
        case DeleteJob(why):
            return f"delete the job: {why}"
        case CreatePlaceholder():
            return "look for a node for the next driver"
        case RefuseSpec(_, message):
            return f"refuse the new spec: {message}"
        case EndRun(_, message):
            return f"delete the pods: {message}"
        case Rescale(size, _):
            return f"scale to {size} workers x instances"
        case RemoveAnnotations(annotations):
            texts = ((names.PLAN, "the plan"), (names.DRAIN, "drains of workers"))
            obsolete = " and ".join(text for key, text in texts if key in annotations)
            return f"the size of the job has changed: remove {obsolete} for the old size"
        case DeployProgram(program):
            how = f" with {program.how.words}" if program.how.words else ""
            return f"deploy {program.file or program.module}{how}"
        case ReturnToProgram(number):
            return f"return to program {number}, which is kept"
        case WithdrawProgram(number):
            return f"withdraw program {number}"
        case Suspend(_):
            return "wait for the last checkpoint"
        case (
            TakeOwnership()
            | RecordGoodSpec()
            | WriteBudget()
            | AllowEviction()
            | NoteReversal()
            | RecordMembers()
            | MarkWithoutSurge()
            | RecordDefaults()
            | WriteSettings()
            | NoteProgram()
            | LabelPod()
            | RequestCheckpoint()
            | BeginRun()
        ):
            return type(step).__name__
        case _:
            assert_never(step)
