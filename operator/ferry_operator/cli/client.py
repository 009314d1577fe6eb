"""A job that runs, as the commands of another terminal see it: the port, and the runs of this machine behind it.

`Local` asks the supervisor of a live run over HTTP; jobs on a cluster are in `cli.remote`. It decides nothing.
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

CANCELLED = "the plan is taken back: the job gets its size of before, and is placed anew, near to where all is now"

LOOK_SECONDS = 0.2
"""Between two looks at what is waited for."""


class Shown(Protocol):
    """What `status` and `top` show. Raises FerryError."""

    def describe(self) -> Record:
        """All that is known now, for programs."""

    def table(self, document: Record) -> Table:
        """The same for people."""

    def ended(self, document: Record) -> bool:
        """Whether there is nothing more to be seen."""

    def there(self) -> bool:
        """Whether it is still there: what went wrong, went wrong with it."""


@dataclass(frozen=True, slots=True)
class Local:
    """A run of this machine. What is asked for is under way when a method returns; it returns what that is, in words."""

    entry: RegisteredRun
    registry: Registry

    def describe(self) -> Record:
        """See `Shown`."""
        return ask(self.entry, "GET", "/job")

    def table(self, document: Record) -> Table:
        """See `Shown`."""
        return job_table(document)

    def ended(self, document: Record) -> bool:
        """See `Shown`: it answers until it is gone."""
        return False

    def there(self) -> bool:
        """See `Shown`."""
        return any((one.run, one.pid) == (self.entry.run, self.entry.pid) for one in self.registry.entries())

    def scale(self, workers: int | None, instances: int | None) -> str:
        """Other numbers of workers, or of instances of each."""
        wanted = {"workers": workers, "instancesPerWorker": instances}
        ask(self.entry, "PATCH", "/spec", {name: value for name, value in wanted.items() if value is not None})
        text, replicas = "scaling; follow it with `ferry top`", self.describe()["spec"]["replicas"]
        if workers is None or workers > replicas:
            return text
        return f"{text}; state.replicas is {replicas}, and with workers={workers} there is room for {workers - 1}"

    def handover(self, wanted: Record) -> str:
        """How plans are cut from now on; keys as in `spec.handover`."""
        ask(self.entry, "PATCH", "/spec", {"handover": wanted})
        return "holds for the next plan; a bandwidth from the next epoch on"

    def balance(self, wanted: Record) -> str:
        """Whether load moves by itself from now on; keys as in `spec.balance`."""
        ask(self.entry, "PATCH", "/spec", {"balance": wanted})
        return "the next look at the load follows it"

    def move(self, vnodes: Sequence[int], instance: str, at_window: bool = False) -> str:
        """Have virtual nodes led by an instance, and keep them there: one plan for all. `at_window`: without state."""
        ask(self.entry, "POST", "/move", {"vnodes": list(vnodes), "instance": instance, "at_window": at_window})
        return f"{named(vnodes)} to {instance}" + (" when their windows have ended" if at_window else "")

    def led_by(self, instance: str) -> list[int]:
        """Virtual nodes that an instance leads. Raises Fault where they are not known."""
        if not (status := self.describe()["status"]):
            raise Fault(f"{self.entry.name}: its driver does not answer: who leads what is not known")
        return [v for v, (in_sync, _) in enumerate(status["groups"]) if in_sync[0] == instance]

    def present(self) -> tuple[Present, Handover]:
        """The job as a plan begins with it, and how its plans are cut. Raises Fault while its driver does not answer."""
        found = self.describe()
        status = Status.from_wire(found["status"]) if found["status"] else None
        if status is None or not status.groups:
            raise Fault(f"{self.entry.name}: its driver does not answer: where its state is is not known")
        one = found["spec"]
        size = Size.of(one)
        return Present(
            found["job"],
            size,
            one["replicas"],
            [in_sync for in_sync, _ in status.groups],
            status.load.vnodes,
            found["drains"],
            {int(v): InstanceId(i) for v, i in found["pins"].items()},
            {worker["index"]: worker["node"] for worker in found["workers"]},
            status.moves.costs,
        ), Handover.model_validate(one["handover"], by_alias=True)

    def submit(self, one: PlanFile) -> str:
        """Hand in a plan."""
        ask(self.entry, "POST", "/plan", {"plan": one.dump()})
        return f"{one.words()}; follow it with `ferry plans {self.entry.name}`"

    def plans(self) -> list[Record]:
        """Those that there are: {plan, state, steps, what} each."""
        found = self.describe()
        rows, wire = list[Record](), found["status"]
        if wire and (status := Status.from_wire(wire)).desired:
            begun, of = status.moves.steps
            state = plan_state(status.moves.rolled_back, status.settled and begun >= of)
            what = status.moves.rolled_back or f"{len(status.groups)} virtual nodes"
            rows.append(plan_row(status.desired, state, (begun, of), what))
            if status.moves.prepared:
                rows.append(plan_row("next", "prepared", None, status.moves.prepared))
        if (one := found["plan"]) is not None:
            why = one["unfit"]
            rows.append(plan_row(one["name"], "not followed" if why else "handed in", None, why or one["words"]))
        return rows

    def cancel(self) -> str:
        """Take back the plan that was handed in."""
        ask(self.entry, "DELETE", "/plan")
        return CANCELLED

    def drain(self, worker: int) -> str:
        """Empty a worker."""
        ask(self.entry, "POST", "/drain", {"worker": worker})
        return f"worker {worker} is being emptied"

    def location(self) -> str | None:
        """Where its durable checkpoints are."""
        found: str | None = self.describe().get("checkpoints")
        return found

    def checkpoint(self, name: str | None, wait: float) -> Record:
        """Have a durable checkpoint taken, and wait until it is complete. Raises Fault when that takes too long."""
        began, number = time.time(), int(ask(self.entry, "POST", "/checkpoint", {"name": name})["number"])
        deadline = time.monotonic() + wait
        while True:
            status = self.describe()["status"]
            found = Status.from_wire(status) if status else None
            if found is not None and found.checkpoint is not None and (found.checkpoint.number or 0) >= number:
                one = found.checkpoint
                return taken(number, one.number or 0, one.epoch, one.bytes, one.total_bytes)
            late = [one for one in (found.notices if found is not None else ()) if one.since >= began]
            if problem := next((one.text for one in late if one.reason.startswith("Checkpoint")), None):
                raise Fault(f"{self.entry.name}: checkpoint {number} is under way, and late: {problem}")
            if time.monotonic() > deadline:
                raise Fault(f"{self.entry.name}: checkpoint {number} is not complete after {wait:g} s")
            time.sleep(LOOK_SECONDS)

    def suspend(self) -> str:
        """End the run after a last durable checkpoint."""
        ask(self.entry, "POST", "/suspend", {})
        return "it ends after a last checkpoint"


def plan_state(undone: str, over: bool) -> str:
    """In a word."""
    return "rolled back" if undone else "over" if over else "under way"


def plan_row(plan: int | str, state: str, steps: tuple[int, int] | None, what: str) -> Record:
    """What `plans` shows of one."""
    return {"plan": plan, "state": state, "steps": f"{steps[0]}/{steps[1]}" if steps and steps[1] else "", "what": what}


def named(vnodes: Sequence[int]) -> str:
    """What moves, in words."""
    one = f"virtual node {vnodes[0]} moves" if len(vnodes) == 1 else f"{len(vnodes)} virtual nodes move"
    return one + (f" ({', '.join(map(str, vnodes))})" if 1 < len(vnodes) <= 16 else "")


def taken(asked: int, number: int, epoch: int, written: int, total: int) -> Record:
    """A checkpoint that is complete: the one that was asked for, or one after it."""
    return {"asked": asked, "number": number, "epoch": epoch, "bytes": written, "totalBytes": total}


def ask(entry: RegisteredRun, method: str, path: str, document: dict[str, Any] | None = None) -> dict[str, Any]:
    """One request; raises SpecRefused with the supervisor's reason, or Unreachable."""
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
    found: dict[str, Any] = answer.json()
    return found
