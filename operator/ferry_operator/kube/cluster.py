"""Executes the steps of a reconcile: idempotent calls of the API server and of the driver. It decides nothing.

A create of an object that exists, and a delete of a missing object, succeed. A delete names the uid of the observed pod,
and also its resourceVersion when state might move to the pod meanwhile: a late delete, or a delete by a deposed operator,
then deletes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, assert_never

from ferry.contract.addresses import netloc
from ferry.contract.catalogue import PROBATION_SECONDS, SLOWER
from ferry.contract.errors import Unreachable
from ferry.contract.settings import SETTINGS
from ferry_operator.control import decide as d
from ferry_operator.control.driver_client import DriverClient, DriverRefuses
from ferry_operator.job.models import StreamJob
from ferry_operator.job.status import MESSAGE_MAX, CheckpointAnswer, JobMemory, RefusedSpec
from ferry_operator.kube import steps as s
from ferry_operator.kube.api import names
from ferry_operator.kube.api.checkpoint_request import CheckpointRequest
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import (
    CONFLICT,
    JOBS,
    JOURNALS,
    NOT_FOUND,
    PODS,
    SECRETS,
    UNFIT,
    ApiError,
    Kind,
    tolerate,
)
from ferry_operator.kube.api.redis import Redis
from ferry_operator.kube.manifests import objects, parts, pods
from ferry_operator.kube.manifests.release import Installation, run_key, settings_of
from ferry_operator.kube.observe import effective_spec, overruled
from ferry_operator.kube.observe.effective_spec import Revisions
from ferry_operator.kube.observe.facts import Pod
from ferry_operator.kube.observe.program import WantedProgram
from ferry_operator.kube.observe.rolling import AVOIDED_MAX
from ferry_operator.kube.observe.seen import Seen
from ferry_operator.kube.store import changed
from ferry_operator.kube.writes import ObjectWrites, not_owned

YOUNG_SECONDS = 60.0
"""A worker pod that ends within this time after its creation counts as a failure: the next pod waits longer."""


_CRDS = "apply crds/{kind.plural}.{kind.group}.yaml (kubectl apply --server-side --force-conflicts)"


def driver_url(seen: Seen, job: StreamJob | None) -> str | None:
    """The URL of the driver of a job; None while the driver has no address."""
    if seen.driver is None or seen.driver.ip is None or job is None:
        return None
    scheme = seen.driver.scheme or ("http" if job.spec.security.tls == "off" else "https")
    return f"{scheme}://{netloc(seen.driver.ip, parts.control_port(job, seen.uid))}"


@dataclass(slots=True)
class KubeCluster(ObjectWrites):
    """Executes the steps of one reconcile of a job."""

    release: Installation
    driver_client: DriverClient
    token: int
    redis: Redis
    memory: JobMemory = field(init=False)
    """`status.memory` of the job, with the changes of this reconcile"""

    def __post_init__(self) -> None:
        """Begin with the observed `status.memory`."""
        self.memory = self.view.seen.memory

    def do(self, step: s.Step) -> bool:
        """Execute one step; False: the job has changed, nothing was done. Raises ApiError, DriverRefuses, Unreachable."""
        match step:
            case d.StartWorker(index, instances):
                self.start_worker(index, instances)
            case d.StopWorker(index):
                self._each_pod(index, lambda pod: self._delete(pod, exact=True))
            case d.SetInstances(index, instances):
                self._each_pod(index, lambda pod: self._annotate(pod, {names.INSTANCES: str(instances)}))
            case d.StartDriver():
                self.start_driver()
            case d.SubmitDesired():
                self._submit(step)
            case d.LimitCopies(bandwidth):
                self.driver_client.limit_copies(self._url("a limit of copies"), self._key(), bandwidth)
            case s.TakeOwnership(pod):
                self._annotate(pod, {names.TOKEN: str(self.token)}, exact=True)
            case s.ForceDeletePod(pod, _):
                self._delete(pod, grace=0)
            case s.DeletePod(pod, _):
                self._delete(pod, exact=True)
            case s.ReplaceDriver(pod, why):
                self._replace_driver(pod, why)
            case s.CreatePlaceholder():
                self._create_placeholder()
            case s.MarkWithoutSurge(pod):
                self._annotate(pod, {names.WITHOUT_SURGE: "true"})
            case s.WriteSettings(fingerprint):
                self._write_settings(fingerprint)
            case s.WriteBudget(minimum):
                self._write_budget(minimum)
            case s.AllowEviction(pod, allowed):
                self._change(pod, {"labels": {names.MAY_LEAVE: str(int(self.view.seen.now)) if allowed else None}})
            case s.DeleteJob():
                return self._delete_job()
            case s.RecordGoodSpec():
                generation = int(self.view.seen.job["metadata"].get("generation") or 0)
                good = effective_spec.last_good(self._job(), self.view.seen.uid, generation, self.release)
                self._write_memory(good=good, refused=None)
            case s.RefuseSpec(revision, message):
                self._write_memory(refused=RefusedSpec(revision=revision, why=message[:MESSAGE_MAX]))
            case s.RecordDefaults(defaults, roll):
                self._write_memory(defaults=defaults, roll=roll)
            case s.NoteReversal(scaling):
                self._write_memory(scaling=scaling)
            case s.RecordMembers(numbers):
                self._write_memory(members=list(numbers))
            case s.RemoveAnnotations(annotations):
                return self._change_job({"annotations": dict(annotations)}, {})
            case s.Rescale(size, _):
                return self._rescale(size.workers, size.instances)
            case s.DeployProgram(program):
                self._deploy(program)
            case s.ReturnToProgram(number):
                self._roll_back(f"to return to program {number}", {"to": number})
            case s.WithdrawProgram(number):
                self._roll_back(f"to withdraw program {number}", {"withdraw": number})
            case s.NoteProgram(pod, identity):
                self._annotate(pod, {names.PROGRAM: identity})
            case s.LabelPod(pod, labels):
                self._change(pod, {"labels": dict(labels)})
            case s.RequestCheckpoint(request):
                self._take_checkpoint(request)
            case s.Suspend(pod):
                self.driver_client.suspend(self._url("a suspend"), self._key())
                self._annotate(pod, {names.SUSPENDING: "true"})
            case s.EndRun(before, _):
                self._write_memory(over=True, before=before)
            case s.BeginRun():
                self._begin_run()
            case _:
                assert_never(step)
        return True

    # ---- pods
    def start_worker(self, index: int, instances: int) -> None:
        """Create the pod of a worker, after the deletion of a pod that has ended."""
        old = next((pod for pod in self.view.seen.workers if pod.worker == index), None)
        failures = 0
        if old is not None and old.ended is not None and old.name not in self.view.lost:
            failures = old.number(names.FAILURES) + 1 if old.ended.at - old.created < YOUNG_SECONDS else 0
            self._delete(old, grace=0)
        more = {names.INSTANCES: str(instances), names.REVISION: self._revisions().worker, **self._epoch()}
        self._create(PODS, self._pod_of_worker(index, {**self._common_annotations(failures), **more}))

    def start_driver(self) -> None:
        """Create the pod of the driver, after the deletion of a pod that has ended."""
        old, revisions = self.view.seen.driver, self._revisions()
        if old is not None and old.ended is not None and old.name not in self.view.lost:
            self._delete(old, grace=0)
        annotations = {
            **self._common_annotations(self.view.lifecycle.failures),
            names.REVISION: revisions.driver,
            names.SETTINGS: revisions.settings,
            names.PROGRAM: self._begins_with_program(),
            **self._epoch(),
        }
        self._create_journal()
        self._create(
            PODS, self._excluding_closed(pods.driver(self.view.seen.job, self._job(), self.release, annotations))
        )

    def _create_placeholder(self) -> None:
        annotations = {**self._common_annotations(0), names.REVISION: self._revisions().driver}
        document = pods.placeholder(
            self.view.seen.job, self._job(), self.release, self._revisions().driver, annotations
        )
        self._create(PODS, self._excluding_closed(document))

    def _excluding_closed(self, pod: Doc) -> Doc:
        return pods.excluding(pod, self.view.closed[:AVOIDED_MAX])

    def _replace_driver(self, pod: Pod, why: str) -> None:
        """Annotate the pod before the stop: otherwise the end of the driver would look like the end of the job."""
        self._annotate(pod, {names.REPLACE: why})
        url = driver_url(self.view.seen, self.view.effective.job)
        if url is not None and self.view.seen.status is not None:
            self.driver_client.stop(url, self._key())
        self._delete(pod)

    def _pod_of_worker(self, index: int, annotations: dict[str, str]) -> Doc:
        return self._excluding_closed(pods.worker(self.view.seen.job, self._job(), self.release, index, annotations))

    def _common_annotations(self, failures: int) -> dict[str, str]:
        return {
            names.TOKEN: str(self.token),
            names.FAILURES: str(failures),
            names.RUN: str(self.memory.run),
            names.KEY: str(self.memory.key),
            **({names.REDIS: "tls"} if self.release.redis_tls_port else {}),
        }

    def _epoch(self) -> dict[str, str]:
        known = self.view.seen.epoch
        return {names.EPOCH: str(known if known is not None else -1)}

    def _each_pod(self, index: int, act: Callable[[Pod], None]) -> None:
        for pod in self.view.seen.workers:
            if pod.worker == index:
                act(pod)

    # ---- settings, driver, memory
    def _write_settings(self, fingerprint: str) -> None:
        job, name = self.view.seen.job, names.run_secret(self.view.seen.name)
        program = self.view.seen.program
        text = program.text.packed if program is not None and program.text is not None else ""
        settings = settings_of(self._job(), self.memory, self.release, text, self.view.begins_with)
        document = objects.secret(job, settings, None if self.release.is_home else self.release.metrics_token)
        try:
            self.api.json_patch(SECRETS, name, objects.replaced_data(job, document))
        except ApiError as error:
            if error.status == UNFIT:
                raise not_owned(SECRETS, name) from None
            tolerate(error, NOT_FOUND)
            self.api.create(SECRETS, document)
        driver = self.view.seen.driver
        if driver is not None:
            self._annotate(driver, {names.SETTINGS: fingerprint})

    def _begins_with_program(self) -> str:
        """The identity of the program that a new driver begins with; empty: the journal's, which is not known here."""
        program, epoch = self.view.seen.program, self.view.seen.epoch
        known = self.view.begins_with == SETTINGS or (epoch if epoch is not None else -1) < 0
        return program.identity if program is not None and known else ""

    def _roll_back(self, what: str, document: Doc) -> None:
        self.driver_client.call("POST", f"{self._url('a withdrawal')}/rollback", self._key(), what, document)

    def _deploy(self, program: WantedProgram) -> None:
        """Ask the driver for a program. It answers later: in its status."""
        how = program.how
        document = {
            "module": program.module,
            "file": program.file,
            "arguments": program.arguments,
            "at": how.at_epoch or 0,
            "at_time": how.at_event_time,
            "shadow": how.shadow or 0,
            "keep": how.keep.seconds if how.keep is not None else 0.0,
            "probation": how.probation.seconds if how.probation is not None else PROBATION_SECONDS,
            "slower": how.slower if how.slower is not None else SLOWER,
            "rewind": bool(how.rewind),
            "attempt": program.attempt,
            "text": program.text.text if program.text is not None else "",
        }
        url = f"{self._url('a program')}/program"
        self.driver_client.call("PUT", url, self._key(), f"to deploy {program.file or program.module}", document)

    def _submit(self, action: d.SubmitDesired) -> None:
        self.driver_client.submit(self._url(f"plan {action.plan.number}"), self._key(), action, self.token)

    def _take_checkpoint(self, request: CheckpointRequest) -> None:
        try:
            number = self.driver_client.checkpoint(self._url("a checkpoint"), self._key(), request.name)
            answer = CheckpointAnswer(id=request.id, number=number)
        except DriverRefuses as error:
            answer = CheckpointAnswer(id=request.id, refused=str(error)[:MESSAGE_MAX])
        self._write_memory(answered=answer)

    def _begin_run(self) -> None:
        """Begin the next run. The Redis entries of the old run are useless: a failure to delete them is no error."""
        self.redis.forget(self.view.seen.run)
        try:
            self.api.delete(JOURNALS, objects.journal_name(self.view.seen.job, self.memory.run))
        except ApiError as error:
            tolerate(error, NOT_FOUND)
        # The last good spec binds immutable fields within its run only.
        key = self.release.newest_key
        self._write_memory(
            run=self.memory.run + 1, over=False, good=None, refused=None, roll=None, key=key, members=None
        )

    def _url(self, purpose: str) -> str:
        url = driver_url(self.view.seen, self.view.effective.job)
        if url is None:
            raise Unreachable(f"{purpose}: the driver has no address")
        return url

    def _key(self) -> str:
        return run_key(self.release, self.view.seen.uid)

    def _job(self) -> StreamJob:
        assert self.view.effective.job is not None
        return self.view.effective.job

    def _revisions(self) -> Revisions:
        assert self.view.revisions is not None
        return self.view.revisions

    def _rescale(self, workers: int, instances: int) -> bool:
        """Write the size into the observed spec. The operator becomes owner of a field by writing it, so it avoids fields
        that keep their value."""
        spec: Doc = {"workers": workers}
        if instances != self.view.seen.job["spec"].get("instancesPerWorker", 1):
            spec["instancesPerWorker"] = instances
        if not self._change_job({}, {"spec": spec}):
            return False
        self._write_memory(scaling=overruled.written(self.memory.scaling, self._job().spec, workers))
        return True

    def _delete_job(self) -> bool:
        """Delete the observed StreamJob. An edit since the observation, which may begin the job again, keeps it."""
        now = self.store.job(self.view.seen.name)
        if now is None or changed(self.view.seen.job, now):
            return False
        try:
            self.api.delete(JOBS, self.view.seen.name, self.view.seen.uid, now["metadata"]["resourceVersion"])
        except ApiError as error:
            tolerate(error, NOT_FOUND, CONFLICT)
            return False
        return True

    def _change_job(self, about: Doc, change: Doc) -> bool:
        """Patch the job unless its spec or its annotations have changed since the observation; False when they have."""
        seen = self.view.seen
        now, keys = self.store.job(seen.name), (names.PLAN, names.DRAIN)
        if now is None or now["metadata"].get("generation") != seen.job["metadata"].get("generation"):
            return False
        if any((now["metadata"].get("annotations") or {}).get(key) != seen.annotations.get(key) for key in keys):
            return False
        metadata = {"uid": seen.uid, "resourceVersion": now["metadata"]["resourceVersion"], **about}
        try:
            self.store.put(JOBS, self.api.patch(JOBS, seen.name, {"metadata": metadata, **change}))
        except ApiError as error:
            tolerate(error, NOT_FOUND, CONFLICT)
            return False
        return True

    def _create_journal(self) -> None:
        """Create the object for the journal of the driver. Its name contains the uid, so an existing one is of this job."""
        try:
            self.api.create(JOURNALS, objects.journal(self.view.seen.job, self.memory.run))
        except ApiError as error:
            if error.status == NOT_FOUND:
                raise _undefined(JOURNALS) from None
            if error.reason != "AlreadyExists":
                raise

    def _write_memory(self, **changed: Any) -> None:
        """Write these values into `status.memory`, beside the uid of the job: a later job may have the same name."""
        self.memory = self.memory.model_copy(update=changed)
        patched = self.api.patch(JOBS, self.view.seen.name, {"status": {"memory": self.memory.to_wire()}}, "status")
        self.store.put(JOBS, patched)
        check_kept(patched, self.memory)


def check_kept(job: Doc, memory: JobMemory) -> None:
    """Raises ApiError when the API server has pruned `status.memory`, or a key other than the first one."""
    kept = (job.get("status") or {}).get("memory")
    if kept is None or (kept.get("key") or 1) != memory.key:
        text = f"the definition of {JOBS.kind} is older than the operator, without status.memory: {_CRDS.format(kind=JOBS)}"
        raise ApiError(UNFIT, "Pruned", text)


def _undefined(kind: Kind) -> ApiError:
    return ApiError(
        NOT_FOUND,
        "Unknown",
        f"the cluster has no definition of {kind.kind}: {_CRDS.format(kind=kind)}",
    )
