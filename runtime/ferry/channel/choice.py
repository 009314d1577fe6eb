"""Makes the endpoint of an instance: over RDMA or TCP, by the job's settings and the available devices, with the
reason.

It must never fall back to TCP silently when a device was asked for, nor look for a device when none was.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import ip_address

from ferry.channel.base import Endpoint, Handler, OnClose, OnOpen
from ferry.channel.rdma.device import Device, choose_device
from ferry.channel.rdma.endpoint import Notify, RdmaEndpoint, RdmaSettings
from ferry.channel.rdma.memory import RingShape
from ferry.channel.rdma.pages import HugePages
from ferry.channel.rdma.verbs import DeviceUnusable
from ferry.channel.tcp.endpoint import TcpEndpoint
from ferry.contract.errors import Exhausted
from ferry.contract.settings import TransportSettings

log = logging.getLogger(__name__)

NOT_ASKED = "no device was asked for"
TCP_ASKED = "the job says tcp"


@dataclass(frozen=True, slots=True)
class Party:
    """The arguments of every endpoint."""

    name: str
    job: str
    secret: bytes
    on_message: Handler
    on_open: OnOpen
    on_close: OnClose
    life: bytes | None = None
    """as for TcpEndpoint"""


@dataclass(frozen=True, slots=True)
class Choice:
    """The endpoint, and its description for logs and metrics."""

    endpoint: Endpoint
    expected: bool
    """a link that is not RDMA is worth a warning"""
    device: str = ""
    gid: str = ""
    mtu: int = 0
    """of the device's port, in bytes"""
    notify: str = ""
    """footer or imm"""
    reason: str = ""
    """why this side offers TCP only"""
    lend_bytes: int = 0
    """largest size of a mapping for `lend`"""

    def lend(self, mapping: mmap.mmap) -> None:
        """Lend memory as with RdmaEndpoint.lend; over TCP there is no device to lend to."""
        if isinstance(self.endpoint, RdmaEndpoint):
            self.endpoint.lend(mapping)

    @property
    def lent_bytes(self) -> int:
        """Bytes sent from lent memory so far."""
        return self.endpoint.lent_bytes if isinstance(self.endpoint, RdmaEndpoint) else 0

    @property
    def huge_bytes(self) -> int:
        """Bytes of rings in huge pages now."""
        return self.endpoint.huge_bytes if isinstance(self.endpoint, RdmaEndpoint) else 0

    @property
    def small_pages(self) -> str:
        """Why some rings are in small pages although huge ones were asked for, else empty."""
        return self.endpoint.small_pages if isinstance(self.endpoint, RdmaEndpoint) else ""

    @property
    def kind(self) -> str:
        """The transport that this side offers: rdma or tcp."""
        return "rdma" if self.device else "tcp"


def choose(transport: TransportSettings, own: Collection[str], party: Party) -> Choice:
    """`own`: addresses of this process. Raises DeviceUnusable when the job insists on a device and none can be used."""
    insists = transport.mode == "rdma"
    if transport.mode == "tcp" or not (insists or transport.expected):
        return _tcp(party, False, TCP_ASKED if transport.mode == "tcp" else NOT_ASKED)
    shape = RingShape(transport.slots, transport.slot_bytes)
    try:
        device = choose_device(shape, _addresses(own), transport.device, transport.gid_index)
        try:
            return _rdma(party, device, transport, shape)
        except BaseException:
            device.close()
            raise
    except (DeviceUnusable, Exhausted) as error:
        if insists:
            raise DeviceUnusable(f"transport.mode is rdma, and {error}") from error
        log.warning("%s uses TCP although RDMA was asked for: %s", party.name, error)
        return _tcp(party, True, str(error))


def _addresses(own: Collection[str]) -> list[str]:
    """The values that are addresses; others are names."""
    found = []
    for one in own:
        with contextlib.suppress(ValueError):
            found.append(str(ip_address(one)))
    return found


def _tcp(party: Party, expected: bool, reason: str) -> Choice:
    endpoint = TcpEndpoint(
        party.name, party.job, party.secret, party.on_message, party.on_open, party.on_close, party.life
    )
    return Choice(endpoint, expected, reason=reason)


def _rdma(party: Party, device: Device, transport: TransportSettings, shape: RingShape) -> Choice:
    device.pages = HugePages(transport.huge_bytes)
    settings = RdmaSettings(
        shape=shape,
        notify=Notify(transport.notify),
        pinned_bytes_max=transport.pinned_bytes,
        fallback=transport.mode != "rdma",
        lend_bytes=transport.lend_bytes,
    )
    endpoint = RdmaEndpoint(
        party.name,
        party.job,
        party.secret,
        party.on_message,
        party.on_open,
        party.on_close,
        device=device,
        life=party.life,
        settings=settings,
    )
    port, notify = device.port, "imm" if endpoint.imm else "footer"
    gid = str(port.gid.address.ipv4_mapped or port.gid.address)
    log.info("%s uses RDMA: %s, address %d %s, %s", party.name, port.device, port.gid.gid_index, gid, notify)
    return Choice(endpoint, True, port.device, gid, 128 << port.mtu, notify, lend_bytes=transport.lend_bytes)
