"""The steps of one pass, in order: the actions of `decide`, and steps that only a cluster needs. Pure.

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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never, get_args

from ferry_operator.control import decide as d
from ferry_operator.control.restarts import meaning
from ferry_operator.job.size import Size
from ferry_operator.kube.api import names
from ferry_operator.kube.api.notes import AskedCheckpoint, pending
from ferry_operator.kube.observe import placeholders
from ferry_operator.kube.observe.asked import of_another_size
from ferry_operator.kube.observe.facts import Pod
from ferry_operator.kube.observe.lifecycle import end_message
from ferry_operator.kube.observe.older_notes import OlderNotes
from ferry_operator.kube.observe.standstill import held_up, where
from ferry_operator.kube.observe.suspension import Stage, at_rest, last_words, never_began
from ferry_operator.kube.observe.view import JobView

CRASHES_MAX = 3
"""Crashes of a driver under a new spec after which the spec is refused."""


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


def plan(view: JobView, token: int) -> list[Step]:
    """The steps of this pass; none when all is as it should be."""
    seen = view.seen
    if (older := seen.older) is not None and not seen.deleting:
        return [MoveNotes(older)]
    if seen.paused and not seen.deleting:
        return []
    steps: list[Step] = [DropPod(pod, view.lost[pod.name]) for pod in seen.pods if pod.name in view.lost]
    here = [pod for pod in seen.pods if pod.name not in view.lost and pod.deleting is None]
    if seen.deleting:
        return steps + [DeletePod(pod, "the job is being deleted") for pod in here]
    claims = [TakeOwnership(pod) for pod in here if pod.number(names.TOKEN) != token and pod.ended is None]
    if claims:
        return steps + list(claims)  # pods change by it: what is decided next has to know the new version
    if view.stage is Stage.OVER:
        return steps + ([DeletePod(pod, "the job is suspended") for pod in here] if seen.pods else [BeginRun()])
    steps += [DeletePod(pod, why) for pod, why in placeholders.over(view, here)]
    if view.stage is Stage.SUSPENDED or view.observed is None or view.revisions is None:
        return steps
    if view.stage is Stage.GOING:
        return steps + list(_suspend(view))
    if view.lifecycle.end == "Finished":
        return steps + [DeletePod(pod, "the job has finished") for pod in here if pod.worker is not None]
    refused = _refusal(view)
    if refused is not None:
        return [*steps, refused]
    actions = list(_actions(view))
    steps += _books(view, actions)
    steps += actions
    steps += _replace_workers(view)
    # Not for a spec that may be refused: the last good one comes back with what was asked of it.
    if view.effective.newest and view.effective.good and (forgotten := of_another_size(seen.job)):
        steps.append(ForgetAsked(forgotten))
    if view.advice is not None and view.advice.acts:
        steps.append(Rescale(view.advice.target, view.advice.report.message))
    answered = seen.memory.answered
    wanted = pending(seen.annotations, answered.id if answered is not None else None)
    if wanted is not None and seen.status is not None:
        steps.append(AskCheckpoint(wanted))
    return steps


def _suspend(view: JobView) -> Iterator[Step]:
    """Keep the pods, and make them again, until the driver has ended with its last checkpoint."""
    driver = view.seen.driver
    if driver is not None and at_rest(driver):
        yield EndRun(view.effective.began_from, last_words(driver))
        return
    if driver is not None and never_began(driver, view.seen.last_epoch):
        # Its driver goes last: without one, another one is made.
        others = [pod for pod in view.seen.pods if pod is not driver]
        for pod in [pod for pod in others if pod.deleting is None] if others else [driver]:
            yield DeletePod(pod, "the job is suspended, and never began")
        return
    kept = [one for one in _actions(view) if not isinstance(one, d.StopWorker | d.SetInstances)]
    yield from _books(view, kept, keep=False)
    yield from kept
    if driver is not None and view.hangs is not None:
        yield EndDriver(driver, view.hangs)
    elif driver is not None and view.seen.status is not None and names.SUSPENDING not in driver.annotations:
        yield Suspend(driver)


def _books(view: JobView, actions: Sequence[d.Action], keep: bool = True) -> Iterator[Step]:
    seen, effective, revisions, driver = view.seen, view.effective, view.revisions, view.seen.driver
    assert revisions is not None and effective.job is not None and view.observed is not None
    noted = driver.annotations.get(names.SETTINGS) if driver is not None else None
    for action in actions:
        if isinstance(action, d.StartDriver) or (isinstance(action, d.StartWorker) and noted != revisions.settings):
            yield WriteSettings(revisions.settings)
            break
    if not seen.budget:
        yield MakeBudget()
    if keep and not effective.good and proven(view):
        yield KeepSpec()


def _actions(view: JobView) -> Iterator[d.Action]:
    """The actions of `decide`, without starts of pods whose predecessor still ends, or of workers of a failed job."""
    assert view.observed is not None
    ending = {pod.worker for pod in view.seen.workers if pod.deleting is not None and pod.name not in view.lost}
    for action in d.decide(view.observed):
        match action:
            case d.StartWorker(index, _) if index in ending or index in view.resting or view.lifecycle.end == "Failed":
                continue
            case d.StopWorker(index) if index in ending or index not in {pod.worker for pod in view.seen.workers}:
                continue
            case _:
                yield action


def _replace_workers(view: JobView) -> Iterator[Step]:
    assert view.observed is not None and view.revisions is not None
    rolling, driver = view.rolling, view.seen.driver
    here = [pod for pod in view.seen.workers if pod.name not in view.lost and pod.deleting is None]
    pods = {pod.worker: pod for pod in here if pod.ended is None}
    empty = d.empty(view.observed)
    for k in rolling.remade:
        yield DeletePod(pods[k], "its pod is out of date and never ran")
    for k in rolling.leaving:
        if k in pods and k in empty:
            yield DeletePod(pods[k], f"it is empty and leaves node {pods[k].node}")
    if rolling.without_surge is not None:
        yield NoteWithoutSurge(pods[rolling.without_surge])
    if driver is not None and view.lifecycle.running and driver.name not in view.lost:
        old = [k for k, pod in pods.items() if pod.annotations.get(names.REVISION) != view.revisions.worker]
        if view.hangs is not None:
            yield EndDriver(driver, view.hangs)
        elif driver.annotations.get(names.REVISION) != view.revisions.driver and not (old and view.seen.status):
            placeholder = None if view.in_place.driver else placeholders.placeholder(view)
            if view.in_place.driver or (placeholder is not None and placeholders.has_place(placeholder)):
                yield EndDriver(driver, "its pod is out of date")
            elif placeholder is None:
                yield MakePlaceholder()


def _refusal(view: JobView) -> Refuse | None:
    """The refusal of a new spec that cannot run, while there is a last good one."""
    effective, mine, seen = view.effective, view.revisions, view.seen
    if mine is None or effective.fallback is None or effective.fallback.both == mine.both:
        return None
    driver = seen.driver
    if driver is not None and driver.annotations.get(names.REVISION) == mine.driver != effective.fallback.driver:
        ended = driver.ended
        if ended is not None and names.REPLACE not in driver.annotations:
            crashes = driver.number(names.FAILURES) + 1 if ended.code else 0
            if meaning(ended.code) in ("refused", "halted") or crashes >= CRASHES_MAX:
                return Refuse(mine.both, end_message(driver))
    assert effective.job is not None
    deadline = effective.job.spec.failure.progress_deadline
    for pod in seen.pods:
        new, old = (
            (mine.worker, effective.fallback.worker)
            if pod.worker is not None
            else (mine.driver, effective.fallback.driver)
        )
        in_place = view.in_place.driver if pod.worker is None else view.in_place.worker
        if pod.annotations.get(names.REVISION) == new != old:
            hopeless = held_up(pod, seen.now, deadline.seconds, in_place)
            if hopeless is not None:
                return Refuse(mine.both, hopeless.message)
    if view.standing >= deadline.seconds:
        text = f"no progress for {deadline}, and no epoch finished: {where(view)}"
        return Refuse(mine.both, text)
    return None


def proven(view: JobView) -> bool:
    """An epoch was finished by the driver and the workers of the spec in force; there is none to prove what started none."""
    seen, mine, driver, status = view.seen, view.revisions, view.seen.driver, view.seen.status
    if driver is None or mine is None or status is None or not ready(view):
        return False
    worker = [pod.annotations.get(names.REVISION) == mine.worker for pod in seen.workers]
    if driver.annotations.get(names.REVISION) != mine.driver or not all(worker):
        return False
    if view.effective.fallback is not None and view.effective.fallback.both == mine.both:
        return True
    began = status.progress.began if status.progress.began is not None else driver.number(names.EPOCH, -1)
    return status.epoch > max([began, *(pod.number(names.EPOCH, -1) for pod in seen.workers)])


def ready(view: JobView) -> bool:
    """The driver answers, has recovered, and every virtual node is led by an instance that obeys it."""
    status = view.seen.status
    if status is None or status.phase in ("journal", "ask", "stopped") or not status.groups or status.finished:
        return False
    alive = frozenset(status.alive)
    return all(in_sync and in_sync[0] in alive for in_sync, _ in status.groups)


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
