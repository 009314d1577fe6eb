"""What is asked of a run: its size, how its plans are cut, workers that are to be empty, virtual nodes that have a place.

Values only, changed by commands and read by the supervisor's rounds; it starts and ends nothing.
"""

from __future__ import annotations

from dataclasses import replace

from ferry.contract.errors import Refusal
from ferry.contract.names import InstanceId, worker_of
from ferry.contract.status import Status
from ferry_operator.control import balancing, handovers, plan_file
from ferry_operator.control.commands import Command, check_command
from ferry_operator.control.observed import Wanted
from ferry_operator.control.plan_file import PlanFile
from ferry_operator.job.models_balance import BalanceSpec
from ferry_operator.job.models_handover import Handover
from ferry_operator.job.size import Size


class Asked:
    """Requests to one run; used by one thread at a time."""

    def __init__(self, wanted: Wanted, virtual_nodes: int) -> None:
        self.wanted = wanted
        self.virtual_nodes = virtual_nodes
        self.drains: list[int] = []
        self.pins: dict[int, InstanceId] = {}
        self.at_window: dict[int, bool] = {}
        """pinned virtual nodes that get there at the boundary of a window"""
        self.plan: PlanFile | None = None
        """the one that was handed in last"""

    def check(self, command: Command, status: Status | None = None) -> None:
        """Raise Refusal when it names what is not there, or what cannot be. `status`: what the driver says."""
        check_command(command, self.wanted.size, self.virtual_nodes)
        if command.kind == "drain":
            if not self.wanted.size.holding((*self.drains, command.number)):
                raise Refusal(f"{command}: no other worker is left to take its state")
        elif command.kind == "move":
            assert command.instance is not None
            if worker_of(command.instance) in self.drains:
                raise Refusal(f"{command}: worker {worker_of(command.instance)} is drained")
            if command.at_window and status is None:
                raise Refusal(f"{command}: the driver does not answer, and whether windows end is not known: try again")
            if command.at_window and status is not None and status.moves.unbounded:
                raise Refusal(f"{command}: {status.moves.unbounded}")

    def take(self, command: Command) -> bool:
        """From now on; False when it is nothing that lasts, but has to be done."""
        match command.kind:
            case "workers":
                self._resize(replace(self.wanted.size, workers=command.number))
            case "instances":
                self._resize(replace(self.wanted.size, instances=command.number))
            case "drain":
                self.drains = sorted({*self.drains, command.number})
            case "move":
                assert command.instance is not None
                self.pins[command.number] = command.instance
                self.at_window[command.number] = command.at_window
            case _:
                return False
        return True

    def handover(self, wanted: Handover) -> str:
        """How plans are cut from now on; what was said, in words. Raises Refusal."""
        given = wanted.model_dump(exclude_unset=True)
        policy = handovers.policy_of(wanted, self.wanted.handover)
        bandwidth = handovers.bandwidth_of(wanted) if "bandwidth" in given else self.wanted.bandwidth
        self.wanted = replace(self.wanted, handover=policy, bandwidth=bandwidth)
        return " ".join(f"{name}={value}" for name, value in given.items())

    def about_to_rest(self) -> Wanted:
        """The wishes during a suspend: no virtual node is moved for its load."""
        return replace(self.wanted, balance=balancing.BalancePolicy("off"))

    def balance(self, wanted: BalanceSpec) -> str:
        """Whether load moves by itself from now on; what was said, in words."""
        self.wanted = replace(self.wanted, balance=balancing.policy_of(wanted, self.wanted.balance))
        return " ".join(f"{name}={value}" for name, value in wanted.model_dump(exclude_unset=True).items())

    def submit(self, one: PlanFile, job: str) -> None:
        """The job gets the size of the plan, and its placements. Raises Refusal."""
        if why := plan_file.unfit(one, job, self.virtual_nodes, self.wanted.replicas, self.drains):
            raise Refusal(why)
        plan_file.check_begin(one, self.wanted.size)
        self._resize(one.size)
        self.plan = one

    def cancel(self) -> PlanFile:
        """The plan that was handed in, and is not any more: the size is as before."""
        if (one := self.plan) is None:
            raise Refusal("no plan was handed in; `scale`, `move` and `drain` are taken back by themselves")
        self._resize(one.before)
        return one

    def _resize(self, size: Size) -> None:
        """A plan that was handed in is for one size alone."""
        self.plan = None
        self.wanted = replace(self.wanted, size=size)
        self.drains = [k for k in self.drains if k < size.workers]

    def described(self, job: str) -> dict[str, str] | None:
        """The plan that was handed in: its name, what it is, and why it is not followed, if it is not."""
        if (one := self.plan) is None:
            return None
        unfit = plan_file.unfit(one, job, self.virtual_nodes, self.wanted.replicas, self.drains)
        return {"name": one.name, "words": one.words(), "unfit": unfit}
