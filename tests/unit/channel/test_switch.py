"""A live connection that goes from RDMA to TCP and back: nothing is lost, nothing comes twice, nothing is silent."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time

import pytest
from channel_rig import WAIT, Rig, eventually, prefer
from fake_verbs import FakeQueuePair

from ferry.channel.base import Lane, LinkState
from ferry.channel.rdma import link_control
from ferry.channel.rdma.connection import LinkLost
from ferry.channel.rdma.control_stream import Hello, Signal
from ferry.channel.rdma.endpoint import Notify, RdmaSettings
from ferry.channel.rdma.link_control import LinkControl, LinkPhase
from ferry.channel.rdma.memory import RingShape
from ferry.channel.tcp.connection import unacknowledged
from ferry.contract.errors import Refusal, Unreachable

REFUSED = "connection lost: RDMA request failed: REM_ACCESS_ERR"

SEEDS = int(os.environ.get("FERRY_SWITCH_SEEDS", "12"))
FIRST = int(os.environ.get("FERRY_SWITCH_FROM", "0"))


@pytest.fixture(params=[Notify.FOOTER, Notify.IMM])
def rig(request):
    rig = Rig(f"fake-{request.param}", RdmaSettings(RingShape(4, 4096), request.param, fallback=True))
    yield rig
    rig.end()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(link_control, "RETRY_SECONDS", 0.005)
    monkeypatch.setattr(link_control, "RETRY_SECONDS_MAX", 0.02)


def established(*channels):
    eventually(lambda: all(c.transport.link.kind == "rdma" for c in channels))


def exchange(parties, channels, count, meanwhile, seed):
    """Both send numbered messages of all sizes on all lanes while something happens; both get all, in order."""
    errors = []

    def send(channel, draw):
        try:
            for number in range(count):
                size = draw.choice((0, 10, 3000, 70_000, 200_000) if number % 20 == 0 else (0, 10, 900))
                lane = Lane(number % 3)
                channel.send(
                    lane, number, 0, number.to_bytes(4, "little"), [bytes([number % 251]) * size], timeout=WAIT
                )
        except Exception as error:
            errors.append(error)

    senders = [threading.Thread(target=send, args=(c, random.Random(seed + i))) for i, c in enumerate(channels)]
    for sender in senders:
        sender.start()
    meanwhile(lambda: any(s.is_alive() for s in senders))
    for sender in senders:
        sender.join(6 * WAIT)
    assert not errors and not any(s.is_alive() for s in senders)
    for party in parties:
        got = party.take(count)
        for lane in Lane:
            assert [m.kind for m in got if m.lane == lane] == list(range(int(lane), count, 3))
        for message in got:
            assert message.kind == int.from_bytes(message.head, "little")
            assert not message.body or set(bytes(message.body)) == {message.kind % 251}
        assert party.messages.empty()


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_links_that_break_again_and_again(rig, seed, monkeypatch):
    print(f"seed {seed}: FERRY_SWITCH_FROM={seed} FERRY_SWITCH_SEEDS=1 pytest {__file__} -k break_again")
    a, b, to_b, to_a = rig.pair()
    draw = random.Random(seed)
    falls, revoke = [], LinkControl.revoke
    monkeypatch.setattr(LinkControl, "revoke", lambda control, reason: (falls.append(reason), revoke(control, reason)))

    def disturbance(going_on):
        while going_on():
            time.sleep(draw.random() * 0.02)
            channel = draw.choice((to_b, to_a))
            connection = channel.transport._control._connection
            how = draw.randrange(4)
            if how == 0 and connection is not None:
                # As after too many retries: this side's requests fail, also those under way.
                connection.queue_pair.failed = True
            elif how == 1 and connection is not None:
                connection.queue_pair.revoke()  # the peer's requests fail, and so do its own
            elif how == 2:
                prefer(channel, rdma=False)
            else:
                prefer(channel, rdma=True)
        prefer(to_b, rdma=True)
        prefer(to_a, rdma=True)

    exchange((a, b), (to_b, to_a), 600, disturbance, seed)
    assert falls and not a.events[1:] and not b.events[1:], "it went on on TCP, and no connection ended"
    established(to_b, to_a)
    to_b.send(Lane.DELTA, 7, 0, b"")
    assert b.next().kind == 7


def test_it_goes_to_tcp_and_back_when_it_is_told(rig):
    a, b, to_b, to_a = rig.pair()
    established(to_b, to_a)
    for wanted in (False, True, False, True):
        prefer(to_b, rdma=wanted)
        eventually(lambda w=wanted: {c.transport.link.kind for c in (to_b, to_a)} == {"rdma" if w else "tcp"})
        to_b.send(Lane.DELTA, int(wanted), 0, b"x" * 9000)
        to_a.send(Lane.BULK, int(wanted), 0, b"y" * 9000)
        assert to_b.flush(WAIT) and to_a.flush(WAIT)
        assert b.next().kind == a.next().kind == wanted
        if not wanted:
            assert a.endpoint.links() == (LinkState("b", "tcp", "TCP is preferred"),)
            # Its next request may have met the fence before it was told.
            assert b.endpoint.links()[0].reason in ("TCP is preferred (says the peer)", REFUSED)
    assert not a.events[1:] and not b.events[1:]


def test_what_was_not_read_is_sent_again_exactly(rig):
    _a, b, to_b, to_a = rig.pair()
    established(to_b, to_a)
    with to_a.transport.connection.sending:  # the reader stands still, so slots stay unread
        time.sleep(0.02)
        to_b.post(Lane.DELTA, 1, 0, b"", [bytes(10_000)])
        eventually(lambda: to_b.transport._control.outgoing.outbound.sent >= 3)
        to_a.transport._control._connection.queue_pair.failed = True
        to_b.transport._failure = LinkLost("for this test")
        to_b.transport._waker.wake()
        eventually(lambda: to_b.transport._control.phase is LinkPhase.FALLING_BACK)
        assert not any(r.live for r in to_b.transport._control._connection.queue_pair.regions), (
            "the peer has no rights any more"
        )
        assert not to_b.flush(0.01), "what may have to be sent again has not left"
    assert b.next().body == bytes(10_000)
    assert to_b.flush(WAIT) and not b.events[1:]
    established(to_b, to_a)


def test_a_ring_is_not_used_before_the_devices_have_answered(rig, monkeypatch):
    with monkeypatch.context() as silent:
        silent.setattr(FakeQueuePair, "poll", lambda queue_pair: 0)
        _, b, to_b, to_a = rig.pair()
        eventually(lambda: {c.transport._control.phase for c in (to_b, to_a)} == {LinkPhase.PROBING})
        to_b.send(Lane.DELTA, 3, 0, b"")
        assert b.next().kind == 3 and {c.transport.link.kind for c in (to_b, to_a)} == {"tcp"}
    established(to_b, to_a)


def test_rings_of_two_sizes_stay_on_tcp_and_say_why():
    ours = Rig("fake-imm", RdmaSettings(RingShape(4, 4096), Notify.IMM, fallback=True))
    theirs = Rig("fake-imm", RdmaSettings(RingShape(8, 4096), Notify.IMM, fallback=True))
    try:
        a, b = ours.party("a"), theirs.party("b")
        channel = a.endpoint.connect("b", b.endpoint.listen(), WAIT)
        channel.send(Lane.DELTA, 1, 0, b"")
        assert b.next().kind == 1
        eventually(lambda: "use the same setting everywhere" in a.endpoint.links()[0].reason)
        assert a.endpoint.links()[0].kind == "tcp"
    finally:
        ours.end()
        theirs.end()


def test_without_room_for_a_ring_it_stays_on_tcp_and_comes_back_when_there_is():
    pinned = RingShape(4, 4096).pinned_bytes
    rig = Rig("fake-footer", RdmaSettings(RingShape(4, 4096), Notify.FOOTER, pinned_bytes_max=pinned, fallback=True))
    try:
        a, b, c = rig.party("a"), rig.party("b"), rig.party("c")
        to_b = a.endpoint.connect("b", b.endpoint.listen(), WAIT)
        established(to_b)
        to_c = a.endpoint.connect("c", c.endpoint.listen(), WAIT)
        to_c.send(Lane.DELTA, 3, 0, b"")
        assert c.next().kind == 3
        eventually(lambda: "the link to c pins" in to_c.transport.link.reason)
        to_b.close()
        assert a.reason()
        established(to_c)
    finally:
        rig.end()


def test_a_peer_that_claims_more_than_was_sent_is_refused(rig):
    a, _b, to_b, to_a = rig.pair()
    established(to_b, to_a)
    to_a.transport._control._connection.inbound.consumed += 100
    prefer(to_a, rdma=False)
    assert "the peer says it read 100 slots" in a.reason()


@pytest.mark.parametrize("message", [Signal.SWITCH, Signal.READY, Hello])
def test_what_may_not_be_said_now_is_refused(rig, message):
    a, _b, to_b, to_a = rig.pair()
    established(to_b, to_a)
    control = to_a.transport._control
    with to_a.transport.connection.sending:
        control._say(control._connection.hello.encode() if message is Hello else message)
    assert "while its RDMA link is established" in a.reason()


def test_a_peer_that_answers_neither_way_is_given_up(monkeypatch, rig):
    a, b, to_b, to_a = rig.pair()
    established(to_b, to_a)
    monkeypatch.setattr(link_control, "unacknowledged", lambda _: True)
    monkeypatch.setattr(LinkControl, "announce_fall_back", lambda _: None)
    to_b.transport._control._connection.queue_pair.failed = True
    assert "and its TCP connection does not answer either" in a.reason() + b.reason()


def test_a_device_that_does_not_answer_has_the_peers_kernel_asked_too(monkeypatch, rig):
    _, b, to_b, to_a = rig.pair()
    established(to_b, to_a)
    with monkeypatch.context() as silent:
        silent.setattr(FakeQueuePair, "poll", lambda queue_pair: 0)
        eventually(lambda: to_b.transport._control._pinged and to_a.transport._control._pinged)
        to_b.send(Lane.DELTA, 3, 0, b"")
        assert b.next().kind == 3, "a late answer is no end"
    eventually(lambda: not to_b.transport._control._pinged)
    established(to_b, to_a)
    monkeypatch.setattr(link_control, "unacknowledged", lambda _: True)
    monkeypatch.setattr(link_control, "UNACKNOWLEDGED_SECONDS", 100.0)
    to_b.transport._control._pinged = True
    to_b.transport._failure = LinkLost("for this test")
    to_b.transport._waker.wake()
    assert "for this test, and its TCP connection does not answer either" in b.reason()


def test_a_ping_of_one_link_says_nothing_of_the_next(monkeypatch, rig):
    _, b, to_b, to_a = rig.pair()
    established(to_b, to_a)
    monkeypatch.setattr(link_control, "unacknowledged", lambda _: False)  # the ping was answered long ago
    to_b.transport._control._pinged = True
    to_b.transport._failure = LinkLost("for this test")
    to_b.transport._waker.wake()
    eventually(lambda: to_b.transport._control.reason == "for this test")
    eventually(lambda: not to_b.transport._control._pinged)
    established(to_b, to_a)
    assert not b.events[1:]


def test_a_flush_outlives_its_link(rig):
    _, b, to_b, to_a = rig.pair()
    established(to_b, to_a)
    connection = to_b.transport._control.established

    def broken():
        raise Unreachable("for this test")

    connection.last_request = broken
    to_b.post(Lane.DELTA, 1, 0, b"", [bytes(10_000)])
    assert to_b.flush(WAIT) and b.next().body == bytes(10_000)
    assert not b.events[1:]


def test_a_flush_ends_in_time_when_the_device_is_silent(rig, monkeypatch):
    _, b, to_b, to_a = rig.pair()
    established(to_b, to_a)
    with monkeypatch.context() as silent:
        silent.setattr(FakeQueuePair, "poll", lambda queue_pair: 0)
        to_b.post(Lane.DELTA, 1, 0, b"")
        began = time.monotonic()
        assert not to_b.flush(0.05) and time.monotonic() - began < 1.0
    assert to_b.flush(WAIT) and b.next().kind == 1


@pytest.mark.parametrize("reads", [True, False])
def test_what_a_peer_does_not_read_is_not_unacknowledged(reads):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, _ = server.accept()
        with theirs:
            ours.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while not reads:
                    ours.send(bytes(1 << 16))
            eventually(lambda: not unacknowledged(ours))


def test_a_link_that_must_be_rdma_ends_its_connection_when_the_peer_leaves_it():
    ours = Rig("fake-imm", RdmaSettings(RingShape(4, 4096), Notify.IMM, fallback=False))
    theirs = Rig("fake-imm", RdmaSettings(RingShape(4, 4096), Notify.IMM, fallback=True))
    try:
        a, b = ours.party("a"), theirs.party("b")
        to_b = a.endpoint.connect("b", b.endpoint.listen(), WAIT)
        to_a = b.opened.get(timeout=WAIT)[1]
        established(to_b, to_a)
        prefer(to_a, rdma=False)
        assert "the peer goes on over TCP: TCP is preferred" in a.reason()
        with pytest.raises(Refusal, match="itself"):
            a.endpoint.connect("a", ("", 0))
    finally:
        ours.end()
        theirs.end()
