"""The roll: what one process knows of the registrations, kept up by their changes."""

from __future__ import annotations

from typing import Protocol

from ferry.contract.errors import Unreachable
from ferry.contract.places import Registration
from ferry.registry.registry import Changes


class Source(Protocol):
    """The registry, as far as the roll needs it."""

    def changes(self, known: int) -> Changes:
        """See JobRegistry.changes."""


class Roll:
    """Registrations by instance. After Redis was away it is read as a whole: what was written last may be lost."""

    def __init__(self, registry: Source) -> None:
        self._registry = registry
        self._known = 0
        self.entries: dict[str, Registration] = {}
        """Replaced as a whole, so that any thread may read it."""

    def look(self) -> None:
        """Take in what has changed. Raises Unreachable."""
        try:
            found = self._registry.changes(self._known)
        except Unreachable:
            self._known = 0
            raise
        self._known = found.number
        if found.whole or found.entries:
            entries = {**({} if found.whole else self.entries), **found.entries}
            self.entries = {instance: entry for instance, entry in entries.items() if entry is not None}
