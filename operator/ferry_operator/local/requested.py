"""The requested state of a run: size, handover policy, drained workers, pinned virtual nodes, submitted plan.

Values only: commands change the state, and each round of the supervisor reads it. It starts and ends no process.
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


class RequestedState:
    """The requested state of one run; used by one thread at a time."""

    def __init__(self, wanted: Wanted, virtual_nodes: int) -> None:
        self.wanted = wanted
        self.virtual_nodes = virtual_nodes
        self.drains: list[int] = []
        self.pins: dict[int, InstanceId] = {}
        self.at_window: dict[int, bool] = {}
        """pinned virtual nodes that move at the boundary of a window"""
        self.plan: PlanFile | None = None
        """the submitted plan"""

    def check(self, command: Command, status: Status | None = None) -> None:
        """Raise Refusal if the command is impossible. `status`: of the driver; None: it does not answer."""
        check_command(command, self.wanted.size, self.virtual_nodes)
        if command.kind == "drain":
            if not self.wanted.size.holding((*self.drains, command.number)):
                raise Refusal(f"{command}: no other worker is left that could take its state")
        elif command.kind == "move":
            assert command.instance is not None
            if worker_of(command.instance) in self.drains:
                raise Refusal(f"{command}: worker {worker_of(command.instance)} is drained")
            if command.at_window and status is None:
                raise Refusal(
                    f"{command}: the driver does not answer, so it is not known whether windows end: try again"
                )
            if command.at_window and status is not None and status.moves.unbounded:
                raise Refusal(f"{command}: {status.moves.unbounded}")

    def apply(self, command: Command) -> bool:
        """Change the requested state by a command; False if the command does not change it (a kill)."""
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
        """Set the policy for later plans. Returns the changed fields as text. Raises Refusal."""
        values = wanted.model_dump(exclude_unset=True)
        policy = handovers.policy_of(wanted, self.wanted.handover)
        bandwidth = handovers.bandwidth_of(wanted) if "bandwidth" in values else self.wanted.bandwidth
        self.wanted = replace(self.wanted, handover=policy, bandwidth=bandwidth)
        return " ".join(f"{name}={value}" for name, value in values.items())

    def while_suspending(self) -> Wanted:
        """The wanted fields during a suspend: no virtual node moves for balance."""
        return replace(self.wanted, balance=balancing.BalancePolicy("off"))

    def balance(self, wanted: BalanceSpec) -> str:
        """Set the policy of balancing. Returns the changed fields as text."""
        self.wanted = replace(self.wanted, balance=balancing.policy_of(wanted, self.wanted.balance))
        return " ".join(f"{name}={value}" for name, value in wanted.model_dump(exclude_unset=True).items())

    def submit(self, plan: PlanFile, job: str) -> None:
        """Request the size and the placements of a plan. Raises Refusal."""
        if why := plan_file.unfit(plan, job, self.virtual_nodes, self.wanted.replicas, self.drains):
            raise Refusal(why)
        plan_file.check_begin(plan, self.wanted.size)
        self._resize(plan.size)
        self.plan = plan

    def cancel(self) -> PlanFile:
        """Withdraw the submitted plan and restore the size before it. Returns the plan. Raises Refusal."""
        if (plan := self.plan) is None:
            raise Refusal("no plan is submitted; `cancel` does not undo `scale`, `move` or `drain`")
        self._resize(plan.before)
        return plan

    def _resize(self, size: Size) -> None:
        """Set the size; this drops the submitted plan, which is for one size only."""
        self.plan = None
        self.wanted = replace(self.wanted, size=size)
        self.drains = [k for k in self.drains if k < size.workers]

    def described(self, job: str) -> dict[str, str] | None:
        """The submitted plan: its name, its description, and why the job does not follow it; None if there is no plan."""
        if (plan := self.plan) is None:
            return None
        unfit = plan_file.unfit(plan, job, self.virtual_nodes, self.wanted.replicas, self.drains)
        return {"name": plan.name, "words": plan.words(), "unfit": unfit}
