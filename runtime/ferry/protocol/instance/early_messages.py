"""Messages of a newer table than the installed one: they wait until that table comes."""

from __future__ import annotations

from ferry.contract import messages as m
from ferry.contract.names import InstanceId, Step

WAITING = 256
"""So many wait; a lost one is sent again with the next attempt."""


class EarlyMessages:
    """In the order in which they came."""

    def __init__(self) -> None:
        self._waiting: list[m.Prepare | m.Delta | m.Fetch] = []

    def keep(self, message: m.Prepare | m.Delta) -> None:
        """It waits for its table, and what is of an older one waits no more."""
        newer = [w for w in self._waiting if w.version >= message.version]
        self._waiting = [*newer, message][-WAITING:]

    def keep_fetch(self, fetch: m.Fetch) -> None:
        """It waits for its table."""
        self._waiting = [*self._waiting, fetch][-WAITING:]

    def take(self) -> list[m.Prepare | m.Delta | m.Fetch]:
        """A table has come: all of them are looked at again."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def step_committed(self, step: Step) -> None:
        """The bodies of its deltas are forgotten with the log: a learner's copy that still waits comes as a gap."""
        self._waiting = [w for w in self._waiting if not isinstance(w, m.Delta) or w.step > step]

    def peer_lost(self, peer: InstanceId) -> None:
        """Its next life asks anew."""
        self._waiting = [w for w in self._waiting if not isinstance(w, m.Fetch) or w.learner != peer]
