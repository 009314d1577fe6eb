"""The ends of the processes of a run: their consequences for the run, and the reasons that other terminals show.

`control.restarts` decides the consequence of a driver's end; `cluster` reads the last words of a process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from ferry.contract.status import ReportedProblem
from ferry_operator.control.observed import Worker
from ferry_operator.control.restarts import SILENT, Outcome, RestartPolicy, meaning
from ferry_operator.local.cluster.local import LocalCluster

FAILURES_MAX = 4
"""Consecutive failed starts of a worker before the first epoch, after which the job fails."""

OF_USERS = ("UserCode", "PoisonRecord")
"""Problems that only a change of the program solves: a run that is stopped with such a problem has failed."""

LASTING_SECONDS = 5.0
"""A run that is stopped with an older problem of any kind has failed, too."""


class ProcessExits:
    """The ends of the processes of one run. `note`: writes a line of the timeline."""

    def __init__(self, cluster: LocalCluster, note: Callable[[str], None]) -> None:
        self.last: dict[str, tuple[float, str]] = {}
        """by process: time of its last failure (seconds since 1970), and the reason"""
        self.worked = False
        """whether the run has finished an epoch"""
        self.halt = ""
        """text of the last halt in the timeline"""
        self._cluster = cluster
        self._note = note
        self._restarts = RestartPolicy()
        self._seen = 0
        self._failing = ""

    def epoch_finished(self) -> None:
        """Forget earlier ends of the driver: it works."""
        self.worked, self._failing = True, ""
        self._restarts.epoch_finished()

    def driver_may_start(self) -> bool:
        """Whether the back-off is over."""
        return self._restarts.may_start(time.monotonic())

    def stopped(self, problems: Iterable[ReportedProblem], up: bool) -> None:
        """Note a request to stop, with the present problems. `up`: the driver answers.

        The run has not failed if it finished an epoch before and its driver is back from a single crash: a further epoch
        is no condition, because there may be no input. A run without a finished epoch has failed if a process failed.
        """
        if up and self.worked and self._restarts.crashes <= 1:
            self._failing = ""
        if not self.worked and self.last:
            self._failing = max(self.last.values())[1]
        lasting = time.time() - LASTING_SECONDS
        if failing := [p.text for p in problems if p.reason in OF_USERS or p.since < lasting]:
            self._failing = failing[0]

    def as_stopped(self) -> Outcome:
        """The outcome of a stopped run, with the reason if the run had failed and has finished no epoch since."""
        return Outcome("stopped", self._failing)

    def failed(self, process: str, why: str) -> None:
        """Note the failure of a process."""
        self.last[process] = time.time(), why
        if process == "driver":
            self._failing = why

    def driver(self, stopping: bool) -> Outcome | None:
        """The outcome of the run, if the driver has ended since the last call and this ends the run; else None."""
        seen = self._cluster.driver()
        if seen.running or seen.code is None or self._seen == seen.starts:
            return None
        self._seen = seen.starts
        why, expected = self._cluster.why_driver_ended(), self._cluster.driver_was_killed()
        why, self.halt = self.halt if self.halt and SILENT in why else why, ""
        if stopping and meaning(seen.code) in ("finished", "crashed"):
            if seen.code and not expected:
                self.failed("driver", why)
            return self.as_stopped()
        outcome = self._restarts.ended(seen.code, expected, time.monotonic(), why)
        if outcome is not None and outcome.ok:
            return outcome
        if not expected:
            self.failed("driver", why)
        if outcome is None:
            if not expected:
                self._note(f"restart driver: {why}")
            return None
        return outcome

    def worker(self, index: int) -> None:
        """Note the start of a worker; if it is a restart, with the reason."""
        if not self._cluster.was_started(index):
            return
        why = self._cluster.why_worker_ended(index)
        if why:
            self.failed(f"worker {index}", why)
        self._note(f"restart worker {index}: {why}" if why else f"restart worker {index}")

    def workers(self, workers: tuple[Worker, ...]) -> Outcome | None:
        """The outcome of a run whose workers never started; the driver handles later failures of workers."""
        if self.worked:
            return None
        if words := [text for w in workers if (text := self._cluster.without_transport(w.index)) is not None]:
            return Outcome("failed", words[0])
        if failing := [w for w in workers if w.failures >= FAILURES_MAX]:
            index, times = failing[0].index, failing[0].failures
            why = self._cluster.why_worker_ended(index)
            return Outcome("failed", f"{why} (worker {index} failed {times} times before the first epoch was finished)")
        return None
