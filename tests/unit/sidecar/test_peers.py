"""Two instances that want to talk at once lose nothing: one dials, messages wait for the channel."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from ferry.channel.base import Channel, Lane, Message
from ferry.channel.tcp import TcpEndpoint
from ferry.contract.errors import Unreachable
from ferry.contract.places import Registration
from ferry.sidecar.peers import Peers


class Registry:
    """Registrations as the board would give them."""

    def __init__(self) -> None:
        self.entries: dict[str, Registration] = {}
        self.away = False

    def registrations(self) -> list[Registration]:
        if self.away:
            raise Unreachable("away")
        return list(self.entries.values())

    def register(self, entry: Registration) -> None:
        if self.away:
            raise Unreachable("away")
        self.entries[entry.instance] = entry

    def register_again(self, entry: Registration) -> None:
        self.entries.setdefault(entry.instance, entry)

    def unregister(self, entry: Registration) -> None:
        if self.entries.get(entry.instance) == entry:
            del self.entries[entry.instance]


class Instance:
    """A pair of endpoint and peers, and what arrived."""

    def __init__(self, me: str, registry: Registry) -> None:
        self.me, self.registry = me, registry
        self.got: list[bytes] = []
        self.news = threading.Condition()
        self.opened: list[str] = []
        self.peers = Peers(me, registry)  # type: ignore[arg-type]
        self.endpoint = TcpEndpoint(me, "job", b"s" * 16, self._take, self._open, lambda p, r: self.peers.closed(p))

    def start(self) -> None:
        host, port = self.endpoint.listen()
        self.peers.start(self.endpoint, Registration(self.me, f"life {id(self)}", host, port, "", 0))

    def _open(self, peer: str, channel: Channel) -> None:
        self.opened.append(peer)
        self.peers.opened(peer, channel)

    def _take(self, message: Message) -> None:
        with self.news:
            self.got.append(message.head)
            self.news.notify_all()

    def wait_for(self, count: int) -> None:
        with self.news:
            assert self.news.wait_for(lambda: len(self.got) >= count, timeout=10), self.got


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


def test_nothing_is_sent_in_bulk_without_a_channel() -> None:
    peers = Peers("0.0", Registry())  # type: ignore[arg-type]
    assert not peers.send_nowait("1.0", Lane.BULK, 1, b"", ())


def test_an_instance_is_on_the_board_as_long_as_it_is_there() -> None:
    registry = Registry()
    registry.away = True
    one = Instance("0.0", registry)

    def until(true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not true():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    try:
        one.start()
        time.sleep(0.15)
        registry.away = False
        until(lambda: "0.0" in registry.entries)
        mine = registry.entries.pop("0.0")
        until(lambda: registry.entries.get("0.0") == mine)
        successor = registry.entries["0.0"] = replace(mine, incarnation="another life")
        time.sleep(0.25)
        assert registry.entries["0.0"] == successor
        one.peers.leave()
        assert registry.entries["0.0"] == successor
        registry.entries.clear()
        time.sleep(0.25)
        assert not registry.entries, "it has left"
    finally:
        one.endpoint.close()


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
