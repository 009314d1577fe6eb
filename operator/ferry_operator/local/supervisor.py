"""Runs one job on this machine: observe, decide, act, every 100 ms, until the job has ended and no process is left.

Composition only: `decide` and `restarts` choose the actions, `cluster.local` executes them. The caller's thread owns all
state here, and answers the requests of the endpoint between two rounds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import assert_never

from ferry.contract.certificates import authority, issue, server_context
from ferry.contract.errors import Refusal, Unreachable
from ferry.contract.settings import RunSettings
from ferry.contract.status import Status
from ferry.contract.tickets import derived
from ferry.contract.timeline import TIMELINE, append_record
from ferry.system.api_server import ApiServer
from ferry_operator.control import decide as d
from ferry_operator.control.commands import Command, Schedule
from ferry_operator.control.driver_client import DriverRefuses
from ferry_operator.control.observed import Observed, Submitted, Wanted, Worker
from ferry_operator.control.plan_file import PlanFile
from ferry_operator.control.restarts import Outcome
from ferry_operator.control.timers import LookTimers
from ferry_operator.job.models_balance import BalanceSpec
from ferry_operator.job.models_handover import Handover
from ferry_operator.job.settings import with_addresses
from ferry_operator.local.autoscaler import LocalAutoscaler
from ferry_operator.local.cluster import reaper
from ferry_operator.local.cluster.local import LocalCluster, Programs
from ferry_operator.local.cluster.private_redis import PrivateRedis
from ferry_operator.local.cluster.processes import Processes
from ferry_operator.local.commands import Commands
from ferry_operator.local.driver import LocalDriver, StatusWatch
from ferry_operator.local.endpoint import application
from ferry_operator.local.exits import ProcessExits
from ferry_operator.local.interrupts import Interrupts
from ferry_operator.local.mailbox import Mailbox
from ferry_operator.local.registry import RegisteredRun, Registry
from ferry_operator.local.requested import RequestedState
from ferry_operator.local.requests import (
    Answer,
    BeginCheckpoint,
    CancelPlan,
    ChangeJob,
    DescribeJob,
    ReachStage,
    Request,
    StopRun,
    SubmitPlan,
    SuspendRun,
)
from ferry_operator.local.rundir import RunDirectory
from ferry_operator.local.timeline.timeline import TimelineTail
from ferry_operator.local.view import Record, RunView, describe

PAUSE_SECONDS = 0.1
STOP_SECONDS = 10.0
"""Time that a driver has to finish its epoch after a request to stop."""


class Supervisor:
    """One run, from its start to its end."""

    def __init__(
        self,
        settings: RunSettings,
        wanted: Wanted,
        directory: RunDirectory,
        schedule: Schedule,
        home: Path,
        programs: Programs,
        autoscaler: LocalAutoscaler,
    ) -> None:
        """`settings` lack the addresses, which are known once Redis and the endpoint run."""
        self.settings = settings
        self.directory = directory
        self.schedule = schedule
        self.requested = RequestedState(wanted, settings.virtual_nodes)
        self.outcome: Outcome | None = None
        self.stopping: float | None = None
        """time since when the job is ending"""
        self.suspending = False
        """the run ends once the driver has taken a last checkpoint"""
        self._home = home
        self._programs = programs
        self._autoscaler = autoscaler
        self._submitted: Submitted | None = None
        self._timers = LookTimers()
        self._stop_requested = False
        self._suspending_pid: int | None = None
        """process id of the driver that has accepted the request to suspend"""
        self._warnings: list[str] = []
        self._slow = ""
        self._unread = self._finished = False
        self._mailbox = Mailbox(self._answer)
        self._interrupts = Interrupts(self._mailbox.wake)
        self._tail = TimelineTail(directory.path / TIMELINE, from_end=True)

    @property
    def went_well(self) -> bool:
        """Whether no process of the run has failed."""
        return not self._exits.last

    # ---- the loop
    def run(self, show: Callable[[RunView], None]) -> Outcome:
        """Run the job; returns its outcome once all processes have ended. Call it in the main thread."""
        with ExitStack() as stack:
            stack.enter_context(self._interrupts)
            self._begin(stack)
            while self.outcome is None:
                self._show(show, self._look())
                self._mailbox.serve(PAUSE_SECONDS)
            self._mailbox.close()
            self._show(show, self._view(None, self._cluster.workers()))
        assert self.outcome is not None
        return self.outcome

    def _show(self, show: Callable[[RunView], None], view: RunView) -> None:
        """Show a view. An error of the output means a closed terminal: it stops the run, and later views are not shown."""
        if not self._unread:
            try:
                show(view)
            except OSError:
                self._unread = True
                self._stop()

    def _begin(self, stack: ExitStack) -> None:
        left = reaper.tagged(f"{self.settings.run}-")
        reaper.end_tagged(
            f"{self.settings.run}-"
        )  # this run has locked the directory, so these processes have no supervisor any more
        secret, encrypted = self.settings.secret, self.settings.encrypted
        token = derived(secret, "supervisor")
        context = server_context(issue(secret)) if encrypted else None
        endpoint = ApiServer(application(self._mailbox.ask, token), ("127.0.0.1", 0), context)
        stack.callback(endpoint.close)
        processes = Processes(f"{self.settings.run}-{os.getpid()}", self.directory.path / "logs")
        stack.callback(processes.close)
        redis = PrivateRedis(processes, self.directory.path / "redis", self.settings.secret)
        self.settings = with_addresses(self.settings, redis.url, endpoint.url, self.schedule.stops())
        self.settings.write()
        self._cluster = LocalCluster(self.settings, processes, redis, self._programs)
        stack.callback(self._cluster.close)
        self._exits = ProcessExits(self._cluster, self._note)
        self._client = LocalDriver(self.directory.path, self.settings.secret)
        stack.callback(self._client.close)
        self._watch = StatusWatch(self.directory.path, self.settings.secret)
        stack.callback(self._watch.close)
        self._commands = Commands(
            self.requested, self.schedule, self._cluster, self._watch, self._note, lambda: self.stopping is not None
        )
        redis.start()
        redis.wait()
        trusted = authority(secret).decode() if encrypted else None
        entry = RegisteredRun.of_this_process(self.settings, endpoint.url, token, trusted)
        file = Registry(self._home).add(entry)
        stack.callback(file.unlink, missing_ok=True)
        if left:
            pids = ", ".join(map(str, left))
            self._note(f"ended {len(left)} processes of the previous run, whose supervisor was killed (pids {pids})")
        self._note("continue with the state in the directory" if self.directory.resumed else "start")

    def _look(self) -> RunView:
        """One round of observe, decide, act."""
        workers = self._cluster.workers()
        status = self._watch.latest(self._cluster.driver_pid())
        view = self._view(status, workers)
        if self._interrupts.count:
            self._stop()
        self.outcome = self.outcome or self._exits.driver(self.stopping is not None) or self._exits.workers(workers)
        if self.outcome is None and self.stopping is not None:
            self._stop_driver()
        elif self.outcome is None and self.suspending:
            self._suspend_driver()
        if self.outcome is None:
            if (why := self._cluster.keep_redis()) is not None:
                self._exits.failed("redis", why)
                self._note(f"restart redis: {why}")
            if self.settings.driver_standby and self._exits.worked and status is not None and self.stopping is None:
                self._cluster.keep_standby()
            observed = self._observed(workers, status)
            for action in d.decide(observed):
                self._act(action)
            if self.stopping is None and not self.suspending:
                self._commands.perform(self._autoscaler.due(observed, time.monotonic(), self._note))
        return view

    def _view(self, status: Status | None, workers: tuple[Worker, ...]) -> RunView:
        records = self._tail.read()
        for record in records:
            if record.get("kind") == "epoch":
                self._exits.epoch_finished()
            elif record.get("kind") == "finished":
                self._finished = True
            elif record.get("kind") == "halt":
                self._exits.halt = str(record.get("text", ""))
            elif record.get("kind") == "ended":
                self._exits.failed(str(record.get("process", "")), str(record.get("text", "")))
        reason = status.transport.reason if status is not None else self._slow
        if reason not in ("", self._slow):
            self._warnings.append(f"links are not RDMA although it is expected: {reason}")
        self._slow = reason
        warnings, self._warnings = self._warnings, []
        return replace(self._seen(status, workers), records=records, warnings=warnings)

    def _seen(self, status: Status | None, workers: tuple[Worker, ...]) -> RunView:
        ending = self._finished or self.stopping is not None or self.outcome is not None
        view = RunView(self.settings, status, workers, self.requested.wanted, [], ends=self._exits.last)
        return replace(view, silent=self._watch.silent, ending=ending)

    # ---- observe
    def _observed(self, workers: tuple[Worker, ...], status: Status | None) -> Observed:
        now, driver = time.monotonic(), self._cluster.driver()
        observed = Observed(
            wanted=self.requested.while_suspending() if self.suspending else self.requested.wanted,
            workers=workers,
            driver=driver.running,
            driver_may_start=self.stopping is None and self._exits.driver_may_start(),
            status=status,
            submitted=self._submitted,
            drains=tuple(self.requested.drains),
            pins=tuple(sorted(self.requested.pins.items())),
            at_window=tuple(v for v, waits in sorted(self.requested.at_window.items()) if waits),
            plan_file=self.requested.plan,
        )
        return self._timers.timed(observed, now)

    # ---- act
    def _act(self, action: d.Action) -> None:
        match action:
            case d.StartWorker(index, instances):
                self._exits.worker(index)
                self._cluster.start_worker(index, instances)
            case d.StopWorker(index):
                self._note(f"release worker {index}")
                self._cluster.stop_worker(index)
            case d.SetInstances(index, instances):
                self._note(f"instances of worker {index}: {instances}")
                self._cluster.set_instances(index, instances)
            case d.StartDriver():
                self._cluster.start_driver()
            case d.SubmitDesired():
                pid = self._cluster.driver_pid()
                if pid is not None and self._client.submit(pid, action):
                    self._submitted = action.accepted()
                    if action.why:
                        self._note(f"balance {action.why}")
                    self._watch.forget()
            case d.LimitCopies(bandwidth):
                if (pid := self._cluster.driver_pid()) is not None:
                    self._client.limit_copies(pid, bandwidth)
            case _:
                assert_never(action)

    def _stop_driver(self) -> None:
        """Ask the driver to end, and kill it if it does not end in time."""
        assert self.stopping is not None
        pid = self._cluster.driver_pid()
        if pid is None:
            self.outcome = self._exits.as_stopped()
        elif self._interrupts.count > 1 or time.monotonic() - self.stopping > STOP_SECONDS:
            self._cluster.end_driver()
            self.outcome = self._exits.as_stopped()
        elif not self._stop_requested:
            self._stop_requested = self._client.stop(pid)
            if not self._stop_requested and self._watch.latest(pid) is None:
                # The driver does not answer yet, so there is no current epoch to wait for.
                self._cluster.end_driver()
                self.outcome = self._exits.as_stopped()

    def _suspend_driver(self) -> None:
        """Send the request to suspend once to each driver, also after a crash. Its status reports problems."""
        pid = self._cluster.driver_pid()
        if pid is None or pid == self._suspending_pid:
            return
        try:
            if self._client.suspend(pid):
                self._suspending_pid = pid
        except DriverRefuses as error:
            self._warnings.append(f"the job is not suspended: {error}")
            self.suspending = False

    def _note(self, text: str) -> None:
        now = {"t": time.time(), "up": time.monotonic()}
        append_record(self.directory.path, {"kind": "action", **now, "text": text})

    # ---- requests of the endpoint
    def _answer(self, request: Request) -> Answer:
        match request:
            case DescribeJob():
                return self._job()
            case ChangeJob(commands, handover, balance):
                self._change(commands, handover, balance)
            case SubmitPlan(plan):
                self._submit(plan)
            case CancelPlan():
                self._note(f"cancel {self.requested.cancel().words()}")
            case ReachStage(epoch, stage):
                self._warnings += self._commands.reach(epoch, stage)
            case BeginCheckpoint(name):
                return {"number": self._checkpoint(name)}
            case SuspendRun():
                self._suspend()
            case StopRun():
                self._stop()
            case _:
                assert_never(request)
        return {}

    def _job(self) -> Record:
        status = self._watch.latest(self._cluster.driver_pid())
        view = replace(self._seen(status, self._cluster.workers()), advice=self._timers.balance)
        phase = "stopping" if self.stopping is not None else "suspending" if self.suspending else "running"
        return {**describe(view, phase, self.requested, self._autoscaler.report), "autoscaled": self._autoscaler.on}

    def _checkpoint(self, name: str | None) -> int:
        self._may_take_checkpoints()
        pid = self._cluster.driver_pid()
        if pid is None:
            raise Unreachable("no driver runs at the moment")
        self._note("checkpoint" if name is None else f"checkpoint {name}")
        try:
            return self._client.checkpoint(pid, name)
        except DriverRefuses as error:
            raise Refusal(str(error)) from None

    def _suspend(self) -> None:
        self._may_take_checkpoints()
        if not self.suspending:
            self._note("suspend")
            self.suspending = True

    def _may_take_checkpoints(self) -> None:
        if self.settings.checkpoint is None:
            raise Refusal("the job has no durable checkpoints: set state.checkpoint.location in the job file")
        if self.stopping is not None:
            raise Refusal("the job is ending")

    def _submit(self, plan: PlanFile) -> None:
        if self.stopping is not None:
            raise Refusal("the job is ending")
        self.requested.submit(plan, self.settings.job)
        self._note(f"submit {plan.words()}")

    def _change(self, commands: Sequence[Command], handover: Handover | None, balance: BalanceSpec | None) -> None:
        """Execute all changes, or none if one of the commands is impossible."""
        self._commands.check(commands)
        if handover is not None:
            self._note(f"handover {self.requested.handover(handover)}")
        if balance is not None:
            self._note(f"balance {self.requested.balance(balance)}")
        self._commands.perform(commands)

    def _stop(self) -> None:
        if self.stopping is None:
            status = self._watch.latest(self._cluster.driver_pid())
            self._exits.stopped(status.problems if status is not None else (), status is not None)
            self._note("stop")
            self.stopping = time.monotonic()
