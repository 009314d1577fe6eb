"""What many jobs cost one operator and its Redis: the figures of `docs/operating/sizing.md`. `-s` prints them.

FERRY_SIZES=1000 .venv/bin/python -m pytest -q -s tests/unit/kube/test_sizes.py
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferry_operator.kube.api.port import JOBS, PODS
from ferry_operator.kube.api.redis_connection import RedisConnection
from ferry_operator.kube.api.redis_users import RunUsers
from ferry_operator.kube.observe import effective_spec
from ferry_operator.kube.store import Store
from ferry_operator.local.cluster.private_redis import server_program
from tests.unit.kube.fakes.fake_world import RELEASE
from tests.unit.kube.test_passes import running
from tests.unit.registry.redis_server import NetworkRedis

MANY = int(os.environ.get("FERRY_SIZES", "100"))
MIB_MAX = 0.1 * MANY
"""Far above what any of these tests finds."""

DRIVERS = """
import asyncio, contextlib, sys
from ferry.contract.certificates import issue, server_context

async def answer(reader, writer):
    with contextlib.suppress(asyncio.IncompleteReadError):
        while await reader.readuntil(b"\\r\\n\\r\\n"):
            writer.write(b"HTTP/1.1 404 Not Found\\r\\nContent-Length: 0\\r\\n\\r\\n")
    writer.close()

async def main():
    made = [
        await asyncio.start_server(answer, f"127.77.{n // 200}.{n % 200 + 1}", 7070, ssl=server_context(issue(f"secret {n}")))
        for n in range(int(sys.argv[1]))
    ]
    print(len(made), flush=True)
    await asyncio.sleep(300)

asyncio.run(main())
"""

CLIENTS = """
import sys
from pathlib import Path
import httpx
from ferry_operator.control.driver_client import DriverClient

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def ask(n):
    try:
        return client._ask("GET", f"https://127.77.{n // 200}.{n % 200 + 1}:7070/status", f"secret {n}").status_code == 404
    except httpx.HTTPError:
        return False

client = DriverClient()
client.status("https://127.77.9.1:7071", "another secret")
before = resident()
print(sum(ask(n) for n in range(int(sys.argv[1]))), resident() - before)
"""


def held(make: Callable[[], Any]) -> float:
    """MiB that Python keeps for what `make` returns."""
    gc.collect()
    tracemalloc.start()
    kept = make()
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return taken / (1 << 20)


@pytest.fixture(scope="module")
def documents() -> dict[Any, list[dict[str, Any]]]:
    """A job that runs, and its pods."""
    world = running()
    world.rounds(5)
    return {kind: world.api.find(kind) for kind in (JOBS, PODS)}


def copies(documents: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The same of many jobs, as read from answers of the API server: no text is shared by two of them."""
    for number in range(MANY):
        for document in documents:
            copy = json.loads(json.dumps(document))
            copy["metadata"]["name"] += f"-{number}"
            yield copy


def test_jobs_and_pods_in_memory(documents: dict[Any, list[dict[str, Any]]]) -> None:
    def stored() -> Store:
        store = Store()
        for kind in (JOBS, PODS):
            for document in copies(documents[kind]):
                store.put(kind, document)
        return store

    assert len(documents[PODS]) == 3
    taken = held(stored)
    print(f"{MANY} jobs with three pods each in memory: {taken:.1f} MiB")
    assert taken < MIB_MAX


def test_specs_in_memory(documents: dict[Any, list[dict[str, Any]]]) -> None:
    (job,) = documents[JOBS]
    edited = {**job, "spec": {**job["spec"], "workers": 3}}
    for document, what in ((job, "the specs"), (edited, "the newest specs and other good ones")):
        taken = held(lambda document=document: [effective_spec.in_force(one, RELEASE) for one in copies([document])])
        assert effective_spec.in_force(document, RELEASE).last is not None
        print(f"{what} of {MANY} jobs: {taken:.1f} MiB")
        assert taken < MIB_MAX


def test_users_in_redis(tmp_path: Path) -> None:
    server = NetworkRedis(server_program(), tmp_path)
    try:
        with RedisConnection(server.url) as redis:
            users = RunUsers("t", server.url)
            users.tend(redis, 0.0)
            before = used(redis)
            users.wanted.update({f"run-{number}": f"password-{number}" for number in range(MANY)})
            began = time.monotonic()
            users.tend(redis, 1.0)
            seconds, each = time.monotonic() - began, (used(redis) - before) / MANY
            spent, rounds = time.process_time(), 200
            for number in range(rounds):
                users.tend(redis, 2.0 + number / rounds)
            look = (time.process_time() - spent) / rounds
            print(f"users of {MANY} runs: {seconds:.2f} s, {each / 1024:.1f} KiB each; a look {look * 1000:.2f} ms")
            assert each < 4096 and look < 0.01 and seconds < 10
            before = used(redis)
            many = [RedisConnection(server.url) for _ in range(200)]
            for one in many:
                one.call("PING")
            busy = (used(redis) - before) / len(many)
            print(f"a connection to Redis: {busy / 1024:.0f} KiB")
            assert busy < 64 << 10
    finally:
        server.end()


def used(redis: RedisConnection) -> int:
    """Bytes that Redis has allocated."""
    lines = str(redis.call("INFO", "memory")).splitlines()
    return next(int(line.partition(":")[2]) for line in lines if line.startswith("used_memory:"))


@pytest.mark.parametrize("listen", [False, True], ids=["closed", "open"])
def test_clients_of_drivers(listen: bool) -> None:
    drivers = subprocess.Popen(
        [sys.executable, "-c", DRIVERS if listen else "print()", str(MANY)], stdout=subprocess.PIPE
    )
    try:
        assert drivers.stdout is not None and drivers.stdout.readline()
        done = subprocess.run([sys.executable, "-c", CLIENTS, str(MANY)], capture_output=True, text=True, timeout=120)
    finally:
        drivers.kill()
        drivers.wait()
    assert done.returncode == 0, done.stderr
    answered, taken = map(int, done.stdout.split())
    print(f"{MANY} clients of drivers, {answered} with an open connection: {taken / (1 << 20):.1f} MiB")
    assert answered == (MANY if listen else 0) and taken < MIB_MAX * (1 << 20)
