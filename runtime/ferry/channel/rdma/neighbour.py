"""Resolves the link address of a peer's card before the device needs it.

A device that connects waits for this address, for a second or more, and pyverbs holds the interpreter's lock during
that time: no other thread of the process runs, and a few such waits make the process look dead.
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
"""An address without an answer after this long has none for now: the link is retried later."""

_DISCARD = 9
"""Port of the datagram. No process has to listen there: it is sent for the system's address query."""


def resolve(own: IPv6Address, peer: IPv6Address, seconds: float = RESOLVE_SECONDS) -> None:
    """Make the system resolve the link address of `peer`, as seen from the card with the address `own`.

    A datagram stays in its socket's queue until the system knows its destination. Raises DeviceUnusable when it is
    still queued after `seconds`. The device resolves other kinds of addresses itself.
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
            return  # the device may have other paths than the system
        deadline = time.monotonic() + seconds
        while _waiting(sock):
            if time.monotonic() > deadline:
                raise DeviceUnusable(f"{there} does not answer: no card with this address is reached from {here}")
            time.sleep(0.001)


def _waiting(sock: socket.socket) -> bool:
    """Whether the system has not sent everything yet."""
    return bool(struct.unpack("@i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0])
