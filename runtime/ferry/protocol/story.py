"""The last events and effects of a state machine, for finding out why it stopped.

The machine adds events, its executor adds effects; an error that leaves either of them carries the story.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from ferry.contract import messages as m
from ferry.protocol.io import Send, Tick

LENGTH = 64
LINE_MAX = 400
"""Characters of one line: the tables and lists of large jobs are cut."""

HEAD = "its last events and effects:"

_NOISE = frozenset((Tick, m.Pulse, m.Report, m.Begins))


class Story:
    """A ring of the newest events and effects. It keeps objects; their texts are for `str`."""

    def __init__(self) -> None:
        self._last: deque[tuple[int, Any, list[str] | None]] = deque(maxlen=LENGTH)

    def add_event(self, now: int, event: Any) -> None:
        """Remember an event."""
        if type(event) not in _NOISE:
            self._last.append((now, event, None))

    def add_effect(self, now: int, effect: Any) -> None:
        """Remember an effect; a message to many instances counts once."""
        if not isinstance(effect, Send):
            self._last.append((now, effect, None))
        elif self._last and self._last[-1][1] is effect.message and (to := self._last[-1][2]) is not None:
            to.append(effect.to)
        elif type(effect.message) not in _NOISE:
            self._last.append((now, effect.message, [effect.to]))

    def attach(self, error: Exception) -> None:
        """Attach this story to the error, once: a traceback ends with it."""
        if not any(note.startswith(HEAD) for note in getattr(error, "__notes__", ())):
            error.add_note(f"{HEAD}\n{self}")

    def __str__(self) -> str:
        lines = []
        for now, what, to in self._last:
            who = f"to {to[0]}{f' and {len(to) - 1} more' if len(to) > 1 else ''}: " if to else ""
            lines.append(f"{now:10} {who}{short(what)}")
        return "\n".join(lines)


def short(what: Any) -> str:
    """A line for people."""
    text = str(what)[: 8 * LINE_MAX]
    for word in ("step=", "attempt=", "Step", "Attempt", "InstanceId", "vnodes=", "epoch=", "operator="):
        text = text.replace(word, "")
    return text.replace("generation=", "g").replace("number=", "")[:LINE_MAX]
