"""Where checkpoints go while they are measured: a folder, or an S3 of this machine, behind a link of a given speed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.shared.ferry_job import RunFailed, work_directory

FOLDER, S3 = "folder", "s3"
SUBNET = "10.203.77"
BURST = "256kb"
QUEUE = "50ms"


@dataclass(frozen=True, slots=True)
class Store:
    """One that is empty at first."""

    location: str
    """as `state.checkpoint.location` takes it"""
    files: Path
    """where the objects lie that are put below that location"""
    endpoint: str | None = None
    """HOST:PORT of an S3; its keys are in the environment"""


@contextmanager
def store(kind: str, rate: str | None = None) -> Iterator[Store]:
    """A store; with a rate ("1gbit") it is in a network namespace of its own, and both ways to it are as fast as that.

    Raises RunFailed when the machine does not allow it.
    """
    with work_directory("store") as folder:
        if kind == FOLDER:
            yield Store(str(folder), folder)
            return
        from tests.s3 import S3Server

        with _link(rate) as (address, prefix):
            server = S3Server(folder / "s3", address, prefix)
            os.environ.update(server.environment)
            try:
                yield Store(server.url, server.objects / "jobs", f"{address}:{server.port}")
            finally:
                server.kill()


@contextmanager
def _link(rate: str | None) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(address of the store, what its command begins with)."""
    if rate is None:
        yield "127.0.0.1", ()
        return
    name, here, there = (f"fb{os.getpid()}{end}" for end in ("", "h", "t"))
    inside = ("ip", "netns", "exec", name)
    tbf = ("root", "tbf", "rate", rate, "burst", BURST, "latency", QUEUE)
    _root("ip", "netns", "add", name)
    try:
        _root("ip", "link", "add", here, "type", "veth", "peer", "name", there)
        _root("ip", "link", "set", there, "netns", name)
        _root("ip", "address", "add", f"{SUBNET}.1/24", "dev", here)
        _root("ip", "link", "set", here, "up")
        for command in (
            ("ip", "address", "add", f"{SUBNET}.2/24", "dev", there),
            ("ip", "link", "set", there, "up"),
            ("ip", "link", "set", "lo", "up"),
            ("tc", "qdisc", "add", "dev", there, *tbf),
        ):
            _root(*inside, *command)
        _root("tc", "qdisc", "add", "dev", here, *tbf)
        yield f"{SUBNET}.2", inside
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _root(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RunFailed(
            f"links of a given speed need root and tc; without --links it works: {done.args}: {done.stderr}"
        )
