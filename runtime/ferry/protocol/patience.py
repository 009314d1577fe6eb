"""What is done about an attempt that does not end: whoever keeps it waiting is found, named and worked around.

Pulse     who is waited for is at work        patience begins anew: slow is not dead
Waiting   two instances are apart             another helper, another leader, or a chain without the replica
          a replica is late, all else done    it becomes a learner, and only it
nothing helps for `apart_ms`                  Halt, with the names
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from ferry.contract import messages as m
from ferry.contract.names import Attempt, InstanceId, Step
from ferry.protocol.around import Blame, Pair, around, blame, pair
from ferry.protocol.bars import Bar
from ferry.protocol.coordinator_io import Ingested, Note, Phase
from ferry.protocol.moves import Moves
from ferry.protocol.sending import Send


class Patience(Moves):
    """How long an attempt may take, and who is to blame."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.ingested: Ingested | None = None
        self.helping: Mapping[InstanceId, object] = {}
        """Who has winning fragments of it."""
        self.trying = False
        """An attempt of `ingested` was begun."""
        self.deadlines = 0
        """How many attempts of it were given up in a row."""
        self.waiting: dict[InstanceId, m.Waiting] = {}
        """How far the instances are with the attempt under way, when it takes long."""
        self.apart: dict[Pair, Bar] = {}
        """Pairs that could not reach each other; they are kept apart for a while."""
        self.helpless: int | None = None
        """Since when the step under way fails because of instances that are apart, and no other pair is found."""
        self.found_apart: set[Pair] = set()
        """The pairs that it has failed because of."""

    # ---- who is there
    def _are_apart(self, a: InstanceId, b: InstanceId) -> bool:
        bar = self.apart.get(pair(a, b)) if self.apart else None
        return bar is not None and self.now < bar.until

    def _helpers(self) -> tuple[InstanceId, ...]:
        """Those that no leader is apart from, if there are any."""
        every = super()._helpers()
        if not self.apart:
            return every
        return tuple(h for h in every if not any(self._are_apart(h, i) for i in self.view.led)) or every

    def _unusable(self) -> str:
        """Why the winning fragments are of no use any more; empty when they are."""
        if self.ingested is None:
            return ""
        if not self.helping.keys() <= self.alive.keys():
            return "a helper with winning fragments is gone"
        if self.apart and not self.helping.keys() <= set(usable := self._helpers()):
            cut = [
                f"{h} and {i}" for h in self.helping if h not in usable for i in self.view.led if self._are_apart(h, i)
            ]
            return f"{', '.join(cut[:4])} cannot reach each other" if cut else ""
        return ""

    def _led_in_peace(self, instance: InstanceId) -> bool:
        return not any(instance in found and self.now < bar.until for found, bar in self.apart.items())

    # ---- what they say
    def _on_pulse(self, event: m.Pulse) -> None:
        if event.instance in self.asked:
            self.heard[event.instance] = self.now
            if event.busy_ms:
                self.busy[event.instance] = self.now
        if event.busy_ms and self.rules.slow_lives and self._works_on_it(event.instance):
            self.phase_since = self.now

    def _on_waiting(self, event: m.Waiting) -> None:
        if self._is_now(event.step, event.attempt):
            self.waiting[event.instance] = event

    def _on_unsendable(self, event: m.Unsendable) -> None:
        self._halt("failed", f"instance {event.instance} cannot send to {event.peer}: {event.reason}")

    def _works_on_it(self, instance: InstanceId) -> bool:
        """Whether the attempt waits for what this instance has to compute, and not for a message to arrive."""
        if self.phase is not Phase.PREPARE or not self.trying or self.ingested is None or instance not in self.alive:
            return False
        mine = [chain for chain in self.view.chains if chain[0] == instance and chain not in self.acks]
        told = self.waiting.get(instance)
        if told is None:
            return bool(mine) or instance in self.helping
        return not told.unheard and any(chain not in told.logged for chain in mine)

    # ---- an attempt that does not end
    def _attempt_is_late(self) -> bool:
        waited = self.now - self.phase_since
        return (
            self.phase is Phase.PREPARE and self.trying and waited > self.settings.attempt_ms << min(self.deadlines, 4)
        )

    def _attempt_failed(self) -> None:
        """Try again; from the second time on without whoever keeps it waiting."""
        self.deadlines += 1
        if self.deadlines >= 2 and self.rules.work_around and self._work_around():
            return
        for i in sorted(self.alive):
            self._do(Send(i, m.Install(self.table)))
        self._prepare()

    def _work_around(self) -> bool:
        """Whether something else was begun than the same attempt once more."""
        blamed = blame(self.view.chains, self.acks, self.waiting, lambda i: self.busy.get(i, -1) >= self.phase_since)
        if blamed.apart and self._nothing_helps(blamed):
            return True
        for found in blamed.apart:
            self._keep_apart(found)
        # The next attempt starts from here: nothing that was told of this one is about it.
        self.waiting = {}
        helpers = super()._helpers()
        groups, changes = around(self.table.groups, helpers, self.alive, self._are_apart, blamed.slow, self.generation)
        if changes and self.journal_up:
            for i in sorted({c.instance: True for c in changes if c.kind == "removed"}):
                left = [c.vnode for c in changes if c.kind == "removed" and c.instance == i]
                self.refuse(i, left, "it cannot be reached by its leader")
            self._enter(Phase.PREPARE)
            self._journal(self._next(groups), tuple(changes))
            return True
        if why := self._unusable():
            self._again(why)
            return True
        return False

    def _nothing_helps(self, blamed: Blame) -> bool:
        """Whether this step fails for so long because of instances that are apart that the job is stopped."""
        if self.helpless is None or not self.found_apart.issuperset(blamed.apart):
            self.helpless = self.now
            self.found_apart.update(blamed.apart)
        if self.now - self.helpless < self.settings.apart_ms:
            return False
        names = ", ".join(f"{a} and {b}" for a, b in sorted(blamed.apart))
        self._halt(
            "failed",
            f"{names} cannot reach each other, and no other leader or helper has helped for "
            f"{self.settings.apart_ms / 1000:.0f} s: mend the network between them",
        )
        return True

    def _keep_apart(self, found: Pair) -> None:
        if self._are_apart(*found):
            return
        bar = Bar.after(self.apart.get(found), self.now, self.settings.retry_ms, self.settings.retry_max_ms)
        self.apart[found] = bar
        text = f"{found[0]} and {found[1]} cannot reach each other: kept apart for {bar.wait / 1000:g} s"
        self._do(Note("apart", self.step_now, text=text))

    # ---- what the epoch does
    @abstractmethod
    def _is_now(self, step: Step, attempt: Attempt) -> bool:
        """Whether it is the attempt under way."""

    @abstractmethod
    def _prepare(self) -> None:
        """Begin an attempt under the present table."""

    @abstractmethod
    def _again(self, why: str) -> None:
        """Run the ingest of the step under way again."""
