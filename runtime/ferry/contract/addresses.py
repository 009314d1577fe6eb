"""Addresses of both families: how they stand in a URL, and which sockets listen on them."""

from __future__ import annotations

import socket


def bracketed(host: str) -> str:
    """A host as URLs, and Spark, want it: an address of version 6 stands in brackets."""
    return f"[{host}]" if ":" in host else host


def netloc(host: str, port: int) -> str:
    """Host and port as a URL has them."""
    return f"{bracketed(host)}:{port}"


def family(host: str) -> socket.AddressFamily:
    """Of a socket that listens at this address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET
