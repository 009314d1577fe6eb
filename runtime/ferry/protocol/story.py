"""The last things that a state machine was told and has done, for whoever has to find out why it stopped."""

from __future__ import annotations

from collections import deque
from typing import Any

from ferry.contract import messages as m
from ferry.protocol.instance_io import Tick

LENGTH = 64
LINE_MAX = 400
"""Characters of one line: the tables and lists of large jobs are cut."""

_NOISE = (Tick, m.Pulse, m.Report, m.Begins)


class Story:
    """A ring of events and effects. Adding is cheap, for it is done for every one; words are made when they are read."""

    def __init__(self) -> None:
        self._last: deque[tuple[int, Any, list[str]]] = deque(maxlen=LENGTH)

    def add(self, now: int, what: Any) -> None:
        """Remember it; what is sent to many counts once."""
        if isinstance(what, _NOISE):
            return
        to: list[str] = []
        message = getattr(what, "message", None)
        if message is not None:
            if self._last and self._last[-1][1] is message:
                self._last[-1][2].append(what.to)
                return
            what, to = message, [what.to]
        self._last.append((now, what, to))

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
