"""Both directions of one link: a queue pair, a ring each way, and what the peer has to know of them.

It must never outlive its connection: closing it revokes every right of the peer first.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ferry.channel.frames import FRAME_BYTES
from ferry.channel.rdma.control_stream import Hello
from ferry.channel.rdma.memory import Budget, Lent, RingShape
from ferry.channel.rdma.ring import Inbound, Outbound
from ferry.channel.rdma.verbs import DeviceUnusable
from ferry.channel.rdma.work_requests import WorkRequests
from ferry.channel.tcp.channel import RECEIVE_BYTES
from ferry.contract.errors import Exhausted, Unreachable

if TYPE_CHECKING:
    from ferry.channel.rdma.device import Device


class LinkLost(Unreachable):
    """The link cannot be used, or not any more; the TCP connection may well be alive."""


@contextlib.contextmanager
def about_the_link() -> Iterator[None]:
    """What a device or a queue pair says is about the link, not about the connection: it becomes LinkLost."""
    try:
        yield
    except (Unreachable, DeviceUnusable, Exhausted) as error:
        raise LinkLost(str(error)) from error


@dataclass(frozen=True, slots=True)
class ConnectionFactory:
    """What the links of one endpoint are made of."""

    device: Device
    shape: RingShape
    imm: bool
    """slots that arrive come with a notice; False: their footers are polled"""
    budget: Budget
    lent: Lent = field(default_factory=Lent)
    fallback: bool = False
    """a link that cannot be had, or breaks, leaves its connection on TCP; False: it ends its connection"""

    def open(self, peer: str) -> RdmaConnection:
        """A pipe within the budget. Raises DeviceUnusable or Exhausted."""
        pinned = self.shape.pinned_bytes + self.lent.size
        self.budget.take(pinned, f"the link to {peer}")
        try:
            return RdmaConnection(self, lambda: self.budget.give(pinned))
        except BaseException:
            self.budget.give(pinned)
            raise


class RdmaConnection:
    """Ready to be described to the peer; `attach` makes it usable."""

    def __init__(self, means: ConnectionFactory, on_close: Callable[[], None]) -> None:
        shape = means.shape
        self._on_close = on_close
        self.link = link = means.device.link(shape.send_depth, shape.receives)
        try:
            number = random.SystemRandom().getrandbits(32)
            self.posts = WorkRequests(link, shape)
            self.outbound = Outbound(link, self.posts, shape, means.lent)
            self.inbound = Inbound(link, self.posts, shape, means.imm, number)
        except BaseException:
            link.close()
            raise
        ring, credit = self.inbound.ring, self.outbound.credit
        self.hello = Hello(
            link.here,
            ring.address,
            ring.remote_key,
            shape.slots,
            shape.slot_bytes,
            number,
            credit.address,
            credit.remote_key,
            means.imm,
        )

    def attach(self, peer: Hello) -> None:
        """Connect to the peer's side; what it posts before costs it a retry. Raises DeviceUnusable, LinkLost."""
        mine = self.hello
        if (peer.slots, peer.slot_bytes) != (mine.slots, mine.slot_bytes):
            raise LinkLost(
                f"the peer's ring has {peer.slots} x {peer.slot_bytes} bytes, this side's {mine.slots} x "
                f"{mine.slot_bytes}: use the same setting everywhere"
            )
        self.link.connect(peer.remote)
        self.inbound.attach(peer)
        self.outbound.attach(peer)

    @property
    def answered(self) -> bool:
        """Everything that asked for a completion has got it."""
        return self.posts.done >= self.posts.asked

    @property
    def calm(self) -> bool:
        """Nothing is under way in either direction: only the peer or this process can begin something."""
        return self.outbound.settled and self.answered and not self.outbound.keeps

    def fall_asleep(self) -> bool:
        """Arm the doorbell and tell the peer; False when it could not be told."""
        self.link.arm()
        self.inbound.notices()
        return self.inbound.report(sleeping=True) or self.inbound.told_sleeping

    def wake_up(self) -> None:
        """Take the doorbell's events."""
        self.link.disarm()
        self.inbound.notices()

    def settle(self) -> int:
        """The number of a request whose completion proves that all until now are done."""
        if self.posts.asked < self.posts.posted:
            return self.outbound.probe()
        return self.posts.asked

    def close(self) -> None:
        """The fence, then the end of everything; once."""
        try:
            self.link.close()
        finally:
            self.outbound.let_go()
            self._on_close()


class ReassemblyBuffer:
    """The bytes that came, whichever way, and are not a whole frame yet."""

    def __init__(self, shape: RingShape) -> None:
        self._shape = shape
        self._bytes = memoryview(bytearray(max(RECEIVE_BYTES, shape.payload_bytes + 2 * FRAME_BYTES)))
        self._start = self._end = 0

    def fill(self, inbound: Inbound) -> bool:
        """Copy some slots, not all, so that their credit goes back early; True when there were any. Raises Refusal."""
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
        """Hand the whole frames over; `feed` returns how many bytes they were."""
        self._start += feed(self._bytes[self._start : self._end])
        left = self._end - self._start
        if not left:
            self._start = self._end = 0
        elif len(self._bytes) - self._end < self._shape.payload_bytes:
            self._bytes[:left] = self._bytes[self._start : self._end]
            self._start, self._end = 0, left

    def add(self, data: memoryview, feed: Callable[[memoryview], int]) -> None:
        """Bytes that did not come through the ring; see `empty`."""
        while data and (room := min(len(self._bytes) - self._end, len(data))):
            self._bytes[self._end : self._end + room] = data[:room]
            self._end += room
            data = data[room:]
            self.empty(feed)
