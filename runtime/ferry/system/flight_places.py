"""The address of this process's Flight server, for the server and for its clients."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ferry.contract.addresses import netloc

SOCKET_PATH_MAX = 100
"""Longest path of a unix socket; systems allow 108 bytes."""

SOCKET_NAME_BYTES = 44
"""Longest name of a socket that another program chooses: `/.UUID.sock`."""


PLAIN = re.compile(r"[\w./~-]+", re.ASCII)
"""Paths that need no escapes in a URL: Arrow and gRPC disagree about escapes."""


def fits_socket(path: Path) -> bool:
    """Whether a unix socket may have this path, and be named in a URL."""
    return len(os.fsencode(path)) <= SOCKET_PATH_MAX and PLAIN.fullmatch(str(path)) is not None


@dataclass(frozen=True, slots=True)
class FlightPlace:
    """A unix socket on one machine, otherwise TCP with TLS (or without)."""

    location: str
    """for the server; its port may be 0: any free one"""
    host: str | None
    tls: bool

    def uri(self, port: int) -> str:
        """For clients, once the server has this port."""
        return _uri(self.host, port, self.tls) if self.host else self.location


def at_host(host: str, port: int, tls: bool) -> FlightPlace:
    """An address that other hosts can reach."""
    return FlightPlace(_uri(host, port, tls), host, tls)


def at_socket(path: Path, name: str, redis: str) -> FlightPlace:
    """A unix socket; when its path does not fit, beside the socket of a private Redis, under this name."""
    if not fits_socket(path):
        # The supervisor has made that directory with a short plain path, and removes it at the end.
        short = Path(redis.removeprefix("unix://")).parent if redis.startswith("unix://") else None
        path = (short or Path(tempfile.mkdtemp(prefix="ferry-"))) / f"{name}.sock"
    path.unlink(missing_ok=True)
    return FlightPlace(f"grpc+unix://{path}", None, False)


def at_own_socket(folder: Path, name: str, redis: str) -> FlightPlace:
    """A socket of this process alone; sockets of ended processes are removed."""
    for left in folder.glob(f"{name}-*.sock"):
        if not Path("/proc", left.stem.removeprefix(f"{name}-")).exists():
            left.unlink(missing_ok=True)
    mine = f"{name}-{os.getpid()}"
    return at_socket(folder / f"{mine}.sock", mine, redis)


def socket_folder(path: Path) -> Path:
    """A folder for sockets of a server without authentication: only processes of the same user may open it.

    When the path does not fit, a folder in the system's temporary directory, always with the same name.
    """
    if not fits_socket(path / ("x" * (SOCKET_NAME_BYTES - 1))):
        path = Path(tempfile.gettempdir()) / f"ferry-{hashlib.sha256(bytes(path)).hexdigest()[:12]}"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.is_symlink() or path.stat().st_uid != os.getuid():
        return Path(tempfile.mkdtemp(prefix="ferry-"))
    path.chmod(0o700)
    return path


def _uri(host: str, port: int, tls: bool) -> str:
    return f"{'grpc+tls' if tls else 'grpc+tcp'}://{netloc(host, port)}"
