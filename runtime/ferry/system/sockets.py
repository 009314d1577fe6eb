"""Listening sockets."""

from __future__ import annotations

import socket

from ferry.contract.addresses import is_v6


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens at an address of either family; '': at all addresses of this machine, of both families if
    available.

    Port 0: any free one. Raises OSError when it is taken.
    """
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server((host, port), family=socket.AF_INET6 if is_v6(host) else socket.AF_INET)
