"""Messages for several channels: each message is encoded once, and each instance gets the part that concerns it.

A Prepare has the fragments of all helpers; an instance needs its own, and the names of the others: a bit for each name
of the table that was last sent over the same channel. A table is sent as its changes since that one. Must never change
the meaning of a message: the receiver decodes the coordinator's values, as far as they concern it.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from ferry.channel.base import Channel, Lane
from ferry.contract import messages as m
from ferry.contract.names import InstanceId
from ferry.contract.prepares import Brief, Named
from ferry.contract.routing import Table
from ferry.protocol.view import seen


class Multicast:
    """Prepare and Install may be sent by the coordinator's loop only; other messages by any thread."""

    def __init__(self) -> None:
        self._last: tuple[m.Message | None, bytes] = None, b""
        self._named: tuple[m.Prepare | None, Named | None] = None, None
        self._brief: tuple[m.Prepare | None, Brief | None] = None, None
        self._tables: WeakKeyDictionary[Channel, Table] = WeakKeyDictionary()
        """The last table sent over a channel: an open channel loses no message."""
        self._whole: tuple[Table | None, bytes] = None, b""
        self._amended: tuple[Table | None, Table | None, bytes] = None, None, b""

    def post(self, channel: Channel, to: InstanceId, generation: int, message: m.Message) -> None:
        """Queue a message for an instance. Raises as `Channel.post`."""
        match message:
            case m.Install(table):
                self._install(channel, generation, table)
                return
            case m.Prepare():
                kind, head = self._part(channel, message, to)
            case _:
                kind, head = type(message), self._once(message)
        channel.post(Lane.DELTA, m.CODES[kind], generation, head)

    def _once(self, message: m.Message) -> bytes:
        last = self._last
        if last[0] is not message:
            last = self._last = message, m.encode(message)
        return last[1]

    def _part(self, channel: Channel, prepare: m.Prepare, to: InstanceId) -> tuple[type[m.Message], bytes]:
        table = self._tables.get(channel)
        if table is not None and table.version == prepare.version:
            if self._brief[0] is not prepare:
                self._brief = prepare, Brief.made(prepare, seen(table).members)
            if (brief := self._brief[1]) is not None:
                return m.BriefPrepare, brief.of(to)
        if self._named[0] is not prepare:
            self._named = prepare, Named(prepare)
        assert self._named[1] is not None
        return m.Prepare, self._named[1].of(to)

    def _install(self, channel: Channel, generation: int, table: Table) -> None:
        base = self._tables.pop(channel, None)
        if base is None or (base.at_window, base.programs) != (
            table.at_window,
            table.programs,
        ):  # Amend carries neither.
            if self._whole[0] is not table:
                self._whole = table, m.encode(m.Install(table))
            kind: type[m.Message] = m.Install
            head = self._whole[1]
        else:
            if self._amended[0] is not base or self._amended[1] is not table:
                amend = m.Amend(base.version, table.version, table.initial, table.since(base))
                self._amended = base, table, m.encode(amend)
            kind, head = m.Amend, self._amended[2]
        channel.post(Lane.DELTA, m.CODES[kind], generation, head)
        self._tables[channel] = table
