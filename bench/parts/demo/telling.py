"""Tells on the terminal what happens to a job on a cluster: lines with their times, and one line that changes.

It is given what was seen. Must never ask the cluster anything itself.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

Document = Mapping[str, Any]


class Teller:
    """Tells what is new since the last look."""

    def __init__(self, console: Console) -> None:
        self.console, self.line = console, console.status("")
        self._began = time.monotonic()
        self._before: Document = {}
        self._pods: dict[str, str] = {}

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    def say(self, text: str, style: str = "") -> None:
        """A line of its own."""
        self.console.print(Text(f"{self.seconds:6.1f} s  ", style="dim") + Text(text, style=style), soft_wrap=True)

    def command(self, text: str) -> None:
        """What a user would type."""
        self.say(f"$ {text}", "bold cyan")

    def forget(self, pod: str) -> None:
        """This pod was taken away."""
        self._pods.pop(pod, None)

    def look(self, status: Document, found: Sequence[Document]) -> None:
        """A job's status, and its pods."""
        before, self._before = self._before, status
        pods = {pod["metadata"]["name"]: state(pod) for pod in found}
        for name, what in pods.items():
            if self._pods.get(name) != what:
                self.say(f"pod {name} {what}")
        for name in self._pods.keys() - pods.keys():
            self.say(f"pod {name} is gone; it held nothing any more", "cyan")
        self._pods = pods
        if status.get("phase") != before.get("phase") and status.get("phase"):
            self.say(f"phase: {status['phase']}")
        if status.get("moving") and not before.get("moving"):
            self.say(f"{status['moving']} of the virtual nodes are on their way", "yellow")
        words = [f"epoch {status.get('epoch', '-')}", f"{status.get('rows') or 0:,} records"]
        words += [f"{status.get('workers', 0)} workers own {status.get('state') or 'no'} state"]
        words += [f"{status['moving']} virtual nodes move"] if status.get("moving") else []
        self.line.update(", ".join(words))


def state(pod: Document) -> str:
    """How a pod fares, in a few words."""
    where, phase = pod["spec"].get("nodeName"), pod["status"].get("phase", "Pending")
    if pod["metadata"].get("deletionTimestamp"):
        return "is being deleted"
    if phase in ("Succeeded", "Failed"):
        return "has ended" if phase == "Succeeded" else "has failed"
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))
    if ready:
        return f"is ready on {where}"
    return f"{'runs' if phase == 'Running' else 'starts'} on {where}" if where else "is made"
