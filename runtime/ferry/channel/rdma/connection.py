"""Both directions of one link: a queue pair, a ring each way, and their description for the peer.

It must never outlive its TCP connection: closing it revokes every right of the peer first.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ferry.channel.frames import FRAME_BYTES
from ferry.channel.rdma.control_stream import Hello
from ferry.channel.rdma.memory import Budget, LentMemory, RingShape
from ferry.channel.rdma.ring import Inbound, Outbound
from ferry.channel.rdma.verbs import DeviceUnusable
from ferry.channel.rdma.work_requests import WorkRequests
from ferry.channel.tcp.transport import RECEIVE_BYTES
from ferry.contract.errors import Exhausted, Unreachable

if TYPE_CHECKING:
    from ferry.channel.rdma.device import Device


class LinkLost(Unreachable):
    """The link cannot be set up, or broke; the TCP connection may still be alive."""


@contextlib.contextmanager
def link_errors() -> Iterator[None]:
    """Errors of a device or a queue pair concern the link, not the TCP connection: they become LinkLost."""
    try:
        yield
    except (Unreachable, DeviceUnusable, Exhausted) as error:
        raise LinkLost(str(error)) from error


@dataclass(frozen=True, slots=True)
class ConnectionFactory:
    """Makes the links of one endpoint."""

    device: Device
    shape: RingShape
    imm: bool
    """slots arrive with immediate data; False: their footers are polled"""
    budget: Budget
    lent: LentMemory = field(default_factory=LentMemory)
    fallback: bool = False
    """a link that cannot be set up, or breaks, leaves its channel on TCP; False: the channel ends"""

    def open(self, peer: str) -> RdmaConnection:
        """A connection within the budget. Raises DeviceUnusable or Exhausted."""
        pinned = self.shape.pinned_bytes + self.lent.size
        self.budget.take(pinned, f"the link to {peer}")
        try:
            return RdmaConnection(self, lambda: self.budget.give(pinned))
        except BaseException:
            self.budget.give(pinned)
            raise


class RdmaConnection:
    """One link: `hello` describes it to the peer, `attach` makes it usable."""

    def __init__(self, factory: ConnectionFactory, on_close: Callable[[], None]) -> None:
        shape = factory.shape
        self._on_close = on_close
        self.queue_pair = queue_pair = factory.device.queue_pair(shape.send_depth, shape.receives)
        try:
            ring_id = random.SystemRandom().getrandbits(32)
            self.requests = WorkRequests(queue_pair, shape)
            self.outbound = Outbound(queue_pair, self.requests, shape, factory.lent)
            self.inbound = Inbound(queue_pair, self.requests, shape, factory.imm, ring_id)
        except BaseException:
            queue_pair.close()
            raise
        ring, credit = self.inbound.ring, self.outbound.credit
        self.hello = Hello(
            queue_pair.address,
            ring.address,
            ring.rkey,
            shape.slots,
            shape.slot_bytes,
            ring_id,
            credit.address,
            credit.rkey,
            factory.imm,
        )

    def attach(self, peer: Hello) -> None:
        """Connect to the peer's queue pair; earlier requests of the peer are retried. Raises DeviceUnusable,
        LinkLost."""
        mine = self.hello
        if (peer.slots, peer.slot_bytes) != (mine.slots, mine.slot_bytes):
            raise LinkLost(
                f"the peer's ring has {peer.slots} x {peer.slot_bytes} bytes, this side's {mine.slots} x "
                f"{mine.slot_bytes}: use the same setting everywhere"
            )
        self.queue_pair.connect(peer.remote)
        self.inbound.attach(peer)
        self.outbound.attach(peer)

    @property
    def all_completed(self) -> bool:
        """Whether every signaled request is completed."""
        return self.requests.completed >= self.requests.signaled

    @property
    def idle(self) -> bool:
        """Whether both directions are idle, so that this side may sleep."""
        return self.outbound.settled and self.all_completed and not self.outbound.keeps_lent

    def arm(self) -> bool:
        """Arm the doorbell and tell the peer to ring it; False when the message could not be sent."""
        self.queue_pair.request_notify()
        self.inbound.poll_receives()
        return self.inbound.post_credit(sleeping=True) or self.inbound.reported_sleeping

    def disarm(self) -> None:
        """Take the events of the doorbell."""
        self.queue_pair.ack_events()
        self.inbound.poll_receives()

    def last_request(self) -> int:
        """The wr_id of a signaled request: its completion proves that all requests so far are completed."""
        if self.requests.signaled < self.requests.posted:
            return self.outbound.probe()
        return self.requests.signaled

    def close(self) -> None:
        """Revoke the peer's rights, then destroy everything; once."""
        try:
            self.queue_pair.close()
        finally:
            self.outbound.release_lent()
            self._on_close()


class ReassemblyBuffer:
    """Received bytes, from the ring or over TCP, that are not a complete frame yet."""

    def __init__(self, shape: RingShape) -> None:
        self._shape = shape
        self._bytes = memoryview(bytearray(max(RECEIVE_BYTES, shape.payload_bytes + 2 * FRAME_BYTES)))
        self._start = self._end = 0

    def fill(self, inbound: Inbound) -> bool:
        """Copy some slots, not all, so that their credit returns early; True when there were some. Raises Refusal."""
        before = self._end
        for _ in range(max(1, self._shape.slots // 4)):
            if len(self._bytes) - self._end < self._shape.payload_bytes:
                break
            size = inbound.take(self._bytes[self._end :])
            if not size:
                break
            self._end += size
        return self._end != before

    def empty(self, feed: Callable[[memoryview], int]) -> None:
        """Pass complete frames on; `feed` returns how many bytes they had."""
        self._start += feed(self._bytes[self._start : self._end])
        left = self._end - self._start
        if not left:
            self._start = self._end = 0
        elif len(self._bytes) - self._end < self._shape.payload_bytes:
            self._bytes[:left] = self._bytes[self._start : self._end]
            self._start, self._end = 0, left

    def add(self, data: memoryview, feed: Callable[[memoryview], int]) -> None:
        """Add bytes that came over TCP, and pass complete frames on, as `empty` does."""
        while data and (room := min(len(self._bytes) - self._end, len(data))):
            self._bytes[self._end : self._end + room] = data[:room]
            self._end += room
            data = data[room:]
            self.empty(feed)
