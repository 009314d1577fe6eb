"""Addresses of both families: how they stand in a URL."""

from __future__ import annotations


def bracketed(host: str) -> str:
    """A host as URLs, and Spark, want it: an address of version 6 stands in brackets."""
    return f"[{host}]" if is_v6(host) else host


def netloc(host: str, port: int) -> str:
    """Host and port as a URL has them."""
    return f"{bracketed(host)}:{port}"


def is_v6(host: str) -> bool:
    """Whether only a socket of AF_INET6 listens at this address."""
    return ":" in host
