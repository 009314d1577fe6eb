"""The attempt under way: its ingest, its Prepare, the chains that have logged it, and the deadline for the rest.

ingest -> ingested -> prepare -> Prepared of every chain -> commit
             |            ^ |
             '------------' '- its time is up: blame finds the culprits
"""

from __future__ import annotations

from collections.abc import Mapping

from ferry.contract import messages as m
from ferry.contract.errors import Bug
from ferry.contract.names import Attempt, CommitId, InstanceId, Step
from ferry.contract.programs import operator_id, program_at
from ferry.contract.results import StepResult, with_result
from ferry.protocol.coordinator.blame import Blame, blame
from ferry.protocol.coordinator.commits import Commits
from ferry.protocol.coordinator.failing_code import FailingCode
from ferry.protocol.coordinator.io import Ingested, Phase, StartIngest
from ferry.protocol.coordinator.journaling import Journaling
from ferry.protocol.coordinator.membership import Membership
from ferry.protocol.coordinator.reachability import Reachability
from ferry.protocol.coordinator.state import DriverState
from ferry.protocol.view import Chain


class Attempts:
    """Attempts of the step under way, until it can be committed."""

    def __init__(
        self,
        driver: DriverState,
        journaling: Journaling,
        members: Membership,
        reachability: Reachability,
        commits: Commits,
    ) -> None:
        self._driver = driver
        self._journaling = journaling
        self._members = members
        self._reachability = reachability
        self._commits = commits
        self.run = 0
        """Number of the last ingest; never used twice in a generation."""
        self.ingested: Ingested | None = None
        self.helping: Mapping[InstanceId, object] = {}
        """Instances with winning fragments of it."""
        self._all_there = -1
        """`Membership.forgotten` when all of them were alive: a cheap check for each message of an epoch."""
        self.trying = False
        """An attempt of `ingested` was begun."""
        self.number = 0
        """Number of the last attempt; never used twice in a generation."""
        self.commit_id: CommitId | None = None
        """The last attempt, and its step."""
        self.watermarks = (0, 0)
        """Watermarks of the operator, before and after the last attempt."""
        self.deadlines = 0
        """Number of attempts of `ingested` abandoned in a row."""
        self.acks: dict[Chain, tuple[int, int]] = {}
        """Chains that have logged the attempt under way: late records, and fired rows."""
        self.code = FailingCode(driver)
        self.failed = ""
        """Why the step under way, of an operator whose rows are not written, is to be void."""
        self._waiting: dict[InstanceId, m.Waiting] = {}
        """Progress of the instances with the attempt under way, when it takes long."""

    # ---- the ingest
    def ingest(self, step: Step, failed: str = "") -> None:
        """Begin the step, or begin it again; `failed`: see `StartIngest`."""
        driver, commits = self._driver, self._commits
        driver.enter(Phase.INGEST)
        self.failed = failed or (self.failed if step == driver.step and self._is_silent(step) else "")
        driver.step = step
        self.ingested, self.trying = None, False
        self.run += 1
        rows = commits.rows() if step.operator else ()
        driver.do(StartIngest(step, self.run, self._reachability.helpers(), rows, commits.meta, self.failed))

    def _is_silent(self, step: Step) -> bool:
        programs = self._journaling.table.programs
        return operator_id(programs, step) in program_at(programs, step.epoch).silent

    def is_ingesting(self, step: Step, run: int) -> bool:
        """Whether this is the ingest under way."""
        return self._driver.phase is Phase.INGEST and (step, run) == (self._driver.step, self.run)

    def was_ingested(self, event: Ingested) -> None:
        """The fragments are staged: attempts begin."""
        self.ingested, self.trying, self.deadlines = event, False, 0
        self.helping, self._all_there = dict(event.winners), -1
        self._driver.enter(Phase.PREPARE)

    def unusable(self) -> str:
        """Why the winning fragments cannot be used any more; empty: they can."""
        if self.ingested is None:
            return ""
        if self._all_there != self._members.forgotten:
            if not self.helping.keys() <= self._members.alive.keys():
                return "a helper with winning fragments is gone"
            self._all_there = self._members.forgotten
        return self._reachability.unusable(self.helping)

    # ---- one attempt
    def prepare(self) -> None:
        """Begin an attempt under the present table."""
        driver, view, commits = self._driver, self._journaling.view, self._commits
        assert self.ingested is not None and driver.step is not None
        self._next_number(driver.step)
        self.code.tries_again()
        self.trying, self.acks, self._waiting = True, {}, {}
        driver.enter(Phase.PREPARE)
        low = commits.result_before(driver.step).high
        is_void = self.ingested.is_void
        self.watermarks = low, low if is_void else max(low, self.ingested.high)
        if not driver.rules.watermark_commit:
            result = StepResult(self.attempt, *self.watermarks)
            commits.results = with_result(commits.results, commits.operator_of(driver.step), result)
        marks = (low + 1, low) if is_void else self.watermarks
        prepare = m.Prepare(driver.step, self.attempt, view.version, self.ingested.winners, *marks)
        for i in sorted({**view.led, **self.helping}):
            driver.send(i, prepare)

    def _next_number(self, step: Step) -> None:
        self.number += 1
        commit_id = CommitId(step, self.attempt)
        if self.commit_id is not None and commit_id <= self.commit_id:
            raise Bug(f"attempt {commit_id} is begun after {self.commit_id}")
        self.commit_id = commit_id

    @property
    def attempt(self) -> Attempt:
        """The last attempt."""
        return Attempt(self._driver.generation, self.number)

    @property
    def is_running(self) -> bool:
        """Whether an attempt was begun and is neither abandoned nor decided."""
        return self._driver.phase is Phase.PREPARE and self.trying

    def have_begun(self, epoch: int) -> bool:
        """Whether an attempt of this epoch was begun: members have released the rows of the epoch before."""
        return self.commit_id is not None and self.commit_id.step.epoch == epoch

    def is_now(self, step: Step, attempt: Attempt) -> bool:
        """Whether this is the attempt under way."""
        return self.is_running and (step, attempt) == self.commit_id

    def was_prepared(self, event: m.Prepared) -> None:
        """Chains have logged the attempt."""
        if self.is_now(event.step, event.attempt):
            order = self._journaling.view.order
            for number, late, fired in zip(event.chains, event.late, event.fired, strict=True):
                self.acks[order[number]] = late, fired

    def is_logged(self) -> bool:
        """Whether every chain has logged it."""
        return self.trying and len(self.acks) == len(self._journaling.view.chains)

    def commit(self) -> m.Commit:
        """The attempt is decided."""
        assert self.ingested is not None and self.commit_id is not None
        self.code.over()
        late, fired = sum(late for late, _ in self.acks.values()), sum(fired for _, fired in self.acks.values())
        result = StepResult(self.attempt, *self.watermarks, late, fired)
        results = with_result(self._commits.results, self._commits.operator_of(self.commit_id.step), result)
        return m.Commit(self.commit_id, self._driver.generation, results, self.ingested.meta)

    # ---- an attempt that ends in the user's code
    def code_failed(self, event: m.CodeFailed) -> None:
        """An instance reports failing user code, perhaps of its former life: the attempt under way may be a later
        one."""
        if event.step == self._driver.step and self._driver.phase in (Phase.INGEST, Phase.PREPARE):
            self.code.failed(event, self.is_now(event.step, event.attempt))

    def fails_silently(self, event: m.CodeFailed) -> bool:
        """Whether code of the step under way failed, and its operator's rows are not written: no try is to follow."""
        if event.step != self._driver.step or self._driver.phase not in (Phase.INGEST, Phase.PREPARE):
            return False
        return self._is_silent(event.step)

    def code_may_try_again(self) -> None:
        """Time has passed: abandon the attempt once the next one may begin."""
        if self.is_running and self.commit_id and self.code.waits(*self.commit_id) and self.code.is_due():
            self.trying = False

    # ---- an attempt that does not end
    def says(self, event: m.Waiting) -> None:
        """Take the progress of an instance."""
        if self.is_now(event.step, event.attempt):
            self._waiting[event.instance] = event

    def waits_for(self, instance: InstanceId) -> bool:
        """Whether the attempt waits for this instance to compute, rather than for a message to arrive."""
        if not self.is_running or self.ingested is None or instance not in self._members.alive:
            return False
        mine = [chain for chain in self._journaling.view.chains if chain[0] == instance and chain not in self.acks]
        report = self._waiting.get(instance)
        if report is None:
            return bool(mine) or instance in self.helping
        return not report.unheard and any(chain not in report.logged for chain in mine)

    def is_overdue(self) -> bool:
        """Whether its time is up: twice as long as for the attempt before it."""
        if not self.is_running or self.commit_id is None or self.code.waits(*self.commit_id):
            return False
        return self._driver.waited > self._driver.settings.attempt_ms << min(self.deadlines, 4)

    def give_up(self) -> int:
        """Abandon the attempt; returns how many were abandoned in a row."""
        self.deadlines += 1
        return self.deadlines

    def blamed(self) -> Blame:
        """The culprits for the wait. The next attempt starts from here: reports about this one do not concern it."""
        busy, since = self._members.busy, self._driver.phase_since
        reports, self._waiting = self._waiting, {}
        return blame(self._journaling.view.chains, self.acks, reports, lambda i: busy.get(i, -1) >= since)
