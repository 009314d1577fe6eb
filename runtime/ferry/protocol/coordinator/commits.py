"""The committed step, and the Commit that every member has to apply: no other outcome of that step is possible any
more."""

from __future__ import annotations

from collections.abc import Iterable

from ferry.contract import messages as m
from ferry.contract.errors import Bug
from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.names import CommitId, InstanceId, Step
from ferry.contract.programs import Programs, operator_id, program_at
from ferry.contract.results import Results, StepResult, result_of
from ferry.protocol.coordinator.io import FiredRows, Phase
from ferry.protocol.coordinator.journaling import Journaling
from ferry.protocol.coordinator.membership import Membership
from ferry.protocol.coordinator.state import DriverState
from ferry.protocol.steps import step_of, successor


class Commits:
    """The last committed step, and the members that have applied the Commit under way."""

    def __init__(self, driver: DriverState, journaling: Journaling, members: Membership) -> None:
        self._driver = driver
        self._journaling = journaling
        self._members = members
        self.committed: CommitId | None = None
        self.results: Results = ()
        """As of the committed step."""
        self.meta = b""
        self.readable = True
        """Whether the fired rows of the committed epoch still exist; a member may have released them."""
        self.under_way: m.Commit | None = None
        self._applied: dict[InstanceId, bool] = {}
        """Instances that have applied it."""

    def adopt(self, commit_id: CommitId, source: m.Answer, applied: Iterable[InstanceId]) -> None:
        """Adopt a step that was committed under the previous driver, and finish it everywhere."""
        self._applied = dict.fromkeys(applied, True)
        self.committed = commit_id
        self.results, self.meta = source.results, source.meta
        if not self._driver.rules.watermark_adopt:
            self.results = tuple(result._replace(high=WATERMARK_NONE) for result in source.results)
        self.under_way = m.Commit(commit_id, self._driver.generation, source.results, source.meta)

    def restore(self, commit: m.Commit) -> None:
        """The job begins with a checkpoint: its step is committed once all members have loaded it."""
        self._applied = {}
        self.committed, self.results, self.meta = commit.commit_id, commit.results, commit.meta
        self.under_way = commit

    def begin(self, commit: m.Commit) -> None:
        """Every chain has logged it: the step is decided."""
        self.under_way = commit
        self._applied = {}
        self._driver.enter(Phase.COMMIT)
        self.send()

    def send_last(self) -> None:
        """An epoch waits for copies: learners need the leaders' committed step, and otherwise get it with the next
        Commit."""
        assert self.committed is not None
        if self._driver.phase is Phase.HOLD:
            return
        self.under_way = m.Commit(self.committed, self._driver.generation, self.results, self.meta)
        self._applied = {}
        self._driver.enter(Phase.HOLD)
        self.send()

    def end(self) -> None:
        """No member has to apply it any more: all have, or another step has begun."""
        self.under_way = None

    def forget(self, instance: InstanceId) -> None:
        """The instance's next life may lack its files."""
        self._applied.pop(instance, None)

    def send(self) -> None:
        """Send the Commit to every member that has not applied it."""
        if self.under_way is not None:
            for i in self._waited_for():
                self._driver.send(i, self.under_way)

    def send_again(self) -> None:
        """Send it again, and the table: either may be lost."""
        for i in self._waited_for():
            self._driver.send(i, m.Install(self._journaling.table))
        self.send()

    def _waited_for(self) -> list[InstanceId]:
        alive = self._members.alive
        return [i for i in self._journaling.view.members if i in alive and i not in self._applied]

    def was_applied(self, event: m.Committed) -> None:
        """An instance has applied it."""
        if (
            self.under_way is not None
            and event.commit_id == self.under_way.commit_id
            and event.instance in self._members.alive
        ):
            self._applied[event.instance] = True
            self._members.went_on(event.instance)

    def all_applied(self) -> bool:
        """Whether every in-sync member has applied it."""
        if self.under_way is None:
            return True
        view = self._journaling.view
        return (view.held if self._driver.rules.all_committed else view.led).keys() <= self._applied.keys()

    def finish(self) -> None:
        """All have applied it: its step is the committed one."""
        c = self.under_way
        assert c is not None
        if self.committed is not None and c.commit_id.step <= self.committed.step:
            raise Bug(f"{c.commit_id} is committed after {self.committed}")
        self.committed = c.commit_id
        self.results, self.meta, self.readable = c.results, c.meta, True

    @property
    def programs(self) -> Programs:
        """The programs of the table in force."""
        return self._journaling.table.programs

    def operator_of(self, step: Step) -> int:
        """The id of a step's operator."""
        return operator_id(self.programs, step) if self._driver.rules.results_by_id else step.operator

    def result_before(self, step: Step) -> StepResult:
        """The last result of a step's operator."""
        return result_of(self.results, self.operator_of(step), self.programs)

    @property
    def at(self) -> Step:
        """The committed step, or the one before the first."""
        return step_of(self.committed, self.programs)

    @property
    def following(self) -> Step:
        """The step after the committed one."""
        return successor(self.at, self.programs)

    # ---- input of other parts
    @property
    def target(self) -> CommitId | None:
        """The commit id that a returning member must have committed or logged."""
        commit = self._finishing()
        return commit.commit_id if commit is not None else self.committed

    def _finishing(self) -> m.Commit | None:
        return self.under_way if self._driver.phase in (Phase.COMMIT, Phase.FINISH) else None

    def tell(self, answer: m.Answer) -> None:
        """Bring an admitted instance up to the committed step."""
        i, is_held = answer.instance, answer.instance in self._journaling.view.held
        commit = self._finishing()
        if commit is not None:
            if answer.committed == commit.commit_id:
                self._applied[i] = True
            elif is_held:
                self._driver.send(i, commit)
        elif self.committed is not None and answer.committed != self.committed and is_held:
            # No instance finishes that step any more: the member's files are older, and its log has the missing deltas.
            generation = self._driver.generation
            self._driver.send(i, m.Commit(self.committed, generation, self.results, self.meta))

    @property
    def late(self) -> int:
        """Late records of the committed step."""
        return self.result_before(self.committed.step).late if self.committed is not None else 0

    @property
    def watermark(self) -> int:
        """The lowest watermark of the operators in force."""
        operators = program_at(self.programs, self.at.epoch).operators
        return min(result_of(self.results, operator, self.programs).high for operator in operators)

    def rows(self) -> tuple[FiredRows, ...]:
        """Rows fired in the epoch of the committed step, by position of the operator."""
        assert self.committed is not None
        readers, generation = tuple(self._journaling.view.led.items()), self._driver.generation
        epoch, last = self.committed.step
        steps = [Step(epoch, position) for position in range(last + 1)]
        return tuple(
            FiredRows(CommitId(step, r.attempt), generation, r.low, r.high, readers, r.fired, r.late)
            for step, r in ((step, self.result_before(step)) for step in steps)
        )
