"""What the parts of an instance have in common: its commit record, whom it obeys, its table, the time, and its effects.

Must never decide what is committed, nor know a part.
"""

from __future__ import annotations

from typing import Any

from ferry.contract import messages as m
from ferry.contract.names import InstanceId, Step
from ferry.protocol.instance.io import DRIVER, Effect, Save, Saved
from ferry.protocol.io import Send
from ferry.protocol.rules import Rules
from ferry.protocol.steps import successor
from ferry.protocol.view import TableView


class InstanceState:
    """One instance, in the eyes of every part."""

    def __init__(self, me: InstanceId, operators: int, saved: Saved, rules: Rules) -> None:
        self.me = me
        self.operators = operators
        self.rules = rules
        self.saved = saved
        self.view: TableView | None = None
        """The table that is installed here."""
        self.now = 0
        self._effects: list[Effect] = []

    @property
    def leads(self) -> bool:
        """Whether it is the leader of something."""
        return self.view is not None and self.me in self.view.led

    def follows(self, step: Step) -> bool:
        """A step is prepared and applied only on top of the one before it."""
        committed = self.saved.committed
        return committed is None or successor(committed.step, self.operators) == step

    # ---- effects
    def do(self, effect: Effect) -> None:
        """One more effect of this event."""
        self._effects.append(effect)

    def tell(self, message: m.Message) -> None:
        """A message for the driver."""
        self._effects.append(Send(DRIVER, message))

    def take_effects(self) -> list[Effect]:
        """The effects since the last call."""
        effects, self._effects = self._effects, []
        return effects

    # ---- the commit record
    def save(self, **changes: Any) -> None:
        """Change the commit record, and what will be found after a crash."""
        self.saved = self.saved.changed(**changes)
        self.do(Save(self.saved))

    def begin_anew(self, released: int = -1, origin: str | None = None, holds: tuple[int, ...] = ()) -> None:
        """Be no copy of anything; whom it obeys it knows all the same, and in which life of the job it is.

        `holds`: what will be loaded.
        """
        self.saved = Saved(
            self.saved.generation,
            released=released,
            origin=self.saved.origin if origin is None else origin,
            holds=holds,
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
        """Remember a higher generation; whether it is one."""
        if generation > self.saved.generation:
            self.save(generation=generation)
            return True
        return False
