"""The link address of a peer's card: looked up before the device looks it up.

A device that connects waits for this address, for a second or more, and pyverbs holds the interpreter's lock meanwhile:
no other thread of the process runs, and the process is taken for dead when it happens a few times.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import time
from ipaddress import IPv6Address

from ferry.channel.rdma.verbs import DeviceUnusable

RESOLVE_SECONDS = 0.25
"""An address that has no answer after so long has none for now: the link is tried again later."""

_DISCARD = 9
"""The port of the datagram. Nobody has to listen there: it is sent for the question that the system asks first."""


def resolve(own: IPv6Address, peer: IPv6Address, seconds: float = RESOLVE_SECONDS) -> None:
    """Have the system find the link address of `peer`, as seen from the card with the address `own`.

    A datagram stays in its socket's queue until the system knows where to send it. Raises DeviceUnusable when it is still
    there after `seconds`. Addresses that are none of the Internet Protocol's are left to the device.
    """
    if own.is_link_local or peer.is_link_local:
        return
    mapped = own.ipv4_mapped, peer.ipv4_mapped
    family = socket.AF_INET if all(mapped) else socket.AF_INET6
    here, there = (str(four or six) for four, six in zip(mapped, (own, peer), strict=True))
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((here, 0))
            sock.connect((there, _DISCARD))
            sock.send(b"")
        except OSError:
            return  # the device has ways that the system does not know
        deadline = time.monotonic() + seconds
        while _waiting(sock):
            if time.monotonic() > deadline:
                raise DeviceUnusable(
                    f"{there} does not answer who it is: no card with this address is reached from {here}"
                )
            time.sleep(0.001)


def _waiting(sock: socket.socket) -> bool:
    """The system has not sent everything yet."""
    return bool(struct.unpack("@i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0])
