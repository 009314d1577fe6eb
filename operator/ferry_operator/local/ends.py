"""How the processes of a run ended: what that means for the run, and why, as other terminals are told.

The meaning of a driver's end is decided in `control.restarts`; what a process said at last is found by `cluster`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from ferry.contract.status import ReportedProblem
from ferry_operator.control.observed import Worker
from ferry_operator.control.restarts import SILENT, Outcome, RestartPolicy, meaning
from ferry_operator.local.cluster.local import LocalCluster

FAILURES_MAX = 4
"""Starts in a row of a worker that may fail before the first epoch."""

OF_USERS = ("UserCode", "PoisonRecord")
"""Problems that do not pass by themselves: a run that is stopped with one has failed."""

LASTING_SECONDS = 5.0
"""A run that is stopped with any problem that is older than this has failed, too."""


class ProcessEnds:
    """The ends of processes of one run. `note` takes a line for the timeline."""

    def __init__(self, cluster: LocalCluster, note: Callable[[str], None]) -> None:
        self.last: dict[str, tuple[float, str]] = {}
        """By process: when it ended badly at last (seconds since 1970), and why."""
        self.worked = False
        """an epoch was finished"""
        self.halt = ""
        """what the last driver that halted wrote into the timeline"""
        self._cluster = cluster
        self._note = note
        self._restarts = RestartPolicy()
        self._seen = 0
        self._failing = ""

    def epoch_finished(self) -> None:
        """The driver works: its earlier ends do not count any more."""
        self.worked, self._failing = True, ""
        self._restarts.epoch_finished()

    def driver_may_start(self) -> bool:
        """Whether the back-off is over."""
        return self._restarts.may_start(time.monotonic())

    def stopped(self, problems: Iterable[ReportedProblem], up: bool) -> None:
        """The run is about to be stopped, and these are the problems that it has; `up`: its driver answers.

        A job that has worked before, and whose driver came back from a single end, needs no epoch to prove it: there may be
        nothing to read. One that has finished no epoch, and a process of which ended badly, has failed.
        """
        if up and self.worked and self._restarts.crashes <= 1:
            self._failing = ""
        if not self.worked and self.last:
            self._failing = max(self.last.values())[1]
        lasting = time.time() - LASTING_SECONDS
        if failing := [one.text for one in problems if one.reason in OF_USERS or one.since < lasting]:
            self._failing = failing[0]

    def as_stopped(self) -> Outcome:
        """Of a run that was stopped: with the reason, if it had failed and no epoch was finished since."""
        return Outcome("stopped", self._failing)

    def bad(self, process: str, why: str) -> None:
        """A process ended badly."""
        self.last[process] = time.time(), why
        if process == "driver":
            self._failing = why

    def driver(self, stopping: bool) -> Outcome | None:
        """The end of the run, if the driver has ended since the last call and that means it."""
        seen = self._cluster.driver()
        if seen.running or seen.code is None or self._seen == seen.starts:
            return None
        self._seen = seen.starts
        why, expected = self._cluster.why_driver_ended(), self._cluster.driver_was_killed()
        why, self.halt = self.halt if self.halt and SILENT in why else why, ""
        if stopping and meaning(seen.code) in ("finished", "crashed"):
            if seen.code and not expected:
                self.bad("driver", why)
            return self.as_stopped()
        outcome = self._restarts.ended(seen.code, expected, time.monotonic(), why)
        if outcome is not None and outcome.ok:
            return outcome
        if not expected:
            self.bad("driver", why)
        if outcome is None:
            if not expected:
                self._note(f"restart driver: {why}")
            return None
        return outcome

    def worker(self, index: int) -> None:
        """A worker is about to be started, perhaps again."""
        if not self._cluster.was_started(index):
            return
        why = self._cluster.why_worker_ended(index)
        if why:
            self.bad(f"worker {index}", why)
        self._note(f"restart worker {index}: {why}" if why else f"restart worker {index}")

    def workers(self, workers: tuple[Worker, ...]) -> Outcome | None:
        """The end of a job whose workers never came up; later failures are for the driver to survive."""
        if self.worked:
            return None
        if words := [text for w in workers if (text := self._cluster.without_transport(w.index)) is not None]:
            return Outcome("failed", words[0])
        if failing := [w for w in workers if w.failures >= FAILURES_MAX]:
            index, times = failing[0].index, failing[0].failures
            why = self._cluster.why_worker_ended(index)
            return Outcome("failed", f"{why} (worker {index} failed {times} times, and no epoch was finished)")
        return None
