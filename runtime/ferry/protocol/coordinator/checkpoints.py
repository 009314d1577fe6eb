"""Durable checkpoints: when the leaders write one, and whether it is complete.

    TakeCheckpoint --> [the epoch is final, the next one not begun] Freeze to all leaders --> Checkpointed by all
                   --> Publish (the manifest) --> Published

The loss of a leader loses its part: the checkpoint begins again after the next epoch. No epoch waits for a checkpoint,
unless the job is to be suspended.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ferry.contract import messages as m
from ferry.contract.names import CommitId, InstanceId
from ferry.contract.programs import ProgramVersion, program_at
from ferry.contract.results import Results
from ferry.contract.routing import Version
from ferry.protocol.coordinator.commits import Commits
from ferry.protocol.coordinator.io import Publish, Published, TakeCheckpoint
from ferry.protocol.coordinator.journaling import Journaling
from ferry.protocol.coordinator.membership import Membership
from ferry.protocol.coordinator.state import DriverState

AGAIN_MS = 500
"""Delay before the leaders get another Freeze, after one of them was not ready."""


@dataclass(slots=True)
class WrittenByLeaders:
    """A checkpoint that leaders write."""

    number: int
    version: Version
    commit_id: CommitId
    results: Results
    meta: bytes
    program: ProgramVersion
    waiting: dict[InstanceId, bool]
    chains: list[bytes] = field(default_factory=list)

    def asked_for(self, event: m.Checkpointed, exactly: bool) -> bool:
        """Whether this answers the present Freeze: one with its number may have been abandoned, or be another
        driver's."""
        same = (event.version, event.epoch) == (self.version, self.commit_id.step.epoch) or not exactly
        return same and event.number == self.number and event.instance in self.waiting


class Checkpointing:
    """The requested checkpoint, and the one under way."""

    def __init__(self, driver: DriverState, journaling: Journaling, members: Membership, commits: Commits) -> None:
        self._driver = driver
        self._journaling = journaling
        self._members = members
        self._commits = commits
        self.wanted: TakeCheckpoint | None = None
        self.under_way: WrittenByLeaders | None = None
        self._again_at = 0
        """Earliest time of the next Freeze."""
        self._final: CommitId | None = None
        """The last step before the epoch that Spark has begun."""

    @property
    def holds(self) -> bool:
        """Whether epochs are held back: a checkpoint has to be written, then the job is suspended."""
        return self.wanted is not None and self.wanted.hold and self._commits.committed is not None

    def want(self, event: TakeCheckpoint) -> None:
        """Request a checkpoint at the next boundary. It replaces a request that has not begun."""
        if self.under_way is None or event.hold:
            self.wanted = event
            if not self._driver.rules.boundary:
                self.begin()

    def epoch_begun(self) -> None:
        """The last committed epoch is final, and the next one has done nothing."""
        self._final = self._commits.committed
        self.begin()

    def begin(self) -> None:
        """Begin the requested checkpoint, if now is the time."""
        committed, view = self._commits.committed, self._journaling.view
        if self.wanted is None or self.under_way is not None or committed is None:
            return
        if committed != self._final and self._driver.rules.boundary:
            return
        if self._driver.now < self._again_at or self._journaling.writing is not None:
            return
        if any(i not in self._members.alive for i in view.led):
            return
        number, version = self.wanted.number, self._journaling.table.version
        meta, results = self._commits.meta, self._commits.results
        program = program_at(self._journaling.table.programs, committed.step.epoch)
        waiting = dict.fromkeys(view.led, True)
        self.under_way = WrittenByLeaders(number, version, committed, results, meta, program, waiting)
        for i in view.led:
            self._driver.send(i, m.Freeze(number, version, committed.step.epoch, self.wanted.anew))

    def written(self, event: m.Checkpointed) -> None:
        """A leader has written its part; the last part completes the checkpoint."""
        now = self.under_way
        if now is None or not now.asked_for(event, self._driver.rules.written_for_it):
            return
        if not event.chains:
            # The leader has not read all of its state yet, or has missed a table: while no epoch begins no other
            # message brings it.
            self._driver.send(event.instance, m.Install(self._journaling.table))
            self.under_way, self._again_at = None, self._driver.now + AGAIN_MS
            return
        del now.waiting[event.instance]
        now.chains.append(event.chains)
        if not now.waiting:
            chains = tuple(now.chains)
            self._driver.do(Publish(now.number, now.commit_id, now.results, now.meta, chains, now.program))

    def forget(self, instance: InstanceId) -> None:
        """The instance's next life does not know the part that this life has written."""
        if self.under_way is not None and instance in self.under_way.waiting:
            self._driver.note("checkpoint-again", f"{self.under_way.number}: {instance} was lost")
            self.under_way = None

    def published(self, event: Published) -> None:
        """The manifest is written, or cannot be: a new request has to come."""
        if self.under_way is not None and self.under_way.number == event.number:
            self.under_way = None
            if self.wanted is not None and self.wanted.number == event.number and not (event.reason and self.holds):
                self.wanted = None
