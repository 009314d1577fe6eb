"""What the memory network adds for tests of the rooms above: delivery by hand, and a process that is killed."""

from __future__ import annotations

from ferry.channel.base import Lane
from ferry.channel.memory import MemoryEndpoint, MemoryNetwork


def pair(network):
    seen = []

    def make(name):
        return MemoryEndpoint(
            network,
            name,
            "job",
            b"secret",
            lambda m: seen.append((name, m.kind)),
            lambda peer, channel: seen.append((name, "open")),
            lambda peer, reason: seen.append((name, reason)),
        )

    a, b = make("a"), make("b")
    channel = a.connect("b", b.listen())
    seen.clear()
    return a, b, channel, seen


def test_nothing_is_delivered_before_the_pump_and_everything_after():
    network = MemoryNetwork()
    _, b, channel, seen = pair(network)
    channel.post(Lane.DELTA, 1, 0, b"")
    b.channel("a").post(Lane.DELTA, 2, 0, b"")
    assert seen == []
    assert network.pump(limit=1) == 1 and seen == [("b", 1)]
    network.pump()
    assert seen == [("b", 1), ("a", 2)] and network.pump() == 0


def test_flush_delivers_when_nobody_else_does():
    _, _, channel, seen = pair(MemoryNetwork())
    channel.post(Lane.DELTA, 1, 0, b"")
    assert channel.flush(0) and seen == [("b", 1)]


def test_a_killed_endpoint_says_nothing_and_its_peer_hears_of_it():
    network = MemoryNetwork()
    a, b, channel, seen = pair(network)
    channel.post(Lane.DELTA, 1, 0, b"")
    a.kill()
    network.pump()
    assert seen == [("b", "closed by the peer: killed")] and b.channel("a") is None
