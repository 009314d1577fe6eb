"""The requests of one link, counted: what is under way, what is known to be done, and which request has to tell.

It must never post more than the queue of the device takes, nor let a run of requests pass without one that tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ferry.channel.rdma.memory import RingShape
from ferry.channel.rdma.verbs import Piece

if TYPE_CHECKING:
    from ferry.channel.rdma.link import Link

_SPARE = 8
"""Requests of the send queue that credit reports leave to data and probes."""


class WorkRequests:
    """The requests of one link, numbered from 1: a completion of one proves that all before it are done."""

    def __init__(self, link: Link, shape: RingShape) -> None:
        self._link = link
        self._depth = shape.send_depth - shape.slots - _SPARE
        self._every = max(1, shape.slots // 2)
        self.posted = self.done = self.asked = 0
        """numbers: of the last request, of the last known to be done, of the last that will tell"""

    @property
    def room(self) -> bool:
        """There is room for one request that can wait."""
        return self.posted - self.done < self._depth

    def post(
        self,
        pieces: Sequence[Piece],
        address: int,
        key: int,
        *,
        signal: bool = False,
        inline: bool = False,
        notice: int | None = None,
        wake: bool = False,
    ) -> int:
        """See Link.write; returns the request's number."""
        number = self.posted + 1
        signal = signal or number - self.asked >= self._every
        self._link.write(pieces, address, key, number, signal=signal, inline=inline, notice=notice, wake=wake)
        self.posted = number
        if signal:
            self.asked = number
        return number

    def reap(self) -> bool:
        """Take completions; True when there were some. Raises Unreachable."""
        done = self._link.reap()
        self.done = max(self.done, done)
        return done > 0
