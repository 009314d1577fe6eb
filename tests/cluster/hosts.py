"""A job whose processes stand for hosts: each has an address of its own (127.X.Y.N), a directory of its own, its own group.

As on Kubernetes, without it: Redis over TCP, a driver, and workers of two processes each (sidecar and what follows the
driver with an executor). Nothing decides where state goes but the test. It asserts nothing itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import psutil

from ferry.contract.addresses import netloc
from ferry.contract.certificates import authority, client_context
from ferry.contract.places import Registration
from ferry.contract.settings import RunSettings
from ferry.contract.tickets import derived
from ferry.registry import JobRegistry, RedisJournal
from ferry_operator.local.cluster.private_redis import server_program
from ferry_operator.local.environment import read_ferry_env
from tests.cluster.runner import ROOT, read_timeline
from tests.patience import PATIENCE

SECRET = secrets.token_hex(24)
PASSWORD = "the-password-of-redis"
METRICS_TOKEN = secrets.token_hex(24)
MARK = "FERRY_HOSTS_TEST"

CLAIM = 254
"""The last part of the address that a job listens at for as long as the others of its network are its own."""


@dataclass
class Host:
    """One address with what runs there."""

    address: str
    directory: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def tree(self) -> list[psutil.Process]:
        """All processes that run there."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(MARK) == str(self.directory) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def signal(self, number: int) -> None:
        """Send a signal to all of them at once."""
        for process in self.tree():
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)

    def kill(self) -> None:
        """The host is gone."""
        self.end(signal.SIGKILL)

    def end(self, number: int) -> None:
        """Send a signal until nothing runs there any more."""
        while self.tree():
            self.signal(number)
            time.sleep(0.02)
        for process in self.processes:
            process.kill()  # Redis writes its title over its environment
            process.wait()
        self.processes.clear()


class Hosts:
    """The processes of one job."""

    redis_address = "127.0.0.1"
    driver_variables: ClassVar[dict[str, str]] = {"FERRY_SPARK": "standalone"}
    """Where Redis listens, and what drivers are told besides their ports; of jobs whose hosts are others these differ."""

    def __init__(self, base: Path, settings: RunSettings) -> None:
        self.base = base
        self.network, self._claim = _network()
        self.port = _free_port()
        self.settings = replace(
            settings, secret=SECRET, redis=f"redis://:{PASSWORD}@{netloc(self.redis_address, self.port)}/0"
        )
        self.redis = Host(self.redis_address, base / "redis")
        self.workers: dict[int, Host] = {}
        self.drivers: list[Host] = []
        self.registry = JobRegistry(settings.run, self.settings.redis, SECRET)

    def registrations(self) -> list[Registration]:
        """All that are in the registry."""
        return [entry for entry in self.registry.changes(0).entries.values() if entry is not None]

    def start_redis(self) -> None:
        """With a password, as a chart would."""
        read_ferry_env()
        self.redis.directory.mkdir(parents=True)
        conf = self.redis.directory / "redis.conf"
        lines = [
            f"port {self.port}",
            f"bind {self.redis_address}",
            f"requirepass {PASSWORD}",
            f"dir {self.redis.directory}",
        ]
        conf.write_text("\n".join([*lines, "appendonly yes", "appendfsync always", 'save ""', ""]))
        self._start(self.redis, [server_program(), str(conf)], {})
        await_that(RedisJournal(self.settings.run, self.settings.redis, SECRET).is_reachable, "Redis", 10)

    def start_worker(self, index: int, address: str | None = None) -> Host:
        """A sidecar and an executor on a host of their own, with nothing on its disk."""
        host = Host(
            address or self.address(10 + index), self.base / f"worker-{index}-{len(list(self.base.glob('worker-*')))}"
        )
        run = self._settle(host)
        (host.directory / "wanted").write_text("1")  # as a downward API's file: no newline
        more = {"FERRY_INSTANCES_FILE": str(host.directory / "wanted"), "FERRY_PORTS": "fixed"}
        arguments = [run, "--worker", str(index)]
        self._start(host, [sys.executable, "-m", "ferry.sidecar", *arguments], more)
        self._start(host, [sys.executable, "-m", "ferry.worker", *arguments], {"FERRY_PORTS": "fixed"})
        self.workers[index] = host
        return host

    def start_driver(self, checkpoint: Path, **changes: Any) -> Host:
        """On another host than the drivers before, but for the checkpoint; `changes` of the settings."""
        number = len(self.drivers)
        host = Host(self.driver_address(number), self.base / f"driver-{number}")
        self.settings = replace(self.settings, **changes)
        run = self._settle(host)
        checkpoint.mkdir(exist_ok=True)
        (host.directory / "checkpoint").symlink_to(checkpoint)
        more = {**self.driver_variables, "FERRY_CONTROL_PORT": "7070", "FERRY_PORTS": "fixed"}
        self._start(host, [sys.executable, "-m", "ferry.driver", run], more)
        self.drivers.append(host)
        return host

    def driver_address(self, number: int) -> str:
        """Each driver is on another host."""
        return self.address(200 + number)

    def address(self, number: int) -> str:
        """One that no other job of this machine has, so that ports can be the fixed ones."""
        return f"{self.network}.{number}"

    def ask(self, path: str, document: dict[str, Any] | None = None) -> dict[str, Any]:
        """GET or PUT at the control endpoint of the last driver."""
        body = None if document is None else json.dumps(document).encode()
        headers = {"Authorization": f"Bearer {derived(SECRET, 'control')}", "Content-Type": "application/json"}
        url = f"{'https' if self.settings.encrypted else 'http'}://{netloc(self.drivers[-1].address, 7070)}/{path}"
        request = urllib.request.Request(url, body, headers, method="GET" if body is None else "PUT")
        trusted = client_context(authority(SECRET))
        with urllib.request.urlopen(request, timeout=30, context=trusted) as answer:
            return dict(json.loads(answer.read()))

    def metrics(self, host: Host) -> str:
        """What Prometheus would read there."""
        headers = {"Authorization": f"Bearer {METRICS_TOKEN}"}
        request = urllib.request.Request(f"http://{netloc(host.address, 7071)}/metrics", headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(answer.read().decode())

    def records(self, kind: str) -> list[dict[str, Any]]:
        """Records of all drivers' timelines."""
        return [r for host in self.drivers for r in read_timeline(host.directory) if r["kind"] == kind]

    def epoch(self) -> int:
        """The last finished epoch."""
        return max((int(r["epoch"]) for r in self.records("epoch")), default=-1)

    def await_epochs(self, more: int, seconds: float = 120.0) -> None:
        """Return when this many further epochs are finished."""
        goal = self.epoch() + more
        await_that(lambda: self.epoch() >= goal or self.ended() is not None, f"epoch {goal}", seconds)
        assert self.ended() in (None, 0), self.story()

    def ended(self) -> int | None:
        """Exit code of the last driver."""
        return self.drivers[-1].processes[-1].poll()

    def story(self) -> str:
        """The end of what everybody printed."""
        parts = []
        for log in sorted(self.base.glob("*/log")):
            parts.append(f"--- {log.parent.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-25:]))
        return "\n".join(parts)

    def close(self) -> None:
        """End everything."""
        for host in [*self.drivers, *self.workers.values(), self.redis]:
            host.kill()
        self._claim.close()

    def _settle(self, host: Host) -> str:
        host.directory.mkdir(parents=True)
        return str(replace(self.settings, directory=str(host.directory)).write())

    def _start(self, host: Host, command: list[str], more: dict[str, str]) -> None:
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(ROOT / "runtime"), str(ROOT / "bench" / "workloads"))),
            MARK: str(host.directory),
            **more,
        }
        with open(host.directory / "log", "ab") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=host.directory,
                env={**variables, "FERRY_HOST": host.address, "FERRY_METRICS_TOKEN": METRICS_TOKEN},
            )
        host.processes.append(process)


def await_that(true: Callable[[], bool], what: str, seconds: float) -> None:
    """Return when `true` is; raises TimeoutError. Who does not answer is asked again."""
    deadline = time.monotonic() + PATIENCE * seconds
    while True:
        with contextlib.suppress(OSError):
            if true():
                return
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} after {PATIENCE * seconds:g} s")
        time.sleep(0.05)


def _network() -> tuple[str, socket.socket]:
    """The first three parts of addresses of which no other test has any, and what claims them until it is closed.

    Claims are the kernel's, like the addresses: they hold across processes and checkouts, and end with their process.
    """
    while True:
        network, claim = f"127.{random.randrange(128, 255)}.{random.randrange(256)}", socket.socket()
        try:
            claim.bind((f"{network}.{CLAIM}", 7070))
            return network, claim
        except OSError:
            claim.close()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
