"""The wires between the instances of a run: a proxy that every connection of two instances goes through, and that can be cut.

The driver's connections do not: both ends of a cut wire reach it. A cut wire is silent, in both directions, and stays so:
what is sent over it is taken and lost, as where a router drops packets.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from pathlib import Path

import psutil

THROUGH = Path(__file__).with_name("through")

INSTANCE = "ferry "
"""So begin the names of processes of instances; "3.0" follows."""
"""Has to come first on the path of the processes."""


class Wires:
    """Listens; `variables` is for the environment of the run."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._cut: set[frozenset[str]] = set()
        self._closing = False
        self.seen: set[frozenset[str]] = set()
        """Pairs of instances that have been connected."""
        self.variables = {"FERRY_TEST_WIRES": str(self._listener.getsockname()[1])}
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, a: str, b: str) -> None:
        """From now on nothing passes between these two instances."""
        self._cut.add(frozenset((a, b)))

    def heal(self) -> None:
        """All wires are whole again, for connections that are made from now on."""
        self._cut.clear()

    def close(self) -> None:
        """End all connections."""
        self._closing = True
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(sock,), daemon=True).start()

    def _carry(self, caller: socket.socket) -> None:
        with caller, contextlib.suppress(OSError, ValueError, psutil.Error):
            line = b""
            while not line.endswith(b"\n"):
                line += caller.recv(1) or b"\n"
            pid, port = (int(word) for word in line.split())
            pair = frozenset((_instance(psutil.Process(pid)), _listening(pid, port)))
            if pair in self._cut:
                return self._swallow([caller], pair)
            with socket.create_connection(("127.0.0.1", port), timeout=5) as called:
                called.settimeout(None)
                self.seen.add(pair)
                self._relay(caller, called, pair)

    def _relay(self, caller: socket.socket, called: socket.socket, pair: frozenset[str]) -> None:
        other = {caller: called, called: caller}
        while not self._closing:
            for sock in select.select(list(other), [], [], 0.2)[0]:
                data = sock.recv(1 << 18)
                if pair in self._cut:
                    return self._swallow([caller, called], pair)
                if not data:
                    return
                other[sock].sendall(data)

    def _swallow(self, socks: list[socket.socket], pair: frozenset[str]) -> None:
        """Take what comes and say nothing, until the wire is whole or nobody is left."""
        while socks and pair in self._cut and not self._closing:
            for sock in select.select(socks, [], [], 0.2)[0]:
                if not sock.recv(1 << 18):
                    socks.remove(sock)


def _instance(process: psutil.Process) -> str:
    name = process.name()
    if not name.startswith(INSTANCE):
        raise ValueError(f"{name!r} is no instance")
    return name.removeprefix(INSTANCE)


def _listening(caller: int, port: int) -> str:
    """The instance, of the same run as the caller, that listens at a port."""
    mark = psutil.Process(caller).environ()["FERRY_HOME"]
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ValueError, KeyError):
                if process.name().startswith(INSTANCE) and process.environ()["FERRY_HOME"] == mark:
                    found = process.net_connections(kind="tcp")
                    if any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in found):
                        return _instance(process)
        time.sleep(0.05)
    raise ValueError(f"nobody listens at {port}")
