"""Two instances that want to talk at once lose nothing: one dials, messages wait for the channel."""

from __future__ import annotations

import itertools
import mmap
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ferry.channel.base import MESSAGE_BYTES_MAX, REPLACED, Channel, Lane, Message
from ferry.channel.frames import Outgoing
from ferry.channel.tcp.endpoint import TcpEndpoint
from ferry.contract.errors import Exhausted, Unreachable
from ferry.contract.places import Registration, life_of
from ferry.registry import Changes
from ferry.sidecar import peers as peers_module
from ferry.sidecar.peers import Peers


class Registry:
    """Registrations as the registry would give them."""

    def __init__(self) -> None:
        self.entries: dict[str, Registration] = {}
        self.away = False
        self.looks = 0

    def changes(self, known: int) -> Changes:
        self.looks += 1
        if self.away:
            raise Unreachable("away")
        return Changes(1, True, dict(self.entries))

    def register(self, entry: Registration) -> Registration:
        if self.away:
            raise Unreachable("away")
        there = self.entries.get(entry.instance)
        if there is None or there.incarnation <= entry.incarnation:
            there = self.entries[entry.instance] = entry
        return there

    def unregister(self, entry: Registration) -> None:
        if self.entries.get(entry.instance) == entry:
            del self.entries[entry.instance]


class Instance:
    """A pair of endpoint and peers, and what arrived."""

    starts = itertools.count(1)

    def __init__(self, me: str, registry: Registry) -> None:
        self.me, self.registry = me, registry
        self.got: list[bytes] = []
        self.news = threading.Condition()
        self.opened: list[str] = []
        self.replaced = 0
        self.superseded: list[Registration] = []
        self.life = life_of(1, next(self.starts))
        self.peers = Peers(me, registry, self.superseded.append)  # type: ignore[arg-type]
        self.endpoint = TcpEndpoint(me, "job", b"s" * 16, self._take, self._open, self._closed, self.life)

    def start(self) -> None:
        host, port = self.endpoint.listen()
        self.peers.start(self.endpoint, Registration(self.me, self.life.hex(), host, port, "", 0))

    def _open(self, peer: str, channel: Channel) -> None:
        self.opened.append(peer)
        self.peers.opened(peer, channel)

    def _closed(self, peer: str, reason: str) -> None:
        self.replaced += reason == REPLACED
        self.peers.closed(peer)

    def _take(self, message: Message) -> None:
        with self.news:
            self.got.append(message.head)
            self.news.notify_all()

    def wait_for(self, count: int) -> None:
        with self.news:
            assert self.news.wait_for(lambda: len(self.got) >= count, timeout=10), self.got


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(peers_module, "CALM_SECONDS", 0.05)


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("late", [False, True], ids=["dialled by the smaller", "posted before the other exists"])
def test_messages_of_both_sides_arrive_in_order(late: bool) -> None:
    registry = Registry()
    a, b = Instance("0.0", registry), Instance("1.0", registry)
    try:
        a.start()
        if not late:
            b.start()
        barrier = threading.Barrier(2)

        def talk(me: Instance, peer: str) -> None:
            barrier.wait()
            for i in range(20):
                me.peers.post(peer, Lane.DELTA, 1, b"%d" % i, ())

        threads = [threading.Thread(target=talk, args=(a, "1.0")), threading.Thread(target=talk, args=(b, "0.0"))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if late:
            b.start()
        for instance in (a, b):
            instance.wait_for(20)
            assert instance.got == [b"%d" % i for i in range(20)]
        assert (a.opened, b.opened) == (["1.0"], ["0.0"])
    finally:
        a.endpoint.close()
        b.endpoint.close()


def test_what_waits_for_a_peer_that_never_comes_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "WAITING_BYTES_MAX", 10_000)
    registry = Registry()
    a, b = Instance("0.0", registry), Instance("1.0", registry)
    try:
        a.start()
        for i in range(100):
            a.peers.post("1.0", Lane.DELTA, 1, b"%d" % i, (bytes(998),))
        b.start()
        b.wait_for(10)
        a.peers.post("1.0", Lane.DELTA, 1, b"last", ())
        b.wait_for(11)
        assert b.got == [*(b"%d" % i for i in range(90, 100)), b"last"]
    finally:
        a.endpoint.close()
        b.endpoint.close()


def test_nothing_is_sent_in_bulk_without_a_channel() -> None:
    peers = Peers("0.0", Registry(), print)  # type: ignore[arg-type]
    assert not peers.send_nowait("1.0", Lane.BULK, 1, b"", ())


def test_an_instance_is_in_the_registry_as_long_as_it_is_there() -> None:
    registry = Registry()
    registry.away = True
    one = Instance("0.0", registry)
    try:
        one.start()
        until(lambda: registry.looks)
        registry.away = False
        until(lambda: "0.0" in registry.entries)
        mine = registry.entries.pop("0.0")
        until(lambda: registry.entries.get("0.0") == mine)
        registry.entries["0.0"] = replace(mine, incarnation="0")
        until(lambda: registry.entries.get("0.0") == mine)
        one.peers.leave()
        assert not registry.entries
        looks = registry.looks
        until(lambda: registry.looks > looks + 2)
        assert not registry.entries, "it has left"
        assert not one.superseded
    finally:
        one.endpoint.close()


def test_a_former_life_ends_when_the_registry_names_its_successor() -> None:
    registry = Registry()
    other, former, successor = (Instance(name, registry) for name in ("1.0", "0.0", "0.0"))
    try:
        other.start()
        former.start()
        until(lambda: "1.0" in former.opened)
        successor.start()
        until(lambda: former.superseded)
        assert registry.entries["0.0"].incarnation == successor.life.hex()
        assert former.superseded == [registry.entries["0.0"]], "once"
        former.endpoint.close()  # as its process does
        successor.peers.post("1.0", Lane.DELTA, 1, b"new", ())
        other.wait_for(1)
        assert other.replaced <= 1 and successor.replaced == 0
        assert not successor.superseded
    finally:
        for instance in (other, former, successor):
            instance.endpoint.close()


def test_a_former_life_that_cannot_see_the_registry_takes_no_connection_of_its_successor() -> None:
    registry = Registry()
    other, former, successor = (Instance(name, registry) for name in ("1.0", "0.0", "0.0"))
    try:
        other.start()
        former.start()
        until(lambda: "1.0" in former.opened)
        blind = Registry()
        blind.entries = dict(registry.entries)
        former.peers._member_cache._registry = blind
        successor.start()
        until(lambda: "1.0" in successor.opened)
        refused = other.endpoint.refusals
        for turn in range(20):
            successor.peers.post("1.0", Lane.DELTA, 1, b"%d" % turn, ())
            other.wait_for(turn + 1)
            time.sleep(0.02)
        assert (other.replaced, successor.replaced) == (1, 0), refused
        assert len(former.opened) == 1
    finally:
        for instance in (other, former, successor):
            instance.endpoint.close()


def test_once_everybody_is_there_nobody_looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "CALM_SECONDS", 60.0)
    registry = Registry()
    one, two = Instance("0.0", registry), Instance("1.0", registry)
    try:
        two.start()
        one.start()
        until(lambda: "1.0" in one.opened)
        until(lambda: "0.0" in two.opened)

        def settled() -> bool:
            looks = registry.looks
            time.sleep(0.1)
            return registry.looks == looks

        until(settled)
        looks = registry.looks
        two.endpoint.close()
        until(lambda: registry.looks > looks + 2)  # somebody is missing
    finally:
        one.endpoint.close()
        two.endpoint.close()


def test_a_successor_is_dialled_though_its_predecessor_keeps_the_channel_open() -> None:
    registry = Registry()
    one, before, after = Instance("0.0", registry), Instance("1.0", registry), Instance("1.0", registry)
    try:
        before.start()
        one.start()
        one.peers.post("1.0", Lane.DELTA, 1, b"old", ())
        before.wait_for(1)
        before.peers.leave()
        after.start()
        deadline = time.monotonic() + 10
        while not after.opened:
            assert time.monotonic() < deadline, "nobody has dialled it"
            time.sleep(0.01)
        one.peers.post("1.0", Lane.DELTA, 1, b"new", ())
        after.wait_for(1)
        assert (before.got, after.got) == ([b"old"], [b"new"])
    finally:
        for instance in (one, before, after):
            instance.endpoint.close()


def test_what_can_never_be_sent_is_told_and_what_may_be_sent_later_is_not() -> None:
    """A body of zeros that nobody has written takes no memory, however large it is."""
    refused: list[tuple[str, str]] = []
    peers = Peers("0.0", Registry(), lambda later: None, lambda peer, why: refused.append((peer, why)))  # type: ignore[arg-type]

    class Link:
        peer = "1.0"

        def post(self, lane: Lane, kind: int, generation: int, head: bytes, body: Any = ()) -> None:
            if not head:
                raise Exhausted("the queue is full")
            Outgoing(lane, kind, generation, head, body)

        def send_nowait(self, lane: Lane, kind: int, generation: int, head: bytes, body: Any = ()) -> bool:
            self.post(lane, kind, generation, head, body)
            return True

    large = mmap.mmap(-1, MESSAGE_BYTES_MAX, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    peers.post("1.0", Lane.DELTA, 1, b"waits for a connection", (large,))  # type: ignore[arg-type]
    peers.opened("1.0", Link())  # type: ignore[arg-type]
    peers.post("1.0", Lane.DELTA, 1, b"delta", (large,))  # type: ignore[arg-type]
    assert not peers.send_nowait("1.0", Lane.BULK, 1, b"chunk", (large,))  # type: ignore[arg-type]
    peers.post("1.0", Lane.DELTA, 1, b"", ())
    peers.post("1.0", Lane.DELTA, 1, b"small", ())
    peers.closed("1.0")
    assert [peer for peer, _ in refused] == ["1.0"] * 3
    assert all("larger than MESSAGE_BYTES_MAX" in why for _, why in refused)
