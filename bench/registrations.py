"""Load on Redis when instances discover each other: real registries, `Peers` and `Members`, stand-ins for channels.

One worker for each instance, each with its heartbeat, and one driver. Bytes are counted by Redis, both directions.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import redis

from bench.shared.results import Results
from ferry.contract.errors import Unreachable
from ferry.contract.places import Registration, life_of
from ferry.contract.tickets import derived
from ferry.coordinator.members import Members
from ferry.registry import JobRegistry
from ferry.sidecar.peers import Peers
from ferry_operator.local.cluster.private_redis import PrivateRedis
from ferry_operator.local.cluster.processes import Processes
from ferry_operator.local.environment import read_ferry_env

RUN = "job-0f8fad5b-d9cb-469f-a165-70867728950e"
SECRET = "s" * 32
HEARTBEAT_SECONDS, TTL_MS = 0.5, 2500
FORMING_SECONDS_MAX = 120.0

METHOD = (
    "one worker per instance, one driver; Redis with appendfsync always; bytes by its own count (INFO), both directions"
)


@dataclass(frozen=True)
class Link:
    """A stand-in for a channel between two instances; it carries no messages."""

    mesh: Mesh
    ends: tuple[str, str]

    def close(self, reason: str) -> None:
        """Close the channel for both ends."""
        for me, peer in (self.ends, self.ends[::-1]):
            if me in self.mesh.endpoints:
                self.mesh.endpoints[me].open.pop(peer, None)
                self.mesh.peers[me].closed(peer)
            else:
                self.mesh.driver.open.pop(peer, None)


class Endpoint:
    """A stand-in for the endpoint of an instance: its channels are open at once."""

    def __init__(self, name: str, mesh: Mesh) -> None:
        self.name, self._mesh = name, mesh
        self.open: dict[str, Link] = {}

    def connect(self, peer: str, address: tuple[str, int], timeout: float) -> Link:
        link = self.open[peer] = Link(self._mesh, (self.name, peer))
        if self.name in self._mesh.peers:
            self._mesh.peers[self.name].opened(peer, link)  # type: ignore[arg-type]
            self._mesh.peers[peer].opened(self.name, link)  # type: ignore[arg-type]
        return link

    def channel(self, peer: str) -> Link | None:
        return self.open.get(peer)


class Mesh:
    """All instances of a run, their parents' heartbeats, and its driver."""

    def __init__(self, url: str, instances: int) -> None:
        self.url, self.instances = url, instances
        self.peers: dict[str, Peers] = {}
        self.endpoints: dict[str, Endpoint] = {}
        self._beats = [JobRegistry(RUN, url, SECRET) for _ in range(8)]
        self.driver = Endpoint("driver-1-bench", self)

    def beat(self) -> None:
        """Begin with the heartbeats."""
        for part, registry in enumerate(self._beats):
            workers = range(part, self.instances, len(self._beats))
            threading.Thread(target=self._beat, args=(registry, workers), daemon=True).start()

    def start(self) -> None:
        """Begin the discovery."""
        for worker in range(self.instances):
            name = f"{worker}.0"
            self.peers[name] = Peers(name, JobRegistry(RUN, self.url, SECRET), print)
            self.endpoints[name] = Endpoint(name, self)
        members = Members(TTL_MS, JobRegistry(RUN, self.url, SECRET), lambda event: None)
        for start, name in enumerate(self.peers, start=1):
            self._register(name, start)
        members.start(self.driver)  # type: ignore[arg-type]

    def _register(self, name: str, start: int) -> None:
        entry = Registration(name, life_of(1, start).hex(), "10.123.210.17", 7100, "grpc+tcp://10.123.210.17:7200", 17)
        self.peers[name].start(self.endpoints[name], entry)  # type: ignore[arg-type]

    def _beat(self, registry: JobRegistry, workers: range) -> None:
        with contextlib.suppress(Unreachable):  # the end
            lives = {worker: registry.claim(worker, "pod") for worker in workers}
            while True:
                began = time.monotonic()
                for worker, life in lives.items():
                    registry.beat(worker, life, TTL_MS)
                time.sleep(max(0.0, began + HEARTBEAT_SECONDS - time.monotonic()))

    def whole(self) -> bool:
        links = sum(len(one.open) for one in self.endpoints.values())
        return links == self.instances * (self.instances - 1) // 2 and len(self.driver.open) == self.instances

    def restart(self, name: str, start: int) -> None:
        """Begin a new life of one instance."""
        self.peers[name].leave()
        for endpoint in (self.driver, *self.endpoints.values()):
            for link in [one for one in list(endpoint.open.values()) if name in one.ends]:
                link.close("it ended")
        self.peers[name] = Peers(name, JobRegistry(RUN, self.url, SECRET), print)
        self._register(name, start)


@dataclass
class Meter:
    """Bytes that Redis counted since the last time."""

    client: redis.Redis
    read: int = 0
    at: float = 0.0

    def __post_init__(self) -> None:
        self.take()

    def take(self) -> tuple[int, float]:
        """(bytes, seconds)"""
        stats = self.client.info("stats")
        now, total = time.monotonic(), int(stats["total_net_input_bytes"]) + int(stats["total_net_output_bytes"])
        done = total - self.read, now - self.at
        self.read, self.at = total, now
        return done


def _await_whole(mesh: Mesh) -> None:
    deadline = time.monotonic() + FORMING_SECONDS_MAX
    while not mesh.whole():
        if time.monotonic() > deadline:
            raise SystemExit("the mesh is not whole")
        time.sleep(0.05)


def _rate(meter: Meter, seconds: float) -> float:
    meter.take()
    time.sleep(seconds)
    size, took = meter.take()
    return size / took / 1000


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    read_ferry_env()
    results = Results("registrations", METHOD)

    def add(case: str, metric: str, value: float, unit: str) -> None:
        results.add("ferry", case, metric, value, unit, instances=args.instances)
        print(f"{case:12} {metric:28} {value:12.1f} {unit}", flush=True)

    with tempfile.TemporaryDirectory(prefix="ferry-bench-") as directory:
        server = PrivateRedis(Processes(Path(directory).name, Path(directory) / "logs"), Path(directory), SECRET)
        server.start()
        server.wait()
        try:
            client = redis.Redis.from_url(server.url, password=derived(SECRET, "redis"))
            mesh, meter = Mesh(server.url, args.instances), Meter(client)
            mesh.beat()
            time.sleep(3.0)
            heartbeats = _rate(meter, args.seconds)
            add("settled", "heartbeats", heartbeats, "KB/s")
            mesh.start()
            _await_whole(mesh)
            for case in ("forming", "one restarts"):
                size, seconds = meter.take()
                add(case, "until the mesh is whole", seconds, "s")
                add(case, "bytes", size / 1000, "KB")
                time.sleep(5.0)
                rate = _rate(meter, args.seconds)
                add("settled", "registrations", rate - heartbeats, "KB/s")
                add("settled", "all", rate, "KB/s")
                if case == "forming":
                    mesh.restart(f"{args.instances // 2}.0", args.instances + 1)
                    _await_whole(mesh)
        finally:
            server.close()
    if args.json is not None:
        results.write(args.json)


if __name__ == "__main__":
    main()
