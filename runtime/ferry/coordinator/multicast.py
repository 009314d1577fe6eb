"""What goes over each channel: every message encoded once, however many get it, and each gets what concerns it.

A Prepare names the fragments of all helpers; an instance needs its own, and the names of the others. A table is sent as
what has changed since the one that was sent last over the same channel. Must never change what a message means: whoever
takes it has the values that the coordinator sent, as far as they concern him.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from ferry.channel.base import Channel, Lane
from ferry.contract import messages as m
from ferry.contract.names import InstanceId
from ferry.contract.prepares import Parts
from ferry.contract.routing import Table


class Multicast:
    """Prepare and Install are for one thread, that of the coordinator's loop; the others for any."""

    def __init__(self) -> None:
        self._last: tuple[m.Message | None, bytes] = None, b""
        self._prepare: tuple[m.Prepare | None, Parts | None] = None, None
        self._tables: WeakKeyDictionary[Channel, Table] = WeakKeyDictionary()
        """What was sent last: nothing is lost on the way as long as the channel is open."""
        self._whole: tuple[Table | None, bytes] = None, b""
        self._amended: tuple[Table | None, Table | None, bytes] = None, None, b""

    def post(self, channel: Channel, to: InstanceId, generation: int, message: m.Message) -> None:
        """Queue a message for an instance. Raises what `Channel.post` does."""
        match message:
            case m.Install(table):
                self._install(channel, generation, table)
                return
            case m.Prepare():
                head = self._part(message, to)
            case _:
                head = self._once(message)
        channel.post(Lane.DELTA, m.CODES[type(message)], generation, head)

    def _once(self, message: m.Message) -> bytes:
        last = self._last
        if last[0] is not message:
            last = self._last = message, m.encode(message)
        return last[1]

    def _part(self, prepare: m.Prepare, to: InstanceId) -> bytes:
        if self._prepare[0] is not prepare:
            self._prepare = prepare, Parts(prepare)
        assert self._prepare[1] is not None
        return self._prepare[1].of(to)

    def _install(self, channel: Channel, generation: int, table: Table) -> None:
        base = self._tables.pop(channel, None)
        if base is None:
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
