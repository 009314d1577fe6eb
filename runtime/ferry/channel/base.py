"""The contract of a channel, whichever transport carries its bytes.

It defines types and bounds only. It must never open a socket, start a thread or know a transport.

Guarantees of a channel over every transport:

* messages of one lane of one connection arrive in order, complete, at most once; lanes are independent of each other;
* a lane without credit never delays another lane, nor the credit that flows back (Slash section 6.2: credits of a channel);
* a lost peer is reported exactly once by ``on_close``, and every blocked or later send raises ``Unreachable``;
* no message of a connection is delivered after its ``on_close``; no queue survives: a new connection starts empty.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from ferry.contract import limits

if TYPE_CHECKING:
    from typing_extensions import Buffer

MESSAGE_BYTES_MAX = 1 << 30
"""Head and body of one message: a peer that announces more is refused before anything is allocated."""

QUEUE_BYTES_MAX = 1 << 30
"""Bytes waiting in one lane of one channel; the sender's buffers are referenced, not copied."""

QUEUE_MESSAGES_MAX = 1 << 16
"""Messages waiting in one lane of one channel."""

DEFERRED_SLOTS_MAX = limits.SLOTS // 4
"""Most credits that the receiver of one message can defer: four large messages stop a lane."""

CREDIT_BATCH = limits.SLOTS // 4
"""Consumed slots that are reported at once, even if no frame goes the other way."""

HANDSHAKE_SECONDS = 5.0
"""A connection that is not authenticated after this is closed."""

REPLACED = "replaced"
"""Reason of a close, on both sides, when a newer connection to the same peer replaced this one."""

NAME_BYTES_MAX = 128
"""Longest name of an endpoint, in UTF-8."""

assert DEFERRED_SLOTS_MAX + CREDIT_BATCH <= limits.SLOTS


class Lane(IntEnum):
    """Independent streams of one connection, each with its own credits. Control messages travel on DELTA.

    A peer of an older release refuses an unknown lane, and the connection ends.
    """

    FRAGMENT = 0
    DELTA = 1
    BULK = 2


BY_PRIORITY = (Lane.DELTA, Lane.FRAGMENT, Lane.BULK)
"""Order of lanes when several have messages, sent or received: control messages travel on DELTA."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message as it arrived. `body` is owned by the receiver and aligned for 64-bit values."""

    peer: str
    lane: Lane
    kind: int
    generation: int
    head: bytes
    body: memoryview | bytes


class DeferredCredit:
    """The unreturned credit of one message: a handler returns this object, and calls `release` when it has room again.

    `release` may be called from any thread, before or after the handler returned, and more than once.
    """

    __slots__ = ("_give", "_lock", "_released")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._give: Callable[[], None] | None = None
        self._released = False

    def bind(self, give: Callable[[], None]) -> None:
        """Called once, by the channel: `give` returns the credit."""
        with self._lock:
            self._give = give
            released = self._released
        if released:
            give()

    def release(self) -> None:
        """Return the credit to the sender; harmless after the connection has ended."""
        with self._lock:
            if self._released:
                return
            self._released = True
            give = self._give
        if give is not None:
            give()


Handler = Callable[[Message], DeferredCredit | None]
"""Called on receiving threads. It must not block: it queues the message, and returns a DeferredCredit to slow the sender."""


@dataclass(frozen=True, slots=True)
class LaneStatistics:
    """Counters of one lane since the connection was opened, and its state now."""

    sent_messages: int
    sent_bytes: int
    received_messages: int
    received_bytes: int
    queued_messages: int
    queued_bytes: int
    credits: int
    """slots that may be sent now"""
    unreturned: int
    """slots received whose credit was not returned: deferred, or not yet reported"""
    stalls: int
    """sends that had to wait for credit"""


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """State of one channel; `lanes` is indexed by Lane."""

    peer: str
    transport: str
    lanes: tuple[LaneStatistics, ...]
    closed: str | None
    """reason of its close, or None"""


@dataclass(frozen=True, slots=True)
class LinkState:
    """The transport of one channel."""

    peer: str
    kind: str
    """memory, tcp or rdma"""
    reason: str
    """reason why it is not RDMA although RDMA was expected; else empty"""


class Channel(ABC):
    """One connection to one peer; both sides may send. Every method may be called from any thread.

    The buffers of a body belong to the channel until they are sent (`flush`): the sender must not change them.
    """

    peer: str

    @abstractmethod
    def send(
        self,
        lane: Lane,
        kind: int,
        generation: int,
        head: bytes,
        body: Sequence[Buffer] = (),
        timeout: float | None = None,
    ) -> None:
        """Queue a message; waits only while the lane has no credit.

        Raises Unreachable when the channel is or gets closed, Exhausted after `timeout` seconds without credit, Refusal
        when the message is larger than MESSAGE_BYTES_MAX.
        """

    @abstractmethod
    def send_nowait(self, lane: Lane, kind: int, generation: int, head: bytes, body: Sequence[Buffer] = ()) -> bool:
        """Like `send`, but returns False and queues no message if `send` would wait, or the queue is full."""

    @abstractmethod
    def post(self, lane: Lane, kind: int, generation: int, head: bytes, body: Sequence[Buffer] = ()) -> None:
        """Queue a message, even without credit; never waits. Raises Exhausted when the queue is full."""

    @abstractmethod
    def flush(self, timeout: float) -> bool:
        """Wait until all queued messages are handed to the transport; False after `timeout` seconds."""

    @abstractmethod
    def close(self, reason: str = "closed by this side") -> None:
        """Close now; queued messages are dropped. Harmless when closed."""

    @abstractmethod
    def statistics(self) -> ChannelStatistics:
        """A snapshot of the counters."""


class Endpoint(ABC):
    """All channels of one process: at most one for each peer; a newer one replaces an older one (REPLACED).

    ``on_open(peer, channel)`` is called before the first message, ``on_close(peer, reason)`` after the last one, and
    for one peer they alternate. They run on the endpoint's threads; they must not block, connect or close it.
    """

    name: str

    @abstractmethod
    def listen(self, host: str = "127.0.0.1", port: int = 0) -> tuple[str, int]:
        """Accept connections; returns the address to give to peers."""

    @abstractmethod
    def connect(self, peer: str, address: tuple[str, int], timeout: float = HANDSHAKE_SECONDS) -> Channel:
        """Open a channel to the peer of that name. Each side proves that it knows the secret, the job and both names.

        Raises Unreachable when no process answers in time, Refusal when the other side cannot prove its name.
        """

    @abstractmethod
    def channel(self, peer: str) -> Channel | None:
        """The open channel to a peer, or None."""

    @abstractmethod
    def links(self) -> tuple[LinkState, ...]:
        """The transports of the open channels, sorted by peer."""

    @abstractmethod
    def close(self) -> None:
        """Close all channels (reason 'endpoint closed') and stop accepting. No callback comes after it returned."""


OnOpen = Callable[[str, Channel], None]
OnClose = Callable[[str, str], None]
