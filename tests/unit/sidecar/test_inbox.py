"""What waits for an instance's loop: bounded by the credits that were granted, and what an epoch waits for first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from ferry.channel.base import Channel, Lane
from ferry.channel.tcp.endpoint import TcpEndpoint
from ferry.contract import limits
from ferry.contract import messages as m
from ferry.contract.names import Attempt, InstanceId, Step
from ferry.contract.routing import Version
from ferry.sidecar import inbox
from ferry.sidecar.inbox import Inbox
from ferry.sidecar.node import Node

A, B = InstanceId("0.0"), InstanceId("1.0")
BODY = bytes(250 * 1024)
COUNT = 100
"""messages in a flood: many times what a lane may have under way"""


def chunk(number: int) -> m.Chunk:
    return m.Chunk(A, 1, number, None, False, 0, 0)


def partials(number: int) -> m.Partials:
    return m.Partials(Step(number, 0), Attempt(1, number), A)


def delta(number: int) -> m.Delta:
    return m.Delta(Step(number, 0), Attempt(1, number), Version(1, 1), A, (A, B), (0,), 0, 0)


FLOODS: dict[Lane, Callable[[int], m.Message]] = {Lane.BULK: chunk, Lane.FRAGMENT: partials, Lane.DELTA: delta}


@pytest.fixture
def standing() -> Iterator[tuple[Node, Channel]]:
    """An instance whose loop takes nothing, and a peer's channel to it."""
    node = Node.__new__(Node)
    node._inbox = Inbox()
    silent = lambda *_: None  # noqa: E731
    receiver = TcpEndpoint(B, "job", b"s" * 16, node._on_message, silent, silent)
    sender = TcpEndpoint(A, "job", b"s" * 16, silent, silent, silent)
    try:
        yield node, sender.connect(B, receiver.listen(), 5.0)
    finally:
        sender.close()
        receiver.close()


def eventually(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)


def say(channel: Channel, lane: Lane, message: m.Message) -> None:
    channel.post(lane, m.CODES[type(message)], 0, m.encode(message), (BODY,))


def taken(node: Node) -> list[m.Message]:
    """What the loop finds, in its order, as long as something waits."""
    out = []
    while (item := node._inbox.take(0.01)) is not None:
        out.append(item.event)
        item.done()
    return out


def test_a_loop_that_stands_still_holds_no_more_than_its_credits(standing: tuple[Node, Channel]) -> None:
    node, channel = standing
    for number in range(COUNT):
        for lane, message in FLOODS.items():
            say(channel, lane, message(number))
    eventually(lambda: all(lane.credits == 0 for lane in channel.statistics().lanes))
    held = {lane: sum(len(item.body) for item in waiting) for lane, waiting in node._inbox._lanes.items()}
    for lane, size in held.items():
        assert 0 < size <= limits.SLOTS * limits.SLOT_BYTES, (lane, held)
        assert channel.statistics().lanes[lane].queued_bytes > COUNT * len(BODY) / 2, "the rest is its sender's to keep"
    got = []
    deadline = time.monotonic() + 20
    while len(got) < COUNT * len(FLOODS):
        assert time.monotonic() < deadline, len(got)
        got += taken(node)
    for message in FLOODS.values():
        mine = [x for x in got if type(x) is type(message(0))]
        assert mine == [message(number) for number in range(COUNT)], "all of it, in order"


def test_what_an_epoch_waits_for_is_taken_first(
    standing: tuple[Node, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "STARVED_SECONDS", 1e9)
    node, channel = standing
    for lane in (Lane.BULK, Lane.FRAGMENT):
        for number in range(COUNT):
            say(channel, lane, FLOODS[lane](number))
    say(channel, Lane.DELTA, delta(7))
    eventually(lambda: node._inbox._lanes[Lane.DELTA] and node._inbox._lanes[Lane.FRAGMENT])
    eventually(lambda: node._inbox._lanes[Lane.BULK])
    got = taken(node)
    assert got[0] == delta(7) and got[1] == partials(0)


def test_no_lane_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1.0]
    monkeypatch.setattr(inbox.time, "monotonic", lambda: now[0])
    one, got = Inbox(), []
    for number in range(100):
        one.arrived(Lane.BULK, chunk(number), b"")
    for number in range(100):
        one.arrived(Lane.DELTA, delta(number), b"")
        now[0] += inbox.STARVED_SECONDS / 4
        item = one.take(0)
        assert item is not None
        got.append(item.event)
    chunks = [event for event in got if isinstance(event, m.Chunk)]
    assert chunks == [chunk(number) for number in range(len(chunks))] and 15 <= len(chunks) <= 35


def test_a_message_keeps_its_credit_until_the_loop_has_done_with_it() -> None:
    one, given = Inbox(), []
    held = one.arrived(Lane.BULK, chunk(0), b"")
    held.bind(lambda: given.append(1))
    item = one.take(0)
    assert item is not None and not given
    item.done()
    assert given and one.take(0.001) is None


def test_a_snapshot_that_comes_does_not_make_an_instance_look_busy() -> None:
    one = Inbox()
    one.arrived(Lane.BULK, chunk(0), b"")
    assert one.calm
    one.arrived(Lane.FRAGMENT, partials(0), b"")
    assert not one.calm and one.take(0) is not None and one.calm
    one.put(m.Ask(1))
    assert not one.calm
