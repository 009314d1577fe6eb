"""A job on a cluster, and all jobs of a namespace: `client.Local` and `client.Shown` behind the API server.

What is read beside the StreamJob itself (events, pods) may be forbidden to the user; then it is left out, and the
output says so.
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
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.notes import AskedCheckpoint
from ferry_operator.kube.api.port import CONFLICT, FORBIDDEN, JOBS, JOURNALS, PODS, ApiError
from ferry_operator.kube.observe import facts
from ferry_operator.kube.observe.suspension import asked
from ferry_operator.local.registry import NoSuchJob

Record = dict[str, Any]
Answer = TypeVar("Answer")

LOOK_SECONDS = 0.5
"""Between two looks at what is waited for."""

EVENTS_MAX = 10
"""Events that `status` shows, the newest."""


@dataclass(frozen=True, slots=True)
class RemoteJob:
    """One job of a namespace."""

    api: UserApi
    name: str

    def object(self) -> Doc:
        """The StreamJob as it is. Raises NoSuchJob."""
        return _refusing(lambda: job_of(self.api, self.name))

    def describe(self) -> Record:
        """See `client.Shown`."""
        job, left_out = self.object(), list[str]()
        selector = f"{names.MANAGED}={names.MANAGER},{names.JOB}={self.name}"
        pods = _allowed(lambda: self.api.find(PODS, selector), "pods", left_out)
        events = _allowed(lambda: self.api.events(self.name), "events", left_out)
        return tables.described(self.api.context, job, pods, mine(events, job)[-EVENTS_MAX:], left_out)

    def table(self, document: Record) -> Table:
        """See `client.Shown`."""
        return tables.job_table(document)

    def ended(self, document: Record) -> bool:
        """See `client.Shown`."""
        return bool(document["status"].get("phase") == "Finished")

    def there(self) -> bool:
        """See `client.Shown`."""
        try:
            self.object()
        except NoSuchJob:
            return False
        return True

    # ---- questions
    def tried(self, patch: Doc) -> Doc:
        """The StreamJob as it would be after a merge patch, as the API server says; nothing is changed."""
        try:
            return self.api.dry_run(JOBS, self.name, patch)
        except ApiError as error:
            if 400 <= error.status < 500:
                raise Refusal(f"the API server refuses it: {error}") from None
            raise

    def nodes(self) -> dict[int, str]:
        """Of the workers; none when pods may not be read."""
        found = _allowed(lambda: self.api.find(PODS, names.workers_selector(self.name)), "pods", [])
        pods = [facts.pod(one) for one in found or []]
        return {one.worker: one.node for one in pods if one.worker is not None and one.node is not None}

    def logs(
        self, worker: int | None, operator: bool, container: str | None, follow: bool, previous: bool, tail: int | None
    ) -> Iterator[bytes]:
        """Lines of the log of the operator, of a worker, or else of the driver."""
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
        """The routing table, with its plans, as the driver has journaled it."""
        job = self.object()
        name = journals.name(self.name, str(job["metadata"]["uid"]), JobMemory.of(job).run)
        packed = (_refusing(lambda: self.api.get(JOURNALS, name)).get("spec") or {}).get("table")
        if not packed:
            raise Fault(f"{self.name}: its driver has written no journal yet: where its state is is not known")
        return journals.unpacked(packed)

    def present(self) -> tuple[Present, Handover]:
        """See `client.Local`. What virtual nodes weigh is not known here."""
        job = self.object()
        one = proposal.in_force(job)
        if one is None:
            raise Refusal("its spec is refused: see `status`")
        groups = [group.in_sync for group in self.routing().groups]
        drained, size = intents.drains(job), intents.running_size(job)
        here = Present(self.name, size, one.spec.state.replicas, groups, (), drained, intents.pins(job), self.nodes())
        return here, one.spec.handover

    def plans(self) -> list[Record]:
        """See `client.Local`."""
        rows, job, table = list[Record](), self.object(), self.routing()
        if (plan := table.plan) is not None:
            of, moving = len(plan.steps), JobStatus.read(job.get("status")).moving
            state = plan_state(plan.undone, plan.reached >= of and not moving)
            what = plan.undone or f"{len(plan.placements)} virtual nodes"
            rows.append(plan_row(plan.number, state, (plan.reached, of), what))
        if (plan := table.prepared) is not None:
            rows.append(plan_row(plan.number, "prepared", (0, len(plan.steps)), _due(plan)))
        if (one := intents.handed_in(job)) is not None:
            same = one.size == intents.size_of(job)
            why = intents.unfit(job, one) or ("" if same else "the job has another size")
            rows.append(plan_row(one.name, "not followed" if why else "handed in", None, why or one.words()))
        return rows

    # ---- changes
    def submit(self, one: PlanFile) -> str:
        """See `client.Local`."""
        self._edit(lambda job: intents.submit(job, one))
        return self._in_words(f"{one.words()}; follow it with `plans {self.name}`")

    def cancel(self) -> str:
        """See `client.Local`."""
        self._edit(intents.cancel)
        return self._in_words(CANCELLED)

    def scale(self, workers: int | None, instances: int | None) -> str:
        """See `client.Local`. Workers alone are a change of the scale subresource, to which a user may have the right."""
        if instances is not None:
            wanted = {"workers": workers, "instancesPerWorker": instances}
            self._patch({"spec": {name: value for name, value in wanted.items() if value is not None}})
        else:
            self._patch({"spec": {"replicas": workers}}, "scale")
        self._edit(intents.resized)
        return self._in_words("scaling")

    def handover(self, wanted: dict[str, Any]) -> str:
        """See `client.Local`."""
        self._patch({"spec": {"handover": wanted}})
        return self._in_words("holds for the next plan; a bandwidth from the next epoch on")

    def balance(self, wanted: dict[str, Any]) -> str:
        """See `client.Local`."""
        self._patch({"spec": {"balance": wanted}})
        return self._in_words("the next look at the load follows it")

    def move(self, vnodes: Sequence[int], instance: str, at_window: bool = False) -> str:
        """See `client.Local`."""
        self._edit(lambda job: intents.move(job, vnodes, instance, at_window))
        return self._in_words(f"{named(vnodes)} to {instance}, and stays there")

    def led_by(self, instance: str) -> list[int]:
        """See `client.Local`."""
        return [v for v, group in enumerate(self.routing().groups) if group.leader == instance]

    def unpin(self, vnode: int) -> str:
        """Undo `move`."""
        self._edit(lambda job: intents.unpin(job, vnode))
        return self._in_words(f"virtual node {vnode} is not kept any more")

    def drain(self, worker: int) -> str:
        """See `client.Local`."""
        self._edit(lambda job: intents.drain(job, worker))
        return self._in_words(f"worker {worker} is being emptied")

    def undrain(self, worker: int) -> str:
        """Undo `drain`."""
        self._edit(lambda job: intents.undrain(job, worker))
        return self._in_words(f"worker {worker} may hold state again")

    def pause(self) -> str:
        """Have the operator change nothing."""
        self._edit(lambda job: intents.pause(True))
        return "paused: epochs go on, nothing is changed until `resume`"

    def resume(self, workers: int | None) -> str:
        """Undo `pause` and `suspend`."""
        rests = asked(self.object())
        self._edit(lambda job: intents.resume(job, workers))
        return "it goes on from its latest checkpoint" if rests else "changes are followed again"

    def suspend(self) -> str:
        """Let all pods go after a last checkpoint."""
        self._edit(intents.suspend)
        return self._in_words("its pods go after a last checkpoint, and its checkpoints stay")

    def restore(self, origin: str, sink: str | None, workers: int | None) -> str:
        """Have a suspended job go on from a checkpoint."""
        self._edit(lambda job: intents.restore(job, origin, sink, workers))
        return self._in_words(f"it goes on from checkpoint {origin}")

    def location(self) -> str | None:
        """See `client.Local`."""
        return intents.shelf(self.object())

    def checkpoint(self, name: str | None, wait: float) -> Record:
        """See `client.Local`."""
        request, deadline = AskedCheckpoint(secrets.token_hex(8), name), time.monotonic() + wait
        self._edit(lambda job: intents.checkpoint(job, request))
        while True:
            job = self.object()
            found = JobMemory.of(job).answered
            given = found if found is not None and found.id == request.id else CheckpointAnswer(id=request.id)
            if given.refused is not None:
                raise Refusal(f"{self.name}: {given.refused}")
            last = JobStatus.read(job.get("status")).checkpoint
            if given.number is not None and last is not None and last.number >= given.number:
                return taken(given.number, last.number, last.epoch, last.bytes, last.total_bytes)
            if time.monotonic() > deadline:
                what = (
                    "the operator has not asked for it" if given.number is None else f"{given.number} is not complete"
                )
                raise Fault(f"{self.name}: no checkpoint after {wait:g} s: {what}; `status` says what is wrong")
            time.sleep(LOOK_SECONDS)

    def restart(self) -> str:
        """Have the driver restarted."""
        self._edit(intents.restart)
        return self._in_words("the driver is restarted")

    def _edit(self, change: Callable[[Doc], Doc | None]) -> None:
        """Read, change, write; again when somebody else wrote in between."""
        for attempt in range(1, TRIES_MAX + 1):
            job = self.object()
            patch = change(job)
            if patch is None:
                return
            metadata = {**patch.get("metadata", {}), "resourceVersion": job["metadata"]["resourceVersion"]}
            try:
                self._patch({**patch, "metadata": metadata})
                return
            except ApiError as error:
                if error.status != CONFLICT or attempt == TRIES_MAX:
                    raise

    def _patch(self, patch: Doc, subresource: str = "") -> None:
        _refusing(lambda: self.api.patch(JOBS, self.name, patch, subresource))

    def _in_words(self, text: str) -> str:
        return f"{text}, once the job is not paused any more" if intents.paused(self.object()) else text


@dataclass(frozen=True, slots=True)
class Namespace:
    """All jobs of a namespace."""

    api: UserApi

    def describe(self) -> Record:
        """See `client.Shown`."""
        jobs = _refusing(lambda: self.api.find(JOBS))
        described = [tables.described(self.api.context, job, None, None, []) for job in jobs]
        return {"context": self.api.context, "namespace": self.api.namespace, "jobs": described}

    def table(self, document: Record) -> Table:
        """See `client.Shown`."""
        return tables.jobs_table(document)

    def ended(self, document: Record) -> bool:
        """See `client.Shown`."""
        return False

    def there(self) -> bool:
        """See `client.Shown`."""
        return True


def _due(plan: Plan) -> str:
    due = [f"epoch {plan.at_epoch}"] if plan.at_epoch else []
    due += [datetime.fromtimestamp(plan.at_time / 1000, UTC).isoformat()] if plan.at_time is not None else []
    return f"begins with {' and '.join(due) or 'the next epoch'}"


def mine(events: list[Doc] | None, job: Doc) -> list[Doc]:
    """Those of this very StreamJob, by their time."""
    uid = job["metadata"].get("uid")
    found = [one for one in events or [] if (one.get("involvedObject") or {}).get("uid") == uid]
    return sorted(found, key=lambda one: (tables.time_of(one), one["metadata"]["name"]))


def _refusing(call: Callable[[], Answer]) -> Answer:
    try:
        return call()
    except ApiError as error:
        raise as_refusal(error) from None


def _allowed(call: Callable[[], list[Doc]], what: str, left_out: list[str]) -> list[Doc] | None:
    try:
        return call()
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise as_refusal(error) from None
        left_out.append(f"{what} may not be read: {error}")
        return None
