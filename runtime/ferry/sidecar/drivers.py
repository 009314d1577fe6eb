"""Which drivers are connected, and which of them a message is for.

After a takeover the old driver may still be connected, unaware: an answer belongs to the one that asked, a report about an
attempt to the one whose attempt it is, a refusal to everyone that is superseded, all else to the newest.
"""

from __future__ import annotations

from ferry.contract import messages as m
from ferry.contract.errors import Refusal
from ferry.contract.names import driver_generation
from ferry.contract.prepares import whole
from ferry.contract.routing import Table
from ferry.protocol.view import seen


class Drivers:
    """Connected drivers by peer name. Replaced as a whole on every change, so that any thread may read it."""

    def __init__(self) -> None:
        self._generations: dict[str, int] = {}
        self._tables: dict[str, Table] = {}
        """What each driver has sent last over its present connection; touched by that connection's thread only."""

    def opened(self, peer: str) -> None:
        """A channel to a peer opened."""
        generation = driver_generation(peer)
        if generation is not None:
            self._generations = {**self._generations, peer: generation}
            self._tables.pop(peer, None)

    def closed(self, peer: str) -> bool:
        """A channel to a peer closed; whether it was a driver's."""
        known = peer in self._generations
        self._generations = {p: g for p, g in self._generations.items() if p != peer}
        self._tables.pop(peer, None)
        return known

    def installs(self, peer: str, message: m.Install | m.Amend) -> m.Install:
        """The whole table that a driver means. Raises Refusal when it amends another one than it has sent before."""
        if isinstance(message, m.Amend):
            base = self._tables.get(peer)
            if base is None or base.version != message.base:
                raise Refusal(f"{peer} amends table {message.base}, here is {base.version if base else 'none'}")
            message = m.Install(base.amended(message.version, message.initial, message.groups))
        self._tables[peer] = message.table
        return message

    def prepares(self, peer: str, message: m.BriefPrepare) -> m.Prepare:
        """What a driver means. Raises Refusal when it has not sent the table before that its bits are about."""
        table = self._tables.get(peer)
        if table is None or table.version != message.version:
            raise Refusal(
                f"{peer} prepares under table {message.version}, here is {table.version if table else 'none'}"
            )
        return whole(message, seen(table).members)

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return bool(self._generations)

    def for_message(self, message: m.Message) -> list[str]:
        """Peers that must get it."""
        known = self._generations
        match message:
            case m.Refused():
                return [p for p, g in known.items() if g < message.generation]
            case m.Answer():
                wanted = message.generation
            case m.Prepared() | m.FragmentsGone() | m.CodeFailed() | m.Waiting():
                wanted = message.attempt.generation
            case _:
                wanted = max(known.values(), default=0)
        return [p for p, g in known.items() if g == wanted]
