"""Nobody waits for a peer that does not answer: neither who asks for a channel, nor the other peers."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from ferry.channel import dialling
from ferry.channel.dialling import Dialler
from ferry.contract.errors import Unreachable
from ferry.contract.places import Registration


def entry(peer: str, incarnation: str = "1") -> Registration:
    return Registration(peer, incarnation, "127.0.0.1", 1, "", 2)


class Network:
    """Connects to who is there; the others swallow the connection until the end, or refuse it."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.refuses = False
        self.dials: Counter[str] = Counter()
        self.open: list[str] = []

    def connect(self, peer: str, address: tuple[str, int], timeout: float) -> None:
        self.dials[peer] += 1
        if peer.startswith("dead"):
            if not self.refuses:
                self.end.wait(10)
            raise Unreachable(peer)
        self.open.append(peer)


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_addresses_that_swallow_connections_delay_nobody() -> None:
    network = Network()
    dialler = Dialler("me", network.connect)
    peers = [*(f"dead{k}" for k in range(30)), *(f"live{k}" for k in range(20))]
    try:

        def all_live() -> bool:
            for peer in peers:
                if peer not in network.open:
                    dialler.dial(entry(peer))
            return len(network.open) >= 20

        until(all_live)
        assert sorted(network.open) == sorted(peers[30:])
        assert all(network.dials[peer] == 1 for peer in peers), "each is dialled by one thread at a time"
    finally:
        network.end.set()


def test_peers_that_failed_before_leave_room_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialling, "BACK_OFF_SECONDS_MAX", 0.0)
    network = Network()
    network.refuses = True
    dialler = Dialler("me", network.connect)
    dead = [f"dead{k}" for k in range(dialling.DIALS_MAX)]
    for peer in dead:
        dialler.dial(entry(peer))
    until(lambda: all(not dialler._dials[peer].under_way for peer in dead))
    network.refuses = False
    try:
        for peer in dead:
            dialler.dial(entry(peer))
        assert dialler._under_way == dialling.REPEATS_MAX
        dialler.dial(entry("live"))
        until(lambda: network.open == ["live"])
    finally:
        network.end.set()


def test_a_peer_that_fails_is_dialled_ever_less_often_until_it_begins_a_new_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(dialling.time, "monotonic", lambda: now[0])
    network = Network()
    network.refuses = True
    dialler = Dialler("me", network.connect)

    def dial(one: Registration) -> None:
        dialler.dial(one)
        deadline = time.perf_counter() + 10
        while dialler._under_way:
            assert time.perf_counter() < deadline

    for _ in range(2000):
        dial(entry("dead"))
        now[0] += 0.01
    assert 10 <= network.dials["dead"] <= 30, "within 20 s"
    assert not dialler.hopeful(entry("dead")) and dialler.hopeful(entry("dead", "2"))
    before = network.dials["dead"]
    dial(entry("dead", "2"))
    assert network.dials["dead"] == before + 1 and dialler.life("dead") == "2"


def test_a_channel_that_is_replaced_again_and_again_is_not_dialled_in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(dialling.time, "monotonic", lambda: now[0])
    network = Network()
    dialler = Dialler("me", network.connect)

    def dial() -> None:
        dialler.dial(entry("live"))
        deadline = time.perf_counter() + 10
        while dialler._under_way:
            assert time.perf_counter() < deadline

    for _ in range(400):
        dial()
        dialler.closed("live")
        now[0] += 0.01
    assert len(network.open) <= 12, "within 4 s"
    now[0] += dialling.BACK_OFF_SECONDS_MAX
    dial()
    opened = len(network.open)
    now[0] += dialling.STEADY_SECONDS
    dialler.closed("live")
    dial()
    assert len(network.open) == opened + 1, "it has lasted: at once"


def test_a_peer_that_is_away_for_hours_is_dialled_now_and_then() -> None:
    """It has failed so often by then that doubling without a bound would fail, too."""
    network = Network()
    network.refuses = True
    dialler = Dialler("me", network.connect)
    dialler.dial(entry("dead"))
    until(lambda: dialler._dials["dead"].failures == 1)
    dialler._dials["dead"].failures, dialler._dials["dead"].not_before = 5000, 0.0
    dialler.dial(entry("dead"))
    until(lambda: dialler._dials["dead"].failures == 5001)
    assert dialler._dials["dead"].not_before > time.monotonic() + 0.5
