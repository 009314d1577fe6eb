"""Durable checkpoints: when the leaders write one, and whether it is whole.

    TakeCheckpoint --> [the epoch is final, the next one not begun] Freeze to all leaders --> Checkpointed by all
                   --> Publish (the manifest) --> Published

A leader that is lost takes its part along: the checkpoint is begun again after the next epoch. Epochs wait for none of it,
unless the job is to be suspended.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ferry.contract import messages as m
from ferry.contract.names import CommitId, InstanceId
from ferry.contract.results import Results
from ferry.contract.routing import Version
from ferry.protocol.coordinator.commits import Commits
from ferry.protocol.coordinator.io import Publish, Published, TakeCheckpoint
from ferry.protocol.coordinator.journaling import Journaling
from ferry.protocol.coordinator.membership import Membership
from ferry.protocol.coordinator.state import DriverState

AGAIN_MS = 500
"""Before leaders are asked again, one of which was not ready."""


@dataclass(slots=True)
class WrittenByLeaders:
    """A checkpoint that the leaders write."""

    number: int
    version: Version
    commit_id: CommitId
    results: Results
    meta: bytes
    waiting: dict[InstanceId, bool]
    chains: list[bytes] = field(default_factory=list)

    def asked_for(self, event: m.Checkpointed, exactly: bool) -> bool:
        """Whether it is an answer to this one: one with its number may have been given up before, or by another driver."""
        same = (event.version, event.epoch) == (self.version, self.commit_id.step.epoch) or not exactly
        return same and event.number == self.number and event.instance in self.waiting


class Checkpointing:
    """What was asked for, and what is under way."""

    def __init__(self, driver: DriverState, journaling: Journaling, members: Membership, commits: Commits) -> None:
        self._driver = driver
        self._journaling = journaling
        self._members = members
        self._commits = commits
        self.wanted: TakeCheckpoint | None = None
        self.under_way: WrittenByLeaders | None = None
        self._again_at = 0
        """Not before that it is begun again."""
        self._final: CommitId | None = None
        """The last step of the epoch before the one that Spark has begun."""

    @property
    def holds(self) -> bool:
        """Whether no epoch may begin any more: there is something to write, and then the job is suspended."""
        return self.wanted is not None and self.wanted.hold and self._commits.committed is not None

    def want(self, event: TakeCheckpoint) -> None:
        """At the next boundary. Another one replaces what was not begun."""
        if self.under_way is None or event.hold:
            self.wanted = event
            if not self._driver.rules.boundary:
                self.begin()

    def epoch_begun(self) -> None:
        """The last committed epoch is final, and nothing of the next one done."""
        self._final = self._commits.committed
        self.begin()

    def begin(self) -> None:
        """Have it written, if somebody wants that, and this is the moment."""
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
        self.under_way = WrittenByLeaders(number, version, committed, results, meta, dict.fromkeys(view.led, True))
        for i in view.led:
            self._driver.send(i, m.Freeze(number, version, committed.step.epoch, self.wanted.anew))

    def written(self, event: m.Checkpointed) -> None:
        """A leader has written its part; the last one makes it whole."""
        now = self.under_way
        if now is None or not now.asked_for(event, self._driver.rules.written_for_it):
            return
        if not event.chains:
            # It has not read all of what it leads yet, or has missed a table: while no epoch begins nothing else would tell.
            self._driver.send(event.instance, m.Install(self._journaling.table))
            self.under_way, self._again_at = None, self._driver.now + AGAIN_MS
            return
        del now.waiting[event.instance]
        now.chains.append(event.chains)
        if not now.waiting:
            self._driver.do(Publish(now.number, now.commit_id, now.results, now.meta, tuple(now.chains)))

    def forget(self, instance: InstanceId) -> None:
        """Its next life does not know what this one has written."""
        if self.under_way is not None and instance in self.under_way.waiting:
            self._driver.note("checkpoint-again", f"{self.under_way.number}: {instance} was lost")
            self.under_way = None

    def published(self, event: Published) -> None:
        """It is one, or could not become one: somebody has to ask again."""
        if self.under_way is not None and self.under_way.number == event.number:
            self.under_way = None
            if self.wanted is not None and self.wanted.number == event.number and not (event.reason and self.holds):
                self.wanted = None
