"""A job whose hosts, and whose Redis, have addresses of IPv6 alone: it moves, loses a worker, and its results stay right."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import runner
from tests.cluster.hosts import Hosts, await_that
from tests.cluster.test_hosts import ARGS, await_copies, place_on, settings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

EVENTS = 500_000
NETWORK = "fd00:feed"
CLONE_NEWNET = 0x40000000


@pytest.fixture
def network() -> Iterator[None]:
    """This thread, and the processes that it starts, are in a network of their own: addresses of IPv6 have to be added."""
    if os.geteuid() != 0:
        pytest.skip("a network of its own needs root")
    before, libc = os.open("/proc/thread-self/ns/net", os.O_RDONLY), ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    try:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        for number in (10, 11, 12, 200):
            subprocess.run(["ip", "addr", "add", f"{NETWORK}::{number}/128", "dev", "lo"], check=True)
        yield
    finally:
        libc.setns(before, CLONE_NEWNET)
        os.close(before)


class Hosts6(Hosts):
    """With addresses of IPv6."""

    redis_address = "::1"

    def address(self, number: int) -> str:
        return f"{NETWORK}::{number}"


def test_a_job_has_addresses_of_ipv6_alone(network: None, tmp_path: Path) -> None:
    hosts = Hosts6(tmp_path, settings(tmp_path))
    try:
        hosts.start_redis()
        for worker in (0, 1):
            hosts.start_worker(worker)
        hosts.start_driver(tmp_path / "checkpoint", events=EVENTS)
        hosts.await_epochs(3)
        place_on(hosts, 1, 0, 1)
        assert "ferry_" in hosts.metrics(hosts.workers[0])
        hosts.workers[1].kill()
        hosts.start_worker(2)
        place_on(hosts, 2, 0, 2)
        await_copies(hosts)
        await_that(lambda: hosts.ended() is not None, "end of the input", 120)
        assert hosts.ended() == 0
    except (AssertionError, TimeoutError) as failed:
        raise AssertionError(f"{failed}\n{hosts.story()}") from failed
    finally:
        hosts.close()
    missing, extra = runner.difference("nbq5", EVENTS, ARGS, tmp_path / "out", tmp_path)
    assert not missing and not extra, f"missing {len(missing)} {missing[:5]}, unexpected {len(extra)} {extra[:5]}"
