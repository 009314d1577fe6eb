"""A job on a cluster, and all jobs of a namespace, through the API server: the methods of `client.Local`.

The user may have no right to read events and pods. Then the output leaves them out and says so.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from rich.table import Table

from ferry.contract import journals
from ferry.contract.errors import Fault, Refusal
from ferry.contract.plans import Plan
from ferry.contract.routing import Table as RoutingTable
from ferry_operator.cli.client import CANCELLED, named, plan_row, plan_state, taken
from ferry_operator.cli.remote import intents, logs, proposal, tables
from ferry_operator.cli.remote.logs import WantedLogs
from ferry_operator.cli.remote.port import TRIES_MAX, UserApi, as_refusal, job_of
from ferry_operator.control.plan_file import PlanFile, Present
from ferry_operator.job.models_handover import Handover
from ferry_operator.job.status import CheckpointAnswer, JobMemory, JobStatus
from ferry_operator.kube.api import names
from ferry_operator.kube.api.checkpoint_request import CheckpointRequest
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import CONFLICT, FORBIDDEN, JOBS, JOURNALS, PODS, ApiError
from ferry_operator.kube.observe import facts
from ferry_operator.kube.observe.suspension import asked
from ferry_operator.local.registry import NoSuchJob

Record = dict[str, Any]
Answer = TypeVar("Answer")

LOOK_SECONDS = 0.5
"""Time between two polls of an awaited state."""

EVENTS_MAX = 10
"""Number of newest events that `status` shows."""


@dataclass(frozen=True, slots=True)
class RemoteJob:
    """One job of a namespace."""

    api: UserApi
    name: str

    def object(self) -> Doc:
        """The present StreamJob. Raises NoSuchJob."""
        return _refusing(lambda: job_of(self.api, self.name))

    def describe(self) -> Record:
        """The present state, as values for programs."""
        job, left_out = self.object(), list[str]()
        selector = f"{names.MANAGED}={names.MANAGER},{names.JOB}={self.name}"
        pods = _allowed(lambda: self.api.find(PODS, selector), "pods", left_out)
        events = _allowed(lambda: self.api.events(self.name), "events", left_out)
        return tables.described(self.api.context, job, pods, mine(events, job)[-EVENTS_MAX:], left_out)

    def table(self, document: Record) -> Table:
        """The state as a table for users."""
        return tables.job_table(document)

    def ended(self, document: Record) -> bool:
        """Whether the job has finished."""
        return bool(document["status"].get("phase") == "Finished")

    def exists(self) -> bool:
        """Whether the StreamJob exists."""
        try:
            self.object()
        except NoSuchJob:
            return False
        return True

    # ---- requests that read
    def tried(self, patch: Doc) -> Doc:
        """The StreamJob after a merge patch, by a dry run of the API server; the cluster stays unchanged."""
        try:
            return self.api.dry_run(JOBS, self.name, patch)
        except ApiError as error:
            if 400 <= error.status < 500:
                raise Refusal(f"the API server refuses it: {error}") from None
            raise

    def nodes(self) -> dict[int, str]:
        """The nodes by worker; empty if pods may not be read."""
        documents = _allowed(lambda: self.api.find(PODS, names.workers_selector(self.name)), "pods", [])
        pods = [facts.pod(document) for document in documents or []]
        return {pod.worker: pod.node for pod in pods if pod.worker is not None and pod.node is not None}

    def logs(
        self, worker: int | None, operator: bool, container: str | None, follow: bool, previous: bool, tail: int | None
    ) -> Iterator[bytes]:
        """Lines of the logs of the operator, of a worker, or else of the driver."""
        try:
            if operator:
                sources = logs.of_operator(self.api)
            elif worker is not None:
                sources = logs.of_worker(self.api, self.name, worker, container)
            else:
                sources = logs.of_driver(self.name)
            yield from logs.lines(self.api, sources, WantedLogs(follow, previous, tail))
        except ApiError as error:
            raise as_refusal(error) from None

    def routing(self) -> RoutingTable:
        """The routing table, with its plans, from the driver's journal."""
        job = self.object()
        name = journals.name(self.name, str(job["metadata"]["uid"]), JobMemory.of(job).run)
        packed = (_refusing(lambda: self.api.get(JOURNALS, name)).get("spec") or {}).get("table")
        if not packed:
            raise Fault(f"{self.name}: its driver has written no journal yet, so the place of its state is not known")
        return journals.unpacked(packed)

    def present(self) -> tuple[Present, Handover]:
        """The present state for a plan, without loads, and the policy of plans."""
        job = self.object()
        in_force = proposal.in_force(job)
        if in_force is None:
            raise Refusal("the spec of the job is refused: see `status`")
        groups = [group.in_sync for group in self.routing().groups]
        drained, size = intents.drains(job), intents.running_size(job)
        replicas, pins = in_force.spec.state.replicas, intents.pins(job)
        return Present(self.name, size, replicas, groups, (), drained, pins, self.nodes()), in_force.spec.handover

    def plans(self) -> list[Record]:
        """The plans of the job, a record of {plan, state, steps, what} each."""
        rows, job, table = list[Record](), self.object(), self.routing()
        if (plan := table.plan) is not None:
            of, moving = len(plan.steps), JobStatus.read(job.get("status")).moving
            state = plan_state(plan.undone, plan.reached >= of and not moving)
            text = plan.undone or f"{len(plan.placements)} virtual nodes"
            rows.append(plan_row(plan.number, state, (plan.reached, of), text))
        if (plan := table.prepared) is not None:
            rows.append(plan_row(plan.number, "prepared", (0, len(plan.steps)), _due(plan)))
        if (file := intents.submitted_plan(job)) is not None:
            same = file.size == intents.size_of(job)
            why = intents.unfit(job, file) or ("" if same else "the job has another size")
            rows.append(plan_row(file.name, "not followed" if why else "submitted", None, why or file.words()))
        return rows

    # ---- changes
    def submit(self, plan: PlanFile) -> str:
        """Submit a plan."""
        self.edit(lambda job: intents.submit(job, plan))
        return self._in_words(f"{plan.words()}; follow it with `plans {self.name}`")

    def cancel(self) -> str:
        """Withdraw the submitted plan."""
        self.edit(intents.cancel)
        return self._in_words(CANCELLED)

    def scale(self, workers: int | None, instances: int | None) -> str:
        """Change the number of workers, or of instances per worker.

        A change of only the workers uses the scale subresource, for users who have only the right to scale.
        """
        if instances is not None:
            wanted = {"workers": workers, "instancesPerWorker": instances}
            self._patch({"spec": {name: value for name, value in wanted.items() if value is not None}})
        else:
            self._patch({"spec": {"replicas": workers}}, "scale")
        self.edit(intents.resized)
        return self._in_words("scaling")

    def handover(self, wanted: dict[str, Any]) -> str:
        """Change the policy of later plans. `wanted`: fields of `spec.handover`."""
        self._patch({"spec": {"handover": wanted}})
        return self._in_words("applies to the next plan; a bandwidth applies from the next epoch")

    def balance(self, wanted: dict[str, Any]) -> str:
        """Change the policy of balancing. `wanted`: fields of `spec.balance`."""
        self._patch({"spec": {"balance": wanted}})
        return self._in_words("applies from the next look at the load")

    def move(self, vnodes: Sequence[int], instance: str, at_window: bool = False) -> str:
        """Move virtual nodes to an instance, and pin them there. `at_window`: without state."""
        self.edit(lambda job: intents.move(job, vnodes, instance, at_window))
        return self._in_words(f"{named(vnodes)} to {instance}, and stays there")

    def led_by(self, instance: str) -> list[int]:
        """Virtual nodes that an instance leads."""
        return [v for v, group in enumerate(self.routing().groups) if group.leader == instance]

    def unpin(self, vnode: int) -> str:
        """Undo `move`."""
        self.edit(lambda job: intents.unpin(job, vnode))
        return self._in_words(f"virtual node {vnode} is not pinned any more")

    def drain(self, worker: int) -> str:
        """Empty a worker."""
        self.edit(lambda job: intents.drain(job, worker))
        return self._in_words(f"worker {worker} is being emptied")

    def undrain(self, worker: int) -> str:
        """Undo `drain`."""
        self.edit(lambda job: intents.undrain(job, worker))
        return self._in_words(f"worker {worker} may hold state again")

    def pause(self) -> str:
        """Stop reconciling."""
        self.edit(lambda job: intents.pause(True))
        return "paused: epochs continue, and the operator changes nothing until `resume`"

    def resume(self, workers: int | None) -> str:
        """Undo `pause` and `suspend`."""
        suspended = asked(self.object())
        self.edit(lambda job: intents.resume(job, workers))
        return "the job continues from its latest checkpoint" if suspended else "the operator reconciles again"

    def suspend(self) -> str:
        """End all pods after a last checkpoint."""
        self.edit(intents.suspend)
        return self._in_words("its pods end after a last checkpoint, and its checkpoints stay")

    def restore(self, origin: str, sink: str | None, workers: int | None) -> str:
        """Resume a suspended job from a checkpoint."""
        self.edit(lambda job: intents.restore(job, origin, sink, workers))
        return self._in_words(f"the job continues from checkpoint {origin}")

    def location(self) -> str | None:
        """The location of durable checkpoints; None: the job has none."""
        return intents.checkpoint_location(self.object())

    def checkpoint(self, name: str | None, wait: float) -> Record:
        """Take a durable checkpoint, and wait until it is complete. Raises Fault if that takes too long."""
        request, deadline = CheckpointRequest(secrets.token_hex(8), name), time.monotonic() + wait
        self.edit(lambda job: intents.checkpoint(job, request))
        while True:
            job = self.object()
            answered = JobMemory.of(job).answered
            answer = answered if answered is not None and answered.id == request.id else CheckpointAnswer(id=request.id)
            if answer.refused is not None:
                raise Refusal(f"{self.name}: {answer.refused}")
            last = JobStatus.read(job.get("status")).checkpoint
            if answer.number is not None and last is not None and last.number >= answer.number:
                return taken(answer.number, last.number, last.epoch, last.bytes, last.total_bytes)
            if time.monotonic() > deadline:
                number = answer.number
                why = "the operator has not asked for it" if number is None else f"{number} is not complete"
                raise Fault(f"{self.name}: no checkpoint after {wait:g} s: {why}; see `status`")
            time.sleep(LOOK_SECONDS)

    def restart(self) -> str:
        """Restart the driver."""
        self.edit(intents.restart)
        return self._in_words("the driver is restarted")

    def edit(self, change: Callable[[Doc], Doc | None]) -> Doc:
        """Read, change and write the StreamJob; repeat after a conflict. Returns it as the API server has it then."""
        for attempt in range(1, TRIES_MAX + 1):
            job = self.object()
            patch = change(job)
            if patch is None:
                break
            metadata = {**patch.get("metadata", {}), "resourceVersion": job["metadata"]["resourceVersion"]}
            try:
                return self._patch({**patch, "metadata": metadata})
            except ApiError as error:
                if error.status != CONFLICT or attempt == TRIES_MAX:
                    raise
        return job

    def _patch(self, patch: Doc, subresource: str = "") -> Doc:
        return _refusing(lambda: self.api.patch(JOBS, self.name, patch, subresource))

    def _in_words(self, text: str) -> str:
        return f"{text}, once the job is not paused any more" if intents.paused(self.object()) else text


@dataclass(frozen=True, slots=True)
class Namespace:
    """All jobs of a namespace."""

    api: UserApi

    def describe(self) -> Record:
        """The state of all jobs, as values for programs."""
        jobs = _refusing(lambda: self.api.find(JOBS))
        described = [tables.described(self.api.context, job, None, None, []) for job in jobs]
        return {"context": self.api.context, "namespace": self.api.namespace, "jobs": described}

    def table(self, document: Record) -> Table:
        """The jobs as a table for users."""
        return tables.jobs_table(document)

    def ended(self, document: Record) -> bool:
        """False: a namespace may always change."""
        return False

    def exists(self) -> bool:
        """True: errors of a namespace are errors."""
        return True


def _due(plan: Plan) -> str:
    due = [f"epoch {plan.at_epoch}"] if plan.at_epoch else []
    due += [datetime.fromtimestamp(plan.at_time / 1000, UTC).isoformat()] if plan.at_time is not None else []
    return f"begins with {' and '.join(due) or 'the next epoch'}"


def mine(events: list[Doc] | None, job: Doc) -> list[Doc]:
    """The events of exactly this StreamJob, by time."""
    uid = job["metadata"].get("uid")
    own = [event for event in events or [] if (event.get("involvedObject") or {}).get("uid") == uid]
    return sorted(own, key=lambda event: (tables.time_of(event), event["metadata"]["name"]))


def _refusing(call: Callable[[], Answer]) -> Answer:
    try:
        return call()
    except ApiError as error:
        raise as_refusal(error) from None


def _allowed(call: Callable[[], list[Doc]], kind: str, left_out: list[str]) -> list[Doc] | None:
    try:
        return call()
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise as_refusal(error) from None
        left_out.append(f"{kind} may not be read: {error}")
        return None
