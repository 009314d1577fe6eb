"""The port of the commands to a running job, and its implementation for runs on this machine.

`Local` sends requests to the supervisor of a live run over HTTP; jobs on a cluster are in `cli.remote`. It decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
from rich.table import Table

from ferry.contract import bearer
from ferry.contract.certificates import client_context
from ferry.contract.errors import Fault, Refusal, SpecRefused, Unreachable
from ferry.contract.names import InstanceId
from ferry.contract.status import Status
from ferry_operator.control.plan_file import PlanFile, Present
from ferry_operator.job.models_handover import Handover
from ferry_operator.job.size import Size
from ferry_operator.local.registry import RegisteredRun, Registry
from ferry_operator.local.timeline.show import job_table

Record = dict[str, Any]

CANCELLED = "the plan is withdrawn: the job gets its previous size, with a new plan close to the present placement"

LOOK_SECONDS = 0.2
"""Time between two polls of an awaited state."""


class Shown(Protocol):
    """The object of `status` and `top`: a job, or all jobs of a namespace. Raises FerryError."""

    def describe(self) -> Record:
        """The present state, as values for programs."""

    def table(self, document: Record) -> Table:
        """The state as a table for users."""

    def ended(self, document: Record) -> bool:
        """Whether the state will not change any more."""

    def exists(self) -> bool:
        """Whether the object still exists; if not, an error of `describe` is no failure."""


@dataclass(frozen=True, slots=True)
class Local:
    """A run on this machine. A method that changes it returns once the change has begun, with a text that describes it."""

    entry: RegisteredRun
    registry: Registry

    def describe(self) -> Record:
        """The answer of `GET /job`."""
        return ask(self.entry, "GET", "/job")

    def table(self, document: Record) -> Table:
        """The state as a table for users."""
        return job_table(document)

    def ended(self, document: Record) -> bool:
        """False: a run answers until it ends, and then `describe` raises."""
        return False

    def exists(self) -> bool:
        """Whether the run is alive."""
        mine = self.entry.run, self.entry.pid
        return any((entry.run, entry.pid) == mine for entry in self.registry.entries())

    def scale(self, workers: int | None, instances: int | None) -> str:
        """Change the number of workers, or of instances per worker."""
        wanted = {"workers": workers, "instancesPerWorker": instances}
        ask(self.entry, "PATCH", "/spec", {name: value for name, value in wanted.items() if value is not None})
        text, replicas = "scaling; follow it with `ferry top`", self.describe()["spec"]["replicas"]
        if workers is None or workers > replicas:
            return text
        return f"{text}; state.replicas is {replicas}, and with workers={workers} there is room for {workers - 1}"

    def handover(self, wanted: Record) -> str:
        """Change the policy of later plans. `wanted`: fields of `spec.handover`."""
        ask(self.entry, "PATCH", "/spec", {"handover": wanted})
        return "applies to the next plan; a bandwidth applies from the next epoch"

    def balance(self, wanted: Record) -> str:
        """Change the policy of balancing. `wanted`: fields of `spec.balance`."""
        ask(self.entry, "PATCH", "/spec", {"balance": wanted})
        return "applies from the next look at the load"

    def move(self, vnodes: Sequence[int], instance: str, at_window: bool = False) -> str:
        """Move virtual nodes to an instance, and pin them there, in one plan. `at_window`: without state."""
        ask(self.entry, "POST", "/move", {"vnodes": list(vnodes), "instance": instance, "at_window": at_window})
        return f"{named(vnodes)} to {instance}" + (" when their windows have ended" if at_window else "")

    def led_by(self, instance: str) -> list[int]:
        """Virtual nodes that an instance leads. Raises Fault if they are not known."""
        if not (status := self.describe()["status"]):
            raise Fault(f"{self.entry.name}: its driver does not answer, so the leaders are not known")
        return [v for v, (in_sync, _) in enumerate(status["groups"]) if in_sync[0] == instance]

    def present(self) -> tuple[Present, Handover]:
        """The present state for a plan, and the policy of plans. Raises Fault while the driver does not answer."""
        job = self.describe()
        status = Status.from_wire(job["status"]) if job["status"] else None
        if status is None or not status.groups:
            raise Fault(f"{self.entry.name}: its driver does not answer, so the place of its state is not known")
        fields = job["spec"]
        size = Size.of(fields)
        return Present(
            job["job"],
            size,
            fields["replicas"],
            [in_sync for in_sync, _ in status.groups],
            status.load.vnodes,
            job["drains"],
            {int(v): InstanceId(i) for v, i in job["pins"].items()},
            {worker["index"]: worker["node"] for worker in job["workers"]},
            status.moves.costs,
        ), Handover.model_validate(fields["handover"], by_alias=True)

    def submit(self, plan: PlanFile) -> str:
        """Submit a plan."""
        ask(self.entry, "POST", "/plan", {"plan": plan.dump()})
        return f"{plan.words()}; follow it with `ferry plans {self.entry.name}`"

    def plans(self) -> list[Record]:
        """The plans of the job, a record of {plan, state, steps, what} each."""
        job = self.describe()
        rows, wire = list[Record](), job["status"]
        if wire and (status := Status.from_wire(wire)).desired:
            begun, of = status.moves.steps
            state = plan_state(status.moves.rolled_back, status.settled and begun >= of)
            text = status.moves.rolled_back or f"{len(status.groups)} virtual nodes"
            rows.append(plan_row(status.desired, state, (begun, of), text))
            if status.moves.prepared:
                rows.append(plan_row("next", "prepared", None, status.moves.prepared))
        if (plan := job["plan"]) is not None:
            why = plan["unfit"]
            rows.append(plan_row(plan["name"], "not followed" if why else "submitted", None, why or plan["words"]))
        return rows

    def cancel(self) -> str:
        """Withdraw the submitted plan."""
        ask(self.entry, "DELETE", "/plan")
        return CANCELLED

    def drain(self, worker: int) -> str:
        """Empty a worker."""
        ask(self.entry, "POST", "/drain", {"worker": worker})
        return f"worker {worker} is being emptied"

    def location(self) -> str | None:
        """The location of durable checkpoints; None: the job has none."""
        location: str | None = self.describe().get("checkpoints")
        return location

    def checkpoint(self, name: str | None, wait: float) -> Record:
        """Take a durable checkpoint, and wait until it is complete. Raises Fault if that takes too long."""
        began, number = time.time(), int(ask(self.entry, "POST", "/checkpoint", {"name": name})["number"])
        deadline = time.monotonic() + wait
        while True:
            wire = self.describe()["status"]
            status = Status.from_wire(wire) if wire else None
            last = status.checkpoint if status is not None else None
            if last is not None and (last.number or 0) >= number:
                return taken(number, last.number or 0, last.epoch, last.bytes, last.total_bytes)
            notices = [notice for notice in (status.notices if status is not None else ()) if notice.since >= began]
            if problem := next((notice.text for notice in notices if notice.reason.startswith("Checkpoint")), None):
                raise Fault(f"{self.entry.name}: checkpoint {number} is late: {problem}")
            if time.monotonic() > deadline:
                raise Fault(f"{self.entry.name}: checkpoint {number} is not complete after {wait:g} s")
            time.sleep(LOOK_SECONDS)

    def suspend(self) -> str:
        """End the run after a last durable checkpoint."""
        ask(self.entry, "POST", "/suspend", {})
        return "the run ends after a last checkpoint"


def plan_state(undone: str, over: bool) -> str:
    """The state of a plan that has begun."""
    return "rolled back" if undone else "over" if over else "under way"


def plan_row(plan: int | str, state: str, steps: tuple[int, int] | None, what: str) -> Record:
    """A plan as a record of `plans`."""
    return {"plan": plan, "state": state, "steps": f"{steps[0]}/{steps[1]}" if steps and steps[1] else "", "what": what}


def named(vnodes: Sequence[int]) -> str:
    """A text with the moving virtual nodes."""
    text = f"virtual node {vnodes[0]} moves" if len(vnodes) == 1 else f"{len(vnodes)} virtual nodes move"
    return text + (f" ({', '.join(map(str, vnodes))})" if 1 < len(vnodes) <= 16 else "")


def taken(asked: int, number: int, epoch: int, written: int, total: int) -> Record:
    """The record of a complete checkpoint. `number`: the requested checkpoint (`asked`), or a later checkpoint."""
    return {"asked": asked, "number": number, "epoch": epoch, "bytes": written, "totalBytes": total}


def ask(entry: RegisteredRun, method: str, path: str, document: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send a request to a supervisor. Raises Refusal with its reason, SpecRefused, or Unreachable."""
    headers = bearer.headers(entry.token)
    trusted = client_context(entry.authority.encode()) if entry.authority is not None else True
    try:
        answer = httpx.request(
            method, entry.url + path, json=document, headers=headers, timeout=30.0, trust_env=False, verify=trusted
        )
    except httpx.HTTPError as error:
        raise Unreachable(f"{entry.name}: its supervisor (process {entry.pid}) does not answer: {error}") from None
    if answer.status_code == 409:
        raise Refusal(f"{entry.name}: {answer.json()['reason']}")
    if answer.status_code == 422:
        raise SpecRefused(f"{entry.name}: the request was not understood: {answer.text}")
    if not answer.is_success:
        raise Unreachable(f"{entry.name}: {answer.status_code} {answer.text}")
    body: dict[str, Any] = answer.json()
    return body
