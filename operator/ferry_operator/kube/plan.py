"""The ordered steps (`steps`) of one reconcile: the actions of `decide`, and steps that only a cluster needs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ferry_operator.control import decide as d
from ferry_operator.control.restarts import meaning
from ferry_operator.job.status import PodDefaults, RollNote
from ferry_operator.kube import steps as s
from ferry_operator.kube.api import names
from ferry_operator.kube.api.checkpoint_request import pending
from ferry_operator.kube.observe import evictions, overruled, placeholders
from ferry_operator.kube.observe.annotations import stale_annotations
from ferry_operator.kube.observe.expiry import expires_at
from ferry_operator.kube.observe.facts import Pod
from ferry_operator.kube.observe.lifecycle import end_message
from ferry_operator.kube.observe.program import IN_FORCE, ends, is_answered, is_obsolete, kept, under_way
from ferry_operator.kube.observe.progress_deadline import blocking_problem, stuck_at
from ferry_operator.kube.observe.readiness import proven, ready
from ferry_operator.kube.observe.suspension import Stage, has_suspended, last_words, never_began
from ferry_operator.kube.observe.turns import note_of
from ferry_operator.kube.observe.view import JobView

CRASHES_MAX = 3
"""After this number of crashes of the driver under a new spec, the operator refuses the spec."""


def plan(view: JobView, token: int, turn: tuple[PodDefaults, RollNote | None] | None = None) -> list[s.Step]:
    """The steps of this reconcile; empty when the cluster already matches the spec. `turn`: a note about it to record."""
    seen = view.seen
    if seen.paused and not seen.deleting:
        return []
    steps: list[s.Step] = [s.ForceDeletePod(pod, view.lost[pod.name]) for pod in seen.pods if pod.name in view.lost]
    here = [pod for pod in seen.pods if pod.name not in view.lost and pod.deleting is None]
    if seen.deleting:
        return steps + [s.DeletePod(pod, "the job is being deleted") for pod in here]
    claims = [s.TakeOwnership(pod) for pod in here if pod.number(names.TOKEN) != token and pod.ended is None]
    if claims:
        return steps + list(
            claims
        )  # a patch changes the version of a pod: the next reconcile decides with the new versions
    if view.stage is Stage.OVER:
        return steps + ([s.DeletePod(pod, "its run has ended") for pod in here] if seen.pods else [s.BeginRun()])
    if view.effective.ends_run:
        return [*steps, s.EndRun(view.effective.began_from, f"the run ends without its key, by {names.ACCEPT_KEY}")]
    steps += [s.DeletePod(pod, why) for pod, why in placeholders.unneeded(view, here)]
    if view.stage is Stage.SUSPENDED or view.observed is None or view.revisions is None:
        return steps
    note = turn or note_of(view)
    if note is not None and view.lifecycle.end != "Finished":
        steps.append(s.RecordDefaults(*note))
    if view.stage is Stage.GOING:
        return steps + list(_suspend(view))
    expires = expires_at(view)
    if expires is not None and seen.now >= expires:
        return [*steps, s.DeleteJob("its time after the end is over")]
    if view.lifecycle.end == "Finished":
        # The pod of a driver stays for its log, unless an injected container, which never ends, holds the pod's resources.
        return steps + [
            s.DeletePod(pod, "the job has finished")
            for pod in here
            if pod.worker is not None or (pod.ended is not None and pod.phase == "Running")
        ]
    refused = _refusal(view)
    if refused is not None:
        return [*steps, refused]
    if view.members.record:
        steps.append(s.RecordMembers(view.members.numbers))
    actions = [one for one in _actions(view) if not isinstance(one, d.StartDriver) or _can_begin(view)]
    steps += _bookkeeping(view, actions)
    steps += actions
    steps += _replace_workers(view)
    # Not under a spec that may still be refused: the last good spec comes back with its annotations.
    if view.effective.newest and view.effective.good and view.members.chosen:
        if stale := stale_annotations(seen.job, view.members.gaps):
            steps.append(s.RemoveAnnotations(stale))
    if view.advice is not None and view.effective.job is not None:
        kept, spec = seen.memory.scaling, view.effective.job.spec
        if view.effective.newest and (noted := overruled.noticed(kept, spec, seen.job["metadata"], seen.now)) != kept:
            steps.append(s.NoteReversal(noted))
    if view.advice is not None and view.advice.acts:
        steps.append(s.Rescale(view.advice.target, view.advice.report.message))
    steps += _deploy(view)
    steps += _label(view, here)
    answered = seen.memory.answered
    wanted = pending(seen.annotations, answered.id if answered is not None else None)
    if wanted is not None and seen.status is not None:
        steps.append(s.RequestCheckpoint(wanted))
    return steps


def _suspend(view: JobView) -> Iterator[s.Step]:
    """Keep the pods, and replace lost ones, until the driver has ended with its last checkpoint."""
    driver = view.seen.driver
    if driver is not None and has_suspended(driver):
        yield s.EndRun(view.effective.began_from, last_words(driver))
        return
    if driver is not None and never_began(driver, view.seen.last_epoch):
        # The driver goes last: while other pods are there, `decide` would start a missing driver again.
        others = [pod for pod in view.seen.pods if pod is not driver]
        for pod in [pod for pod in others if pod.deleting is None] if others else [driver]:
            yield s.DeletePod(pod, "the job is suspended, and its run never began")
        return
    kept = [action for action in _actions(view) if not isinstance(action, d.StopWorker | d.SetInstances)]
    yield from _bookkeeping(view, kept, keep=False)
    yield from kept
    if driver is not None and view.hangs is not None:
        yield s.ReplaceDriver(driver, view.hangs)
    elif driver is not None and view.seen.status is not None and names.SUSPENDING not in driver.annotations:
        yield s.Suspend(driver)


def _bookkeeping(view: JobView, actions: Sequence[d.Action], keep: bool = True) -> Iterator[s.Step]:
    effective, revisions, driver = view.effective, view.revisions, view.seen.driver
    assert revisions is not None and effective.job is not None and view.observed is not None
    noted = driver.annotations.get(names.SETTINGS) if driver is not None else None
    for action in actions:
        if isinstance(action, d.StartDriver) or (isinstance(action, d.StartWorker) and noted != revisions.settings):
            yield s.WriteSettings(revisions.settings)
            break
    if (minimum := evictions.minimum(view, actions)) is not None:
        yield s.WriteBudget(minimum)
    for pod, allowed in evictions.relabelled(view):
        yield s.AllowEviction(pod, allowed)
    if keep and not effective.good and proven(view):
        yield s.RecordGoodSpec()


def _actions(view: JobView) -> Iterator[d.Action]:
    """The actions of `decide`, except starts of pods whose predecessor still terminates, and workers of a failed job."""
    assert view.observed is not None
    ending = {pod.worker for pod in view.seen.workers if pod.deleting is not None and pod.name not in view.lost}
    for action in d.decide(view.observed):
        match action:
            case d.StartWorker(index, _) if (
                index in ending or index in view.cooling_down or view.lifecycle.end == "Failed"
            ):
                continue
            case d.StopWorker(index) if index in ending or index not in {pod.worker for pod in view.seen.workers}:
                continue
            case _:
                yield action


def _can_begin(view: JobView) -> bool:
    """Whether a driver has a program: of the spec, or of the journal, which exists from the first epoch on."""
    epoch = view.seen.last_epoch
    return view.seen.program is not None or (epoch is not None and epoch >= 0)


def _replace_workers(view: JobView) -> Iterator[s.Step]:
    assert view.observed is not None and view.revisions is not None
    rolling, driver = view.rolling, view.seen.driver
    here = [pod for pod in view.seen.workers if pod.name not in view.lost and pod.deleting is None]
    pods = {pod.worker: pod for pod in here if pod.ended is None}
    empty = d.empty(view.observed)
    for k in rolling.remade:
        yield s.DeletePod(pods[k], "its pod is outdated and never ran")
    for k in rolling.leaving:
        if k in pods and k in empty and not evictions.is_awaited(view, pods[k]):
            yield s.DeletePod(pods[k], f"it is empty and leaves node {pods[k].node}")
    if rolling.without_surge is not None:
        yield s.MarkWithoutSurge(pods[rolling.without_surge])
    if driver is not None and view.lifecycle.running and driver.name not in view.lost:
        old = [k for k, pod in pods.items() if pod.annotations.get(names.REVISION) != view.revisions.worker]
        if view.hangs is not None:
            yield s.ReplaceDriver(driver, view.hangs)
            return
        # A driver that is ready will answer again: old workers are replaced before it.
        waits = old and (view.seen.status is not None or driver.ready)
        outdated = driver.annotations.get(names.REVISION) != view.revisions.driver and not waits
        if outdated and view.in_place.driver:
            yield s.ReplaceDriver(driver, "its pod is outdated")
        elif outdated or view.driver_leaves:
            placeholder = placeholders.placeholder(view)
            if placeholder is None:
                yield s.CreatePlaceholder()
            elif placeholders.has_node(placeholder) and not evictions.is_awaited(view, driver):
                yield s.ReplaceDriver(driver, "its pod is outdated" if outdated else f"it leaves node {driver.node}")


def _deploy(view: JobView) -> Iterator[s.Step]:
    """Have the driver deploy the program of the spec. The driver that dies meanwhile goes on with the journal's program."""
    program, status, driver = view.seen.program, view.seen.status, view.seen.driver
    if program is None or status is None or driver is None or not view.lifecycle.running:
        return
    noted = driver.annotations.get(names.PROGRAM)
    if not status.programs:
        # An older release in the image of the job: a driver begins with the program of the spec.
        if noted == "":
            yield s.NoteProgram(driver, program.identity)
        elif noted not in (None, program.identity) and ready(view):
            yield s.ReplaceDriver(driver, "the program has changed, and the release in its image deploys no programs")
    elif ends(status):
        return
    elif (other := under_way(status)) is not None and is_obsolete(other, program, status.programs[0]):
        yield s.WithdrawProgram(other.number)
    elif is_answered(program, status):
        if noted != program.identity:
            yield s.NoteProgram(driver, program.identity)
    elif other is None and status.programs[0].state == IN_FORCE:
        before = kept(status)
        if before is None:
            yield s.DeployProgram(program)
        elif before.identity == program.identity and not program.how.rewind:
            yield s.ReturnToProgram(before.number)


def _label(view: JobView, here: Sequence[Pod]) -> Iterator[s.LabelPod]:
    """Label pods with what the driver says of its Spark; a driver of an older release says nothing."""
    status = view.seen.status
    application = None if status is None else names.spark_label(status.spark.application)
    if status is None or application is None:
        return
    executors = dict(status.spark.executors)
    for pod in here:
        if pod.role in names.SPARK_ROLES and pod.ended is None:
            wanted: dict[str, str | None] = {names.SPARK_APPLICATION: application}
            if pod.worker is not None:
                wanted[names.SPARK_EXECUTOR] = names.spark_label(str(executors.get(pod.worker, "")))
            if any(pod.labels.get(name) != value for name, value in wanted.items()):
                yield s.LabelPod(pod, wanted)


def _refusal(view: JobView) -> s.RefuseSpec | None:
    """The refusal of a new spec that cannot run, if there is a last good spec to return to."""
    effective, mine, seen = view.effective, view.revisions, view.seen
    if mine is None or effective.fallback is None or effective.fallback.all == mine.all:
        return None
    driver = seen.driver
    noted = driver.annotations.get(names.PROGRAM) if driver is not None else None
    began = mine.program != effective.fallback.program and seen.program is not None and noted == seen.program.identity
    if (
        driver is not None
        and driver.annotations.get(names.REVISION) == mine.driver
        and (began or mine.driver != effective.fallback.driver)
    ):
        ended = driver.ended
        if ended is not None and names.REPLACE not in driver.annotations:
            crashes = driver.number(names.FAILURES) + 1 if ended.code else 0
            if meaning(ended.code) in ("refused", "halted") or crashes >= CRASHES_MAX:
                return s.RefuseSpec(mine.all, end_message(driver))
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
            hopeless = blocking_problem(pod, seen.now, deadline.seconds, in_place)
            if hopeless is not None:
                return s.RefuseSpec(mine.all, hopeless.message)
    if view.without_progress >= deadline.seconds:
        text = f"no progress for {deadline}, and no finished epoch: {stuck_at(view)}"
        return s.RefuseSpec(mine.all, text)
    return None
