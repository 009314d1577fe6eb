"""One client of Redis per view of it, and the translation of its failures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from ferry.contract.errors import Unreachable
from ferry.contract.tickets import derived

CONNECT_SECONDS = 1.0


def connected(url: str, secret: str, patience_seconds: float) -> redis.Redis:
    """The password: from the URL if it has one, else the derived one of a private Redis (unix socket), else none."""
    password = derived(secret, "redis") if url.startswith("unix:") else None
    return redis.Redis.from_url(
        url,
        password=password,
        socket_timeout=patience_seconds,
        socket_connect_timeout=CONNECT_SECONDS,
        decode_responses=True,
    )


@contextmanager
def reaching(action: str) -> Iterator[None]:
    """Turns every failure of Redis into Unreachable."""
    try:
        yield
    except redis.RedisError as error:
        raise Unreachable(f"{action}: Redis does not answer: {error}") from error
