"""A table top: one coordinator and some instances, no clock, no network; messages are delivered at once, in order.

Each story says what it is about; `Top` only plays it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from ferry.contract import messages as m
from ferry.contract.names import CommitId, Fragment, InstanceId, Term
from ferry.contract.routing import Group, Table, Version
from ferry.protocol import coordinator as c
from ferry.protocol import instance as i

A, B, C = InstanceId("0.0"), InstanceId("1.0"), InstanceId("2.0")


class Top:
    """Delivers everything at once; `stop` names types of the driver's messages that are kept back.

    `deaf` holds (instance, type): messages of members and driver that never arrive there; `apart` pairs of members between
    which nothing does.
    """

    def __init__(
        self,
        groups: list[tuple[InstanceId, ...]],
        instances: tuple[InstanceId, ...],
        settings: c.CoordinatorSettings | None = None,
        restore: m.Commit | None = None,
    ) -> None:
        """`restore`: the job begins with this; whoever has to load it has done so at once."""
        self.restore = restore
        self.settings = settings or c.CoordinatorSettings()
        made, origin = tuple(Group(Term(0, 0), g) for g in groups), restore.origin if restore is not None else ""
        self.initial = Table(Version(0, 0), made, initial=True, origin=origin)
        self.journal: Table | None = None
        self.members: dict[InstanceId, i.Instance] = {x: i.Instance(x, i.InstanceRecord()) for x in instances}
        self.done: list[Any] = []
        self.stop: tuple[type, ...] = ()
        self.deaf: set[tuple[InstanceId, type]] = set()
        self.apart: set[frozenset[InstanceId]] = set()
        self.waiting: list[tuple[InstanceId, m.Chunk]] = []
        """What learners are told when windows have ended."""
        self._queue: deque[Callable[[], None]] = deque()
        self.driver = self.new_driver()

    def new_driver(self) -> c.Coordinator:
        self.driver = c.Coordinator(self.settings, self.initial, self.journal, restore=self.restore)
        self.obey(self.driver.start())
        for x in self.members:
            self.tell(c.Connected(x))
        return self.driver

    def tell(self, event: c.Event) -> None:
        self._deliver(lambda: self.obey(self.driver.step(event)))

    def give(self, to: InstanceId, event: i.Event) -> None:
        if to in self.members and (to, type(event)) not in self.deaf:
            self._deliver(lambda: self.follow(to, self.members[to].step(event)))

    def _deliver(self, what: Callable[[], None]) -> None:
        """One after the other, in the order in which they were sent."""
        self._queue.append(what)
        if len(self._queue) == 1:
            while self._queue:
                self._queue[0]()
                self._queue.popleft()

    def obey(self, effects: list[c.Effect]) -> None:
        for effect in effects:
            match effect:
                case c.Send(to, message):
                    self.done.append((to, message))
                    if not isinstance(message, self.stop):
                        self.give(to, message)
                case c.Journal(table, _):
                    self.journal = table
                    self.tell(c.Journaled(table.version))
                case _:
                    self.done.append(effect)

    def follow(self, me: InstanceId, effects: list[i.Effect]) -> None:
        for effect in effects:
            match effect:
                case i.Send(to, message) if to == i.DRIVER:
                    self.tell(message)
                case i.Send(to, message) | i.SendDelta(to, message):
                    if frozenset((me, to)) not in self.apart:
                        self.give(to, message)
                case i.Contribute(prepare, _, leaders):
                    for leader, _ in leaders:
                        if frozenset((me, leader)) not in self.apart:
                            self.give(leader, m.Partials(prepare.step, prepare.attempt, me))
                case i.Compute(prepare, _, chains):
                    self.give(me, i.Computed(prepare.step, prepare.attempt, tuple((x, v, 0, 1) for x, v in chains)))
                case i.BeginSnapshot(learner, session, _, base, at_window):
                    self.give(learner, m.Chunk(me, session, 0, base, not at_window, 0, 0))
                    if at_window:
                        self.waiting.append((learner, m.Chunk(me, session, 1, base, True, 0, 0)))
                case i.Restore(commit):
                    self.done.append((me, effect))
                    self.give(me, i.Restored(commit))
                case _:
                    self.done.append((me, effect))

    def crash(self, x: InstanceId) -> i.Instance:
        """Ends an instance; its commit record and its log stay."""
        gone = self.members.pop(x)
        self.tell(c.Lost(x, "it crashed"))
        return gone

    def back(self, x: InstanceId, files: i.Instance) -> None:
        deltas = tuple(d for entries in files.log.by_commit_id.values() for d in entries)
        self.members[x] = i.Instance(x, files.saved, deltas)
        self.follow(x, self.members[x].start())
        self.tell(c.Connected(x))

    def wait(self, milliseconds: int, pulses: Mapping[InstanceId, int] | None = None) -> None:
        """Time goes by, for all of them; each second everybody says that he lives, and `pulses` for how long he is busy."""
        begin = self.driver.now
        for now in [*range(begin + 1000, begin + milliseconds, 1000), begin + milliseconds]:
            for x in list(self.members):
                self.give(x, i.Tick(now))
            for x, busy in {**dict.fromkeys(self.members, 0), **(pulses or {})}.items():
                self.tell(m.Pulse(x, busy))
            self.tell(c.Tick(now))

    def ingest(self, epoch: int, helper: InstanceId = A) -> None:
        """Spark begins an epoch and runs its ingest job once."""
        self.tell(c.EpochBegun(epoch))
        self.ingested(helper)

    def ingested(self, helper: InstanceId) -> None:
        run = self.last(c.StartIngest)
        fragment = Fragment(run.step, self.driver.generation, run.run, 0)
        self.give(helper, i.Staged(fragment))
        self.tell(c.Ingested(run.step, run.run, ((helper, (fragment,)),), 10 * run.step.epoch, b"notes"))

    def epoch(self, epoch: int) -> None:
        self.epoch_by(epoch, A)

    def epoch_by(self, epoch: int, helper: InstanceId) -> None:
        self.ingest(epoch, helper)
        self.tell(c.EpochEnded(epoch))

    def end_windows(self) -> None:
        """All that leaders had when learners began is over."""
        waiting, self.waiting = self.waiting, []
        for learner, chunk in waiting:
            self.give(learner, chunk)

    def last(self, kind: type) -> Any:
        return next(x for x in reversed(self.done) if isinstance(x, kind))

    def kinds(self) -> list[str]:
        return [type(x).__name__ for x in self.done if not isinstance(x, tuple)]

    def committed(self) -> dict[InstanceId, CommitId | None]:
        return {x: member.saved.committed for x, member in self.members.items()}
