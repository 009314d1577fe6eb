"""One client of Redis for each view of it, and how its failures are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from ferry.contract.errors import Unreachable
from ferry.contract.tickets import derived

CONNECT_SECONDS = 1.0


def connected(url: str, secret: str, patience_seconds: float) -> redis.Redis:
    """The password: of the URL if it names one, else what is derived for a private Redis (unix socket), else none."""
    password = derived(secret, "redis") if url.startswith("unix:") else None
    return redis.Redis.from_url(
        url,
        password=password,
        socket_timeout=patience_seconds,
        socket_connect_timeout=CONNECT_SECONDS,
        decode_responses=True,
    )


@contextmanager
def reaching(what: str) -> Iterator[None]:
    """Every failure of Redis is Unreachable."""
    try:
        yield
    except redis.RedisError as error:
        raise Unreachable(f"{what}: Redis does not answer: {error}") from error
