"""A real Redis for tests."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from ferry.registry import JobRegistry, RedisJournal
from ferry_operator.local.cluster.private_redis import server_program

RUN = "j-1"


class Redis:
    """A server of its own; what it holds is gone with it."""

    def __init__(self, directory: Path) -> None:
        self.socket = directory / "r"
        self.start()

    def start(self) -> None:
        command = [server_program(), "--port", "0", "--unixsocket", str(self.socket), "--save", ""]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=self.socket.parent)
        while not self.journal().is_reachable():
            assert self.process.poll() is None
            time.sleep(0.01)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def journal(self) -> RedisJournal:
        """The view of another driver."""
        return RedisJournal(RUN, f"unix://{self.socket}", "")

    def registry(self) -> JobRegistry:
        """The view of another process."""
        return JobRegistry(RUN, f"unix://{self.socket}", "")
