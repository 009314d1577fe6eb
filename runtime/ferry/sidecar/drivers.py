"""The connected drivers, and which of them gets a message.

After a takeover the old driver may still be connected, unaware: an answer goes to the driver that asked, a report about
an attempt to the attempt's driver, a refusal to every superseded driver, all other messages to the newest.
"""

from __future__ import annotations

from ferry.contract import messages as m
from ferry.contract.errors import Refusal
from ferry.contract.names import driver_generation
from ferry.contract.prepares import whole
from ferry.contract.routing import Table
from ferry.protocol.view import seen


class Drivers:
    """Connected drivers by peer name. Replaced atomically on every change, so that any thread may read it."""

    def __init__(self) -> None:
        self._generations: dict[str, int] = {}
        self._tables: dict[str, Table] = {}
        """The last table of each driver over its present connection; used by that connection's thread only."""

    def opened(self, peer: str) -> None:
        """A channel to a peer opened."""
        generation = driver_generation(peer)
        if generation is not None:
            self._generations = {**self._generations, peer: generation}
            self._tables.pop(peer, None)

    def closed(self, peer: str) -> bool:
        """A channel to a peer closed; returns whether the peer was a driver."""
        known = peer in self._generations
        self._generations = {p: g for p, g in self._generations.items() if p != peer}
        self._tables.pop(peer, None)
        return known

    def installs(self, peer: str, message: m.Install | m.Amend) -> m.Install:
        """The complete table of a driver's message. Raises Refusal when it amends a table that the driver has not sent
        before."""
        if isinstance(message, m.Amend):
            base = self._tables.get(peer)
            if base is None or base.version != message.base:
                raise Refusal(f"{peer} amends table {message.base}, here is {base.version if base else 'none'}")
            message = m.Install(base.amended(message.version, message.initial, message.groups))
        self._tables[peer] = message.table
        return message

    def prepares(self, peer: str, message: m.BriefPrepare) -> m.Prepare:
        """The complete Prepare of a driver. Raises Refusal when its bits are about a table that the driver has not sent
        before."""
        table = self._tables.get(peer)
        if table is None or table.version != message.version:
            raise Refusal(
                f"{peer} prepares under table {message.version}, here is {table.version if table else 'none'}"
            )
        return whole(message, seen(table).members)

    @property
    def any(self) -> bool:
        """Whether a driver is connected."""
        return bool(self._generations)

    def for_message(self, message: m.Message) -> list[str]:
        """Peers that must get this message."""
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
