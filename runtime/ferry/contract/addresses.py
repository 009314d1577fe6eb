"""Host addresses of IPv4 and IPv6, as URLs spell them."""

from __future__ import annotations


def bracketed(host: str) -> str:
    """A host as URLs and Spark expect it: an IPv6 address in brackets."""
    return f"[{host}]" if is_v6(host) else host


def netloc(host: str, port: int) -> str:
    """Host and port as in a URL."""
    return f"{bracketed(host)}:{port}"


def is_v6(host: str) -> bool:
    """Whether a socket has to be AF_INET6 to listen at this address."""
    return ":" in host
