"""Counts the work requests of one queue pair: posted ones, completed ones, and which are signaled.

It must never post more than the send queue takes, nor many requests in a row without a signaled one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ferry.channel.rdma.memory import RingShape
from ferry.channel.rdma.verbs import ScatterGatherEntry

if TYPE_CHECKING:
    from ferry.channel.rdma.queue_pair import QueuePair

_SPARE = 8
"""Places of the send queue that credit leaves to data and probes."""


class WorkRequests:
    """The work requests of one queue pair, numbered from 1: a completion of one proves that all earlier ones are
    done."""

    def __init__(self, queue_pair: QueuePair, shape: RingShape) -> None:
        self._queue_pair = queue_pair
        self._depth = shape.send_depth - shape.slots - _SPARE
        self._signal_every = max(1, shape.slots // 2)
        self.posted = 0
        """wr_id of the last request"""
        self.completed = 0
        """wr_id of the last request known to be completed"""
        self.signaled = 0
        """wr_id of the last signaled request"""

    @property
    def room(self) -> bool:
        """Whether the send queue has room for one more request that can wait."""
        return self.posted - self.completed < self._depth

    def post_write(
        self,
        entries: Sequence[ScatterGatherEntry],
        address: int,
        rkey: int,
        *,
        signaled: bool = False,
        inline: bool = False,
        imm_data: int | None = None,
        solicited: bool = False,
    ) -> int:
        """Post as QueuePair.post_write; returns the `wr_id`."""
        wr_id = self.posted + 1
        signaled = signaled or wr_id - self.signaled >= self._signal_every
        self._queue_pair.post_write(
            entries, address, rkey, wr_id, signaled=signaled, inline=inline, imm_data=imm_data, solicited=solicited
        )
        self.posted = wr_id
        if signaled:
            self.signaled = wr_id
        return wr_id

    def poll(self) -> bool:
        """Poll completions; True when there were some. Raises Unreachable when a request failed."""
        last = self._queue_pair.poll()
        self.completed = max(self.completed, last)
        return last > 0
