"""The common state of an instance's parts: commit record, generation, table, time, effects.

Must never decide which step is committed, nor know a part.
"""

from __future__ import annotations

from typing import Any

from ferry.contract import messages as m
from ferry.contract.names import InstanceId, Step
from ferry.protocol.instance.io import DRIVER, Effect, InstanceRecord, Save
from ferry.protocol.io import Send
from ferry.protocol.rules import Rules
from ferry.protocol.steps import successor
from ferry.protocol.view import TableView


class InstanceState:
    """One instance, as every part sees it."""

    def __init__(self, me: InstanceId, saved: InstanceRecord, rules: Rules) -> None:
        self.me = me
        self.rules = rules
        self.saved = saved if rules.programs_recorded else saved.changed(programs=saved.programs[:1])
        self.view: TableView | None = None
        """The installed table."""
        self.now = 0
        self._effects: list[Effect] = []

    @property
    def leads(self) -> bool:
        """Whether it leads a virtual node."""
        return self.view is not None and self.me in self.view.led

    def follows(self, step: Step) -> bool:
        """A step is prepared and applied only directly after the previous one."""
        committed = self.saved.committed
        return committed is None or successor(committed.step, self.saved.programs) == step

    # ---- effects
    def do(self, effect: Effect) -> None:
        """One more effect of this event."""
        self._effects.append(effect)

    def tell(self, message: m.Message) -> None:
        """Send a message to the driver."""
        self._effects.append(Send(DRIVER, message))

    def take_effects(self) -> list[Effect]:
        """The effects since the last call."""
        effects, self._effects = self._effects, []
        return effects

    # ---- the commit record
    def save(self, **changes: Any) -> None:
        """Change the commit record, which is read after a crash."""
        self.saved = self.saved.changed(**changes)
        self.do(Save(self.saved))

    def begin_anew(self, released: int = -1, origin: str | None = None, holds: tuple[int, ...] = ()) -> None:
        """Hold no copy; the generation that it obeys stays, and the life of the job.

        `holds`: virtual nodes that will be loaded.
        """
        self.saved = InstanceRecord(
            self.saved.generation,
            released=released,
            origin=self.saved.origin if origin is None else origin,
            holds=holds,
            programs=self.saved.programs,
        )
        self.do(Save(self.saved))

    # ---- fences
    def superseded(self, generation: int) -> bool:
        """Refuse a lower generation."""
        if generation < self.saved.generation:
            self.tell(m.Refused(self.me, self.saved.generation))
            return True
        return False

    def obeys_newer(self, generation: int) -> bool:
        """Remember a higher generation; returns whether it is one."""
        if generation > self.saved.generation:
            self.save(generation=generation)
            return True
        return False
