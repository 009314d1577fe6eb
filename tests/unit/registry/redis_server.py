"""A real Redis for tests."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

from ferry.registry import JobRegistry, RedisJournal
from ferry_operator.kube.api.redis import problem
from ferry_operator.kube.api.redis_connection import RedisConnection
from ferry_operator.kube.api.redis_users import RunUsers, user_name
from ferry_operator.local.cluster.private_redis import server_program

RUN = "j-1"
PASSWORD = "of-the-installation"


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


def free_port() -> int:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        return int(line.getsockname()[1])


class NetworkRedis:
    """A server with a port and a password, as on Kubernetes."""

    def __init__(self, program: str, directory: Path, **more: str) -> None:
        self.program, self.directory, self.port = program, directory, free_port()
        self.url = f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"
        self.more = more
        self.start()

    def start(self) -> None:
        settings = {
            "port": str(self.port),
            "requirepass": PASSWORD,
            "save": "",
            "maxmemory-policy": "noeviction",
            **self.more,
        }
        options = [word for name, value in settings.items() for word in (f"--{name}", value)]
        self.process = subprocess.Popen([self.program, *options], stdout=subprocess.DEVNULL, cwd=self.directory)
        while problem(self.url) is not None:
            assert self.process.poll() is None
            time.sleep(0.01)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class RunRedis(NetworkRedis):
    """The same with the user of a run, which the operator has made."""

    TAG = "tag"

    def __init__(self, directory: Path) -> None:
        super().__init__(server_program(), directory)

    @property
    def own_url(self) -> str:
        """With the user of the run."""
        return f"redis://{user_name(self.TAG, RUN)}:mine@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        super().start()
        users = RunUsers(self.TAG, self.url)
        users.wanted[RUN] = "mine"
        with RedisConnection(self.url) as connection:
            users.tend(connection, time.monotonic())

    def journal(self) -> RedisJournal:
        return RedisJournal(RUN, self.own_url, "")

    def registry(self) -> JobRegistry:
        return JobRegistry(RUN, self.own_url, "")
