"""Messages of a newer table than the installed one: they wait until that table comes."""

from __future__ import annotations

from ferry.contract import messages as m
from ferry.contract.names import InstanceId, Step

WAITING = 256
"""Largest number of waiting messages; a lost one is sent again with the next attempt."""


class EarlyMessages:
    """Messages in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: list[m.Prepare | m.Delta | m.Fetch] = []

    def keep(self, message: m.Prepare | m.Delta) -> None:
        """Keep a message until its table comes, and drop messages of older tables."""
        newer = [w for w in self._waiting if w.version >= message.version]
        self._waiting = [*newer, message][-WAITING:]

    def keep_fetch(self, fetch: m.Fetch) -> None:
        """Keep a request until its table comes."""
        self._waiting = [*self._waiting, fetch][-WAITING:]

    def take(self) -> list[m.Prepare | m.Delta | m.Fetch]:
        """A table has come: take all messages, to be handled again."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def step_committed(self, step: Step) -> None:
        """The bodies of its deltas are deleted with the log: a waiting copy for a learner then shows as a gap."""
        self._waiting = [w for w in self._waiting if not isinstance(w, m.Delta) or w.step > step]

    def peer_lost(self, peer: InstanceId) -> None:
        """The peer's next life asks again."""
        self._waiting = [w for w in self._waiting if not isinstance(w, m.Fetch) or w.learner != peer]
