"""On the path of a run under test: what one instance dials to another one goes through the proxy of `tests/cluster/wires.py`."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

_proxy = os.environ.get("FERRY_TEST_WIRES")

if _proxy and "--instance" in sys.orig_argv:
    _dial = socket.create_connection

    def _through(address: tuple[str, int], *args: Any, **kwargs: Any) -> socket.socket:
        sock = _dial(("127.0.0.1", int(_proxy)), *args, **kwargs)
        sock.sendall(f"{os.getpid()} {address[1]}\n".encode())
        return sock

    socket.create_connection = _through
