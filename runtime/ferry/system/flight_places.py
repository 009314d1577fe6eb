"""Where a Flight server of this process listens, and how others reach it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from ferry.contract.addresses import netloc

SOCKET_PATH_MAX = 100
"""Systems have 108 bytes for the path of a unix socket."""

SOCKET_NAME_BYTES = 44
"""Of a socket whose name somebody else chooses: `/.UUID.sock`."""


@dataclass(frozen=True, slots=True)
class FlightPlace:
    """A unix socket where all are on one machine, else TCP with TLS (or without)."""

    location: str
    """for the server; its port may be 0: any free one"""
    host: str | None
    tls: bool

    def uri(self, port: int) -> str:
        """For clients, once the server has this port."""
        return _uri(self.host, port, self.tls) if self.host else self.location


def at_host(host: str, port: int, tls: bool) -> FlightPlace:
    """A place that other hosts reach."""
    return FlightPlace(_uri(host, port, tls), host, tls)


def at_socket(path: Path, name: str, redis: str) -> FlightPlace:
    """A unix socket; when its path is too long for one, beside that of a private Redis, and with this name."""
    if len(str(path)) > SOCKET_PATH_MAX:
        path = _short_folder(redis) / f"{name}.sock"
    path.unlink(missing_ok=True)
    return FlightPlace(f"grpc+unix://{path}", None, False)


def socket_folder(path: Path, redis: str) -> Path:
    """A folder for the sockets of somebody who asks nobody who he is: whoever may open it is of the same user."""
    if len(str(path)) + SOCKET_NAME_BYTES > SOCKET_PATH_MAX:
        path = _short_folder(redis) / path.name
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def _short_folder(redis: str) -> Path:
    """That of a private Redis, which the supervisor has made short enough, and removes at the end."""
    short = Path(redis.removeprefix("unix://")).parent if redis.startswith("unix://") else None
    return short or Path(tempfile.mkdtemp(prefix="ferry-"))


def _uri(host: str, port: int, tls: bool) -> str:
    return f"{'grpc+tls' if tls else 'grpc+tcp'}://{netloc(host, port)}"
