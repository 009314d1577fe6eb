"""The member cache: one process's copy of the registrations, updated by their changes."""

from __future__ import annotations

from typing import Protocol

from ferry.contract.errors import Unreachable
from ferry.contract.places import Registration
from ferry.registry.registry import Changes


class Source(Protocol):
    """The registry, as far as the cache needs it."""

    def changes(self, known: int) -> Changes:
        """Changes after this change number; as JobRegistry.changes."""


class MemberCache:
    """Registrations by instance. After an outage of Redis all are read again: the last writes may be lost."""

    def __init__(self, registry: Source) -> None:
        self._registry = registry
        self._known = 0
        self.entries: dict[str, Registration] = {}
        """Replaced atomically, so that any thread may read it."""

    def look(self) -> None:
        """Read changes. Raises Unreachable."""
        try:
            changes = self._registry.changes(self._known)
        except Unreachable:
            self._known = 0
            raise
        self._known = changes.number
        if changes.whole or changes.entries:
            entries = {**({} if changes.whole else self.entries), **changes.entries}
            self.entries = {instance: entry for instance, entry in entries.items() if entry is not None}
