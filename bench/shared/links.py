"""Machines apart, on one host: network namespaces at a bridge, each behind a link that `tc tbf` holds to a given speed.

The host itself has the bridge's address and no link: what is not put elsewhere runs there. Needs root, `ip` and `tc`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.shared.ferry_job import RunFailed

SUBNET = "10.203.77"
HERE = 1
STORE, FIRST_WORKER = 2, 10
"""Numbers of machines: the store, worker 0 and those after it."""

BURST = "256kb"
QUEUE = "50ms"


@dataclass(frozen=True, slots=True)
class Links:
    """Machines that can reach each other, and the host."""

    name: str
    """of the bridge; those of namespaces begin with it"""

    @property
    def here(self) -> str:
        """The address of the host."""
        return f"{SUBNET}.{HERE}"

    def address(self, machine: int) -> str:
        """The address of a machine."""
        return f"{SUBNET}.{machine}"

    @property
    def ferry(self) -> tuple[str, ...]:
        """The command `ferry` whose workers are each on its machine."""
        return (sys.executable, "-m", "bench.shared.apart", self.name)

    def inside(self, machine: int) -> tuple[str, ...]:
        """What a command on that machine begins with."""
        return ("ip", "netns", "exec", f"{self.name}-{machine}")


@contextmanager
def links(rate: str | None, workers: int = 0) -> Iterator[Links | None]:
    """A machine for the store and one for each worker, whose links are as fast as `rate` ("1gbit") both ways; None: none.

    Raises RunFailed when the machine does not allow it.
    """
    if rate is None:
        yield None
        return
    made = Links(f"fb{os.getpid()}")
    machines = [STORE, *range(FIRST_WORKER, FIRST_WORKER + workers)]
    try:
        _root("ip", "link", "add", made.name, "type", "bridge")
        _root("ip", "address", "add", f"{made.here}/24", "dev", made.name)
        _root("ip", "link", "set", made.name, "up")
        for machine in machines:
            _connect(made, machine, rate)
        yield made
    finally:
        for machine in machines:
            subprocess.run(["ip", "netns", "del", f"{made.name}-{machine}"], capture_output=True)
        subprocess.run(["ip", "link", "del", made.name], capture_output=True)


def _connect(made: Links, machine: int, rate: str) -> None:
    here, there = (f"{made.name}{end}{machine}" for end in "ht")
    tbf = ("root", "tbf", "rate", rate, "burst", BURST, "latency", QUEUE)
    _root("ip", "netns", "add", f"{made.name}-{machine}")
    _root("ip", "link", "add", here, "type", "veth", "peer", "name", there)
    _root("ip", "link", "set", there, "netns", f"{made.name}-{machine}")
    _root("ip", "link", "set", here, "master", made.name)
    _root("ip", "link", "set", here, "up")
    for command in (
        ("ip", "address", "add", f"{made.address(machine)}/24", "dev", there),
        ("ip", "link", "set", there, "up"),
        ("ip", "link", "set", "lo", "up"),
        ("tc", "qdisc", "add", "dev", there, *tbf),
    ):
        _root(*made.inside(machine), *command)
    _root("tc", "qdisc", "add", "dev", here, *tbf)


def _root(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RunFailed(
            f"links of a given speed need root and tc; without --links it works: {done.args}: {done.stderr}"
        )
