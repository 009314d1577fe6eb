"""Channels over RDMA: a TCP endpoint whose channels use an RDMA link if both ends have a device.

The TCP endpoint decides which peers may connect, and which of two connections stays; a peer without RDMA gets a channel
over TCP. It must never open a link to a peer that did not prove its identity there, and must report every link that is
not RDMA.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from ferry.channel.base import Handler, OnClose, OnOpen
from ferry.channel.handshake import RDMA
from ferry.channel.rdma.connection import ConnectionFactory
from ferry.channel.rdma.memory import PINNED_BYTES_MAX, Budget, LentMemory, Limits, RingShape, ring_error
from ferry.channel.rdma.transport import RdmaTransport
from ferry.channel.tcp.connection import Opening, SocketTransport
from ferry.channel.tcp.endpoint import TcpEndpoint
from ferry.channel.tcp.transport import TcpTransport
from ferry.contract.errors import Exhausted

if TYPE_CHECKING:
    from ferry.channel.rdma.device import Device


class Notify(StrEnum):
    """How a receiver notices a slot: by its footer if the device guarantees order, else by immediate data."""

    AUTO = "auto"
    FOOTER = "footer"
    IMM = "imm"


@dataclass(frozen=True, slots=True)
class RdmaSettings:
    """An administrator's choices; `slots` and `slot_bytes` must be the same everywhere."""

    shape: RingShape = field(default_factory=RingShape)
    notify: Notify = Notify.AUTO
    pinned_bytes_max: int = PINNED_BYTES_MAX
    fallback: bool = False
    """a channel whose link cannot be set up, or breaks, goes on over TCP and tries again; False: it closes"""
    lend_bytes: int = 0
    """largest size of memory for `lend`"""


class RdmaEndpoint(TcpEndpoint):
    """Closes the device with itself. Raises Exhausted when it may not pin even one link."""

    transport_flags = RDMA

    def __init__(
        self,
        name: str,
        job: str,
        secret: bytes,
        on_message: Handler,
        on_open: OnOpen,
        on_close: OnClose,
        *,
        device: Device,
        life: bytes | None = None,
        settings: RdmaSettings | None = None,
        limits: Limits | None = None,
    ) -> None:
        super().__init__(name, job, secret, on_message, on_open, on_close, life)
        self._settings = settings or RdmaSettings()
        problem = ring_error(1, self._settings.shape, limits or Limits.here(), self._settings.lend_bytes)
        if problem is not None:
            raise Exhausted(problem)
        self._device = device
        self._budget = Budget(self._settings.pinned_bytes_max)
        self._lent = LentMemory()
        notify = self._settings.notify
        self.imm = notify == Notify.IMM or (notify == Notify.AUTO and not device.in_order)
        """slots come with immediate data; False: their footers are polled"""

    def lend(self, mapping: mmap.mmap) -> None:
        """Send bodies within this shared mapping without copying them, on links that open from now on.

        Each of these links pins the mapping. A body must not change while the channel refers to its buffer: until the
        peer has read it, over RDMA or TCP, or the channel is closed.
        """
        self._lent.mappings = (*self._lent.mappings, mapping)

    @property
    def lent_bytes(self) -> int:
        """Bytes sent from lent memory so far."""
        return self._lent.sent_bytes

    @property
    def small_pages(self) -> str:
        """Why some rings are in small pages although huge ones were asked for, else empty."""
        return self._device.pages.refusal

    @property
    def huge_bytes(self) -> int:
        """Bytes of rings in huge pages now."""
        return self._device.pages.used

    @property
    def pinned(self) -> int:
        """Bytes that the links pin now."""
        return self._budget.used

    def _transport(self, opening: Opening, transport_flags: int) -> SocketTransport:
        if not transport_flags & RDMA:
            return TcpTransport(opening, "the peer has no RDMA")
        chosen = self._settings
        factory = ConnectionFactory(self._device, chosen.shape, self.imm, self._budget, self._lent, chosen.fallback)
        return RdmaTransport(opening, factory)

    def close(self) -> None:
        super().close()
        self._device.close()
