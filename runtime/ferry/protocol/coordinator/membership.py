"""Membership: instances connected, asked, admitted, silent, failed, gone.

    Connected -> Ask -> Answer -> admitted ... Lost, Failed or silent -> gone -> the groups close over it

Knows instances, and their place in the table; must never know an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ferry.contract import messages as m
from ferry.contract.names import InstanceId
from ferry.protocol.backoff import Backoff
from ferry.protocol.coordinator import groups as g
from ferry.protocol.coordinator.io import Close, Phase
from ferry.protocol.coordinator.journaling import Journaling
from ferry.protocol.coordinator.state import DriverState


@dataclass(frozen=True, slots=True)
class FailedMember:
    """The failure of an instance that could not go on."""

    reason: str
    backoff: Backoff
    """No admission before its end, unless the instance holds state without another copy."""
    since: int | None
    """The first failure in a row; None once it has applied a Commit since."""


class Membership:
    """The instances that this driver knows of."""

    def __init__(self, driver: DriverState, journaling: Journaling) -> None:
        self._driver = driver
        self._journaling = journaling
        self.asked: dict[InstanceId, int] = {}
        """Connected instances, and when the last question was sent."""
        self.answers: dict[InstanceId, m.Answer] = {}
        """Answers of instances that are not admitted yet."""
        self.alive: dict[InstanceId, bool] = {}
        """Admitted instances: they obey this driver."""
        self.admitted: dict[InstanceId, int] = {}
        """Admission times of alive instances."""
        self.forgotten = 0
        """Number of times a live member was forgotten; unchanged = no member has left."""
        self.leaving: dict[InstanceId, bool] = {}
        """Alive instances that are about to end: they help no more."""
        self.gone: dict[InstanceId, int] = {}
        """Lost instances, and since when."""
        self.heard: dict[InstanceId, int] = {}
        """Last sign of life of connected instances."""
        self.busy: dict[InstanceId, int] = {}
        """When an instance last reported that it was busy without a break."""
        self.in_code: dict[InstanceId, tuple[str, int]] = {}
        """Instances that run the user's code: which code, and since when."""
        self.failed: dict[InstanceId, FailedMember] = {}
        """Failed instances, whether they are back or not."""

    # ---- arrival
    def connected(self, instance: InstanceId) -> None:
        """A connection is open. The instance is asked, and counts as lost if it never answers."""
        self.forget(instance)
        self.asked[instance] = self.heard[instance] = self._driver.now
        if self._driver.phase is not Phase.JOURNAL:
            self._ask(instance)

    def ask_all(self) -> None:
        """Ask every connected instance for its state."""
        for i in sorted(self.asked):
            self._ask(i)

    def _ask(self, instance: InstanceId) -> None:
        self.asked[instance] = self._driver.now
        self._driver.send(instance, m.Ask(self._driver.generation))

    def ask_again(self) -> None:
        """Ask again: questions and answers may be lost."""
        now, patience = self._driver.now, self._driver.settings.commit_ms
        for i in sorted(self.asked):
            silent = i not in self.alive and i not in self.answers
            if silent and self._driver.phase is not Phase.JOURNAL and now - self.asked[i] > patience:
                self._ask(i)

    def answered(self, answer: m.Answer) -> bool:
        """Whether this answers the present driver and comes from an instance that waits for admission."""
        mine = answer.generation == self._driver.generation and answer.instance in self.asked
        if not mine or answer.instance in self.alive:
            return False
        self.answers[answer.instance] = answer
        return True

    def admit(self, instance: InstanceId) -> None:
        """The instance obeys this driver."""
        self.answers.pop(instance, None)
        self.alive[instance] = True
        self.admitted[instance] = self._driver.now
        self.gone.pop(instance, None)
        self.heard[instance] = self._driver.now

    def backs_off(self, instance: InstanceId) -> bool:
        """Whether an instance that answered is left out after a failure: it is no member of any group any more."""
        failure = self.failed.get(instance)
        left_out = failure is not None and self._driver.now < failure.backoff.until
        return left_out and instance not in self._journaling.view.held

    @property
    def failing(self) -> dict[InstanceId, None]:
        """Instances that failed at their last try."""
        return {i: None for i, failure in self.failed.items() if failure.since is not None}

    def install(self) -> None:
        """Send the table in force to every instance."""
        for i in sorted(self.alive):
            self._driver.send(i, m.Install(self._journaling.table))

    # ---- life
    def pulsed(self, pulse: m.Pulse) -> None:
        """A sign of life."""
        if pulse.instance in self.asked:
            self.heard[pulse.instance] = self._driver.now
            if pulse.busy_ms:
                self.busy[pulse.instance] = self._driver.now
            if pulse.code:
                self.in_code[pulse.instance] = pulse.code, self._driver.now - pulse.code_ms
            else:
                self.in_code.pop(pulse.instance, None)

    def left(self, instance: InstanceId) -> None:
        """The instance is about to end."""
        if instance in self.alive:
            self.leaving[instance] = True

    def went_on(self, instance: InstanceId) -> None:
        """The instance has applied a Commit: its failures in a row are over."""
        if (failure := self.failed.get(instance)) is not None:
            self.failed[instance] = replace(failure, since=None)

    def is_at_work(self, instance: InstanceId) -> bool:
        """Whether an instance is connected and too busy to answer: slow is not lost."""
        since = self._driver.now - self.busy.get(instance, -1 << 60)
        return self._driver.rules.slow_lives and since <= self._driver.settings.silence_ms

    def helpers(self) -> tuple[InstanceId, ...]:
        """Instances that may take fragments: staying ones if any; among them those known to others already, if any."""
        staying = self.alive.keys() - self.leaving.keys() or self.alive.keys()
        recent = self._driver.now - self._driver.settings.acquaint_ms
        known = [i for i in staying if self.admitted[i] <= recent]
        return tuple(sorted(known or staying))

    # ---- loss
    def forget(self, instance: InstanceId) -> None:
        """Forget this life of the instance."""
        self.forgotten += instance in self.alive
        mine = self.asked, self.answers, self.alive, self.admitted, self.leaving, self.heard, self.busy, self.in_code
        for known in mine:
            known.pop(instance, None)

    def lost(self, instance: InstanceId, reason: str) -> None:
        """The connection closed, or the instance was silent for too long."""
        if instance in self.alive:
            self._driver.note("lost", f"{instance}: {reason}")
        self.forget(instance)
        self.gone.setdefault(instance, self._driver.now)

    def ended(self, instance: InstanceId) -> None:
        """The process of a lost instance has ended, unless a new one has already connected."""
        if instance in self.gone and instance not in self.asked:
            self._lost_at_once(instance, self.gone[instance])

    def _lost_at_once(self, instance: InstanceId, since: int) -> None:
        """No grace period for this instance: it does not return in a moment."""
        self.gone[instance] = min(since, self._driver.now - self._driver.settings.grace_ms)

    def lose_silent(self, before: int) -> list[InstanceId]:
        """Lose instances at a standstill: their connection and their parent's heartbeat go on.

        `before`: when this driver looked last; it may have been at a standstill itself.
        """
        now, silence_ms = self._driver.now, self._driver.settings.silence_ms
        if now - before > silence_ms // 2:
            self.heard = dict.fromkeys(self.heard, now)
        silent = sorted(i for i, at in self.heard.items() if now - at > silence_ms)
        if not self._driver.rules.silent_lost:
            return []
        for i in silent:
            reason = f"it is at a standstill: no message for {silence_ms / 1000:g} s"
            self.lost(i, reason)
            self._lost_at_once(i, self.gone[i])
            self._driver.do(Close(i, reason))
        return silent

    def could_not_go_on(self, event: m.Failed) -> None:
        """A failed instance counts as lost; it stays out for a while, longer with every failure."""
        i, now, settings = event.instance, self._driver.now, self._driver.settings
        before = self.failed.get(i)
        backoff = Backoff.after(before.backoff if before else None, now, settings.backoff_ms, settings.backoff_max_ms)
        since = before.since if before is not None and before.since is not None else now
        self.failed[i] = FailedMember(event.reason, backoff, since)
        self._driver.note("failed", f"{i}: {event.reason}; it is left out for {backoff.wait / 1000:g} s")
        connected = i in self.asked
        self.forget(i)
        if connected:
            self.asked[i] = now  # If it does not end it is asked again.
        self._lost_at_once(i, since)

    def cannot_send(self, event: m.Unsendable) -> None:
        """A message is too large for any connection: the job stops."""
        self._driver.halt("failed", f"instance {event.instance} cannot send to {event.peer}: {event.reason}")

    # ---- groups without lost members
    def away(self) -> list[InstanceId]:
        """Members that were lost, even a moment ago, and are not back."""
        # Runs after every event: its cost must not grow with the number of members.
        view, away = self._journaling.view, sorted(i for i in self.gone if i not in self.alive)
        return [i for i in away if i in view.held or i in view.learned]

    def closed_groups(self) -> g.Regrouped | None:
        """Groups without the lost members; None when they do not change.

        Halts the job when all holders of some state are lost for longer than the deadline.
        """
        driver, table = self._driver, self._journaling.table
        lost: g.Losses = {i: None for i in self.away() if driver.now - self.gone[i] >= driver.settings.grace_ms}
        if not lost:
            return None
        groups, changes, orphans = g.without(table, lost, driver.generation, self.alive)
        if changes:
            return groups, changes
        hopeless = [v for v in orphans if all(map(self._is_overdue, table.groups[v].in_sync))]
        if hopeless:
            self._give_up(hopeless)
        return None

    def _give_up(self, vnodes: list[int]) -> None:
        """Stop the job: no holder of these has come back."""
        groups = self._journaling.table.groups
        holders = sorted({i: True for v in vnodes for i in groups[v].in_sync})
        seconds = f"{self._driver.settings.return_ms / 1000:.0f} s"
        what = f"virtual nodes {vnodes[:8]} (of {len(vnodes)})"
        if failing := [f"{i} ({f.reason})" for i in holders if (f := self.failed.get(i)) and f.since is not None]:
            self._driver.halt("failed", f"{what} are held only by {', '.join(failing[:4])}, which failed for {seconds}")
        else:
            where = f"{what} were held only by {holders[:4]}, gone for {seconds}"
            self._driver.halt("away", f"{where}: start the worker again with its state directory")

    def _is_overdue(self, instance: InstanceId) -> bool:
        """Whether a holder of state is lost for longer than the deadline."""
        away = instance not in self.alive and not self.is_at_work(instance)
        now = self._driver.now
        return away and now - self.gone.get(instance, now) >= self._driver.settings.return_ms
