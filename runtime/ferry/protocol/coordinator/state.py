"""The common state of a coordinator's parts: settings, generation, time, phase, effects.

Must never decide, nor know a part.
"""

from __future__ import annotations

from ferry.contract import messages as m
from ferry.contract.names import InstanceId, Step
from ferry.protocol.coordinator.groups import GroupChange
from ferry.protocol.coordinator.io import CoordinatorSettings, Effect, Halt, Note, Phase
from ferry.protocol.io import Send
from ferry.protocol.rules import Rules


class DriverState:
    """One driver, as every part sees it."""

    def __init__(self, settings: CoordinatorSettings, rules: Rules, generation: int) -> None:
        self.settings = settings
        self.rules = rules
        self.generation = generation
        self.now = 0
        self.phase: str = Phase.JOURNAL
        self.phase_since = 0
        self.step: Step | None = None
        """The step under way, or the last one."""
        self._effects: list[Effect] = []

    @property
    def waited(self) -> int:
        """Milliseconds since this phase or its deadline began."""
        return self.now - self.phase_since

    def enter(self, phase: str) -> None:
        """The next phase begins."""
        self.phase = phase
        self.phase_since = self.now

    def wait_anew(self) -> None:
        """The deadline of this phase begins again."""
        self.phase_since = self.now

    def do(self, effect: Effect) -> None:
        """One more effect of this event."""
        self._effects.append(effect)

    def send(self, to: InstanceId, message: m.Message) -> None:
        """Send a message to an instance."""
        self._effects.append(Send(to, message))

    def note(self, kind: str, text: str = "", changes: tuple[GroupChange, ...] = ()) -> None:
        """Note a fact about the step under way."""
        self._effects.append(Note(kind, self.step, changes, text))

    def halt(self, kind: str, reason: str) -> None:
        """The job cannot go on: no event is taken any more."""
        self._effects.append(Halt(kind, reason))
        self.phase = Phase.STOPPED

    def take_effects(self) -> list[Effect]:
        """The effects since the last call."""
        effects, self._effects = self._effects, []
        return effects
