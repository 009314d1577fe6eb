"""RDMA without a device: choice of an address, pinned memory, what peers say, and rings with a hostile writer."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from ipaddress import IPv6Address
from pathlib import Path

import pytest
from channel_rig import WAIT, Rig, eventually
from fake_verbs import FakeDevice
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.channel.base import REPLACED, Lane, LinkState
from ferry.channel.rdma import control_stream, fork, neighbour
from ferry.channel.rdma import ring as rings
from ferry.channel.rdma.connection import ConnectionFactory, RdmaConnection, ReassemblyBuffer
from ferry.channel.rdma.control_stream import (
    Bye,
    ControlStream,
    FallBack,
    Hello,
    Signal,
    decode,
    stream_header,
)
from ferry.channel.rdma.device import choose_gid
from ferry.channel.rdma.endpoint import Notify, RdmaSettings
from ferry.channel.rdma.memory import Budget, Limits, RingShape, ring_error
from ferry.channel.rdma.ring import DATA, DOORBELL, SLEEPING, footer
from ferry.channel.rdma.verbs import DeviceUnusable, Gid, QueuePairAddress, library
from ferry.contract.errors import Bug, Exhausted, Refusal, Unreachable

# -- addresses --------------------------------------------------------------------------------------------------------


def gid(index, address, version=2, netdev="eth0"):
    return Gid(index, IPv6Address(address), version, netdev)


LINK_LOCAL, V4, GLOBAL = gid(0, "fe80::1"), gid(1, "::ffff:10.1.2.3"), gid(2, "2001:db8::1")


@pytest.mark.parametrize(
    ("gids", "own", "wanted"),
    [
        ([LINK_LOCAL, V4, GLOBAL], [], 1),
        ([LINK_LOCAL, GLOBAL], [], 2),
        ([LINK_LOCAL], [], 0),
        ([V4, GLOBAL], ["2001:db8::1"], 2),
        ([V4, gid(5, "::ffff:10.1.2.4")], ["10.1.2.4"], 5),
        ([gid(3, "::ffff:10.1.2.3", version=0), GLOBAL], ["10.1.2.3"], 2),
        ([gid(3, "::ffff:172.17.0.1", netdev="docker0"), V4._replace(gid_index=9)], [], 9),
        ([gid(3, "::"), V4], [], 1),
    ],
)
def test_the_best_address_of_a_port(gids, own, wanted):
    assert choose_gid("dev", gids, own, None).gid_index == wanted


def test_an_address_can_be_named_and_must_exist():
    assert choose_gid("dev", [LINK_LOCAL, V4], [], 0) is LINK_LOCAL
    with pytest.raises(DeviceUnusable, match="dev: no address with index 7"):
        choose_gid("dev", [LINK_LOCAL, V4], [], 7)
    with pytest.raises(DeviceUnusable, match="dev: no address"):
        choose_gid("dev", [gid(0, "::")], [], None)


def test_without_pyverbs_the_reason_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyverbs", None)
    library.cache_clear()
    with pytest.raises(DeviceUnusable, match="pyverbs cannot be imported"):
        library()


@pytest.mark.parametrize(
    ("own", "peer"),
    [
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1"),  # answers
        ("fe80::1", "fe80::2"),  # of no interface that could be known
        ("::ffff:10.1.2.3", "2001:db8::1"),  # of two families
        ("::ffff:203.0.113.7", "::ffff:203.0.113.8"),  # no address of this machine
    ],
)
def test_an_address_that_the_system_cannot_look_up_is_left_to_the_device(own, peer):
    neighbour.resolve(IPv6Address(own), IPv6Address(peer))


def test_an_address_that_nobody_has_is_refused_before_the_device_waits_for_it(monkeypatch):
    monkeypatch.setattr(neighbour, "_waiting", lambda sock: True)
    with pytest.raises(DeviceUnusable, match=r"127\.0\.0\.1 does not answer"):
        neighbour.resolve(IPv6Address("::ffff:127.0.0.1"), IPv6Address("::ffff:127.0.0.1"), seconds=0.01)


# -- memory -----------------------------------------------------------------------------------------------------------


def test_five_links_fit_into_what_needs_no_privilege():
    budget = Budget()
    for _ in range(5):
        budget.take(RingShape().pinned_bytes, "a link")
    with pytest.raises(Exhausted, match=r"transport\.rdma\.pinned"):
        budget.take(RingShape().pinned_bytes, "a link")
    budget.give(RingShape().pinned_bytes)
    budget.take(RingShape().pinned_bytes, "a link")


def test_the_remedies_are_named_in_order():
    small = Limits(64 * 1024, False, 1000)
    assert ring_error(1, RingShape(), Limits(8 << 20, False, 1000)) is None
    assert ring_error(1, RingShape(), Limits(None, False, 1000)) is None
    assert ring_error(1, RingShape(), Limits(64 * 1024, True, 0)) is None
    text = ring_error(2, RingShape(8, 4096), small)
    assert text and "(a) use 3 slots of 4096 bytes instead of 8" in text and "(b) set LimitMEMLOCK" in text
    assert "(c) run the sidecar as user 0 with IPC_LOCK" in text
    assert "(a) use smaller slots" in (ring_error(1, RingShape(1, 1 << 20), small) or "")
    assert "give the sidecar the capability" in (ring_error(2, RingShape(), Limits(64 * 1024, False, 0)) or "")
    assert Limits.here().uid >= 0


@pytest.mark.parametrize("values", [(0, 4096), (129, 4096), (8, 128), (8, 4100), (8, 2 << 20)])
def test_shapes_that_cannot_be(values):
    with pytest.raises(Refusal):
        RingShape(*values)


# -- what peers say ---------------------------------------------------------------------------------------------------

HELLO = Hello(QueuePairAddress(33, 99, IPv6Address("::ffff:10.9.0.1"), 5), 1 << 40, 7, 8, 4096, 5, 1 << 41, 9, True)


def test_a_hello_is_read_as_it_was_written():
    assert decode(HELLO.encode()[1:]) == HELLO


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"remote": HELLO.remote._replace(mtu=6)}, "mtu 6"),
        ({"remote": HELLO.remote._replace(qp_num=1 << 24)}, "queue pair"),
        ({"ring": (1 << 64) - 8}, "ring at"),
        ({"credit": 4}, "credit word at"),
    ],
)
def test_a_hello_that_cannot_be_is_refused(change, reason):
    with pytest.raises(Refusal, match=reason):
        decode(HELLO._replace(**change).encode()[1:])


@pytest.fixture
def talk():
    ours, theirs = socket.socketpair()
    yield ControlStream(ours), theirs
    ours.close()
    theirs.close()


def test_messages_arrive_whole_however_they_are_cut(talk):
    control, theirs = talk
    told = [
        HELLO,
        Signal.READY,
        Signal.SWITCH,
        FallBack(3, "no device"),
        b"D",
        b"D",
        Bye(7, "enough"),
        Bye(0, REPLACED),
    ]
    raw = [
        HELLO.encode(),
        Signal.READY,
        Signal.SWITCH,
        FallBack(3, "no device").encode(),
        stream_header(1) + b"D",
        stream_header(0),
        stream_header(1) + b"D",
        Bye(7, "enough").encode(),
    ]
    got = []
    for byte in b"".join([*raw, Bye(0, REPLACED).encode()]):
        theirs.sendall(bytes([byte]))
        message = control.read()
        got += [bytes(message) if isinstance(message, memoryview) else message] if message is not None else []
    assert got == told
    assert [m.reason for m in got[-2:]] == ["closed by the peer: enough", REPLACED]
    theirs.close()
    with pytest.raises(Unreachable, match="closed by the peer"):
        control.read()


@pytest.mark.parametrize("said", [b"FeRy" + bytes(60), b"B" + bytes(8) + b"\xff\xff", b"H" + bytes(200)])
def test_what_is_no_message_is_refused(talk, said):
    control, theirs = talk
    theirs.sendall(said)
    with pytest.raises(Refusal):
        control.read()


def test_a_stream_longer_than_the_buffer_comes_in_pieces(talk):
    control, theirs = talk
    sent = os.urandom(700_000)
    sender = threading.Thread(
        target=theirs.sendall, args=(Signal.READY + stream_header(len(sent)) + sent + Signal.SWITCH,)
    )
    sender.start()
    got, stream = [], b""
    while Signal.SWITCH not in got:
        message = control.read()
        if isinstance(message, memoryview):
            stream += message
        elif message is not None:
            got.append(message)
    sender.join()
    assert got == [Signal.READY, Signal.SWITCH] and stream == sent


# -- rings ------------------------------------------------------------------------------------------------------------


def connections(shape, imm=False):
    ends = [RdmaConnection(ConnectionFactory(FakeDevice(), shape, imm, Budget()), lambda: None) for _ in range(2)]
    ends[0].attach(ends[1].hello)
    ends[1].attach(ends[0].hello)
    return ends


def receive(connection, into):
    size = connection.inbound.take(into)
    connection.requests.poll()
    connection.inbound.post_credit()
    return bytes(into[:size])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 9),
    st.sampled_from([256, 264, 1024]),
    st.booleans(),
    st.lists(st.lists(st.integers(0, 700), min_size=1, max_size=5), max_size=25),
)
def test_a_stream_of_bytes_arrives_as_it_was_sent(slots, slot_bytes, imm, gathers):
    a, b = connections(RingShape(slots, slot_bytes), imm)
    into = memoryview(bytearray(slot_bytes))
    sent, got, value = b"", b"", 0
    for sizes in gathers:
        pieces = []
        for size in sizes:
            value += 1
            pieces.append(bytes([value % 256]) * size)
        sent += b"".join(pieces)
        rest = a.outbound.put([p for p in pieces if p])
        for _ in range(1000):
            if not rest:
                break
            got += receive(b, into)
            a.requests.poll()
            a.outbound.read_credit()
            rest = a.outbound.put(rest)
        assert not rest
    while piece := receive(b, into):
        got += piece
    assert got == sent
    b.requests.poll()
    b.inbound.post_credit(idle=True)
    a.outbound.read_credit()
    assert a.outbound.settled


def test_a_slot_is_reused_only_when_our_own_device_is_done_with_it():
    a, b = connections(RingShape(2, 256))
    into = memoryview(bytearray(256))
    assert not a.outbound.put([b"1"]) and not a.outbound.put([b"2"])
    assert receive(b, into) == b"1" and receive(b, into) == b"2"
    assert a.outbound.read_credit() and not a.outbound.room, "credit is there, the completion was not taken"
    a.requests.poll()
    assert a.outbound.room


def test_torn_bytes_are_waited_for_and_then_refused(monkeypatch):
    _, b = connections(RingShape(4, 256))
    ring, into = b.inbound.ring, memoryview(bytearray(256))
    foot = footer(4, b.hello.ring_id, 1, [memoryview(b"body")])
    ring.view[232:256] = foot
    assert b.inbound.take(into) == 0, "the footer came first"
    ring.view[228:232] = b"body"
    assert b.inbound.take(into) == 4 and into[:4] == b"body"
    ring.view[488:512] = footer(4, b.hello.ring_id, 2, [memoryview(b"body")])
    monkeypatch.setattr(rings, "TORN_SECONDS", -1.0)
    assert b.inbound.take(into) == 0
    with pytest.raises(Refusal, match="slot 2 of the ring is damaged: its checksum is wrong"):
        b.inbound.take(into)


@pytest.mark.parametrize(
    ("length", "other_ring", "reason"),
    [(0, 0, "0 bytes"), (233, 0, "233 bytes"), (2**32 - 1, 0, "bytes"), (4, 1, "4 bytes, ring")],
)
def test_a_footer_that_cannot_be_is_refused(monkeypatch, length, other_ring, reason):
    monkeypatch.setattr(rings, "TORN_SECONDS", -1.0)
    _, b = connections(RingShape(4, 256))
    b.inbound.ring.view[232:256] = footer(
        length, b.hello.ring_id ^ other_ring, 1, [memoryview(bytes(min(length, 232)))]
    )
    into = memoryview(bytearray(256))
    assert b.inbound.take(into) == 0
    with pytest.raises(Refusal, match=reason):
        b.inbound.take(into)


def test_a_torn_credit_is_read_again_before_it_is_refused(monkeypatch):
    a, b = connections(RingShape(4, 256))
    a.outbound.put([b"body"])
    words = a.outbound.credit.view.cast("Q")
    words[0] = 0x1FF
    assert not a.outbound.read_credit()
    words[0] = 1
    assert a.outbound.read_credit() and a.outbound.consumed == 1
    words[0] = 0
    monkeypatch.setattr(rings, "TORN_SECONDS", -1.0)
    assert not a.outbound.read_credit()
    with pytest.raises(Refusal, match="impossible credit of the ring: 0 slots consumed, 1 were before and 1 were sent"):
        a.outbound.read_credit()
    assert b.inbound.consumed == 0


def test_a_sleeper_is_rung_once_for_what_it_did_not_see():
    a, b = connections(RingShape(4, 256))
    a.outbound.put([b"1"])  # it arrives after the other side's last look
    assert b.arm()
    a.outbound.read_credit()
    a.outbound.ring_doorbell()
    a.outbound.ring_doorbell()
    assert [post[3:] for post in a.queue_pair.posted] == [(None, False), (DOORBELL, True)]
    b.disarm()
    assert b.inbound.take(memoryview(bytearray(256))) == 1
    assert b.arm()
    a.outbound.read_credit()
    a.outbound.put([b"2"])
    a.outbound.put([b"3"])
    assert [post[3:] for post in a.queue_pair.posted[2:]] == [(DOORBELL, True), (None, False)]


def test_credit_reports_leave_room_for_data():
    a, b = connections(RingShape(1, 256))
    into = memoryview(bytearray(256))
    b.requests.poll = lambda: False  # nobody takes this side's completions
    for _ in range(100):
        assert not a.outbound.put([b"x"])
        assert b.inbound.take(into) == 1
        b.inbound.post_credit(idle=True)
        a.requests.poll()
        if not a.outbound.read_credit():
            break
    assert b.requests.posted - b.requests.completed < b.inbound.shape.send_depth - 1 - 7
    assert not b.outbound.put([b"data still goes"])


def test_an_intake_larger_than_its_frames_keeps_the_rest():
    shape = RingShape(4, 1 << 20)
    a, b = connections(shape)
    buffer, fed = ReassemblyBuffer(shape), []

    def feed(data):
        whole = len(data) // 50_000 * 50_000
        fed.append(bytes(data[:whole]))
        return whole

    sent = b"".join(bytes([n]) * 60_000 for n in range(100))
    rest = [sent]
    while rest or sum(map(len, fed)) < len(sent):
        rest = a.outbound.put(rest)
        if buffer.fill(b.inbound):
            buffer.empty(feed)
        b.requests.poll()
        b.inbound.post_credit(idle=True)
        a.requests.poll()
        a.outbound.read_credit()
    assert b"".join(fed) == sent


def test_immediate_data_tells_data_from_doorbells():
    a, b = connections(RingShape(4, 256), imm=True)
    into = memoryview(bytearray(256))
    assert b.arm()
    a.outbound.read_credit()
    a.outbound.put([b"1"])
    assert [post[3:] for post in a.queue_pair.posted] == [(DATA, True)]
    assert receive(b, into) == b"1" and receive(b, into) == b""
    assert SLEEPING & 1 == 0


# -- the channel ------------------------------------------------------------------------------------------------------


def test_a_peer_with_other_rings_is_refused_with_the_reason():
    ours, theirs = Rig("fake-imm"), Rig("fake-imm", RdmaSettings(RingShape(4, 4096), Notify.IMM))
    try:
        a, b = ours.party("a"), theirs.party("b")
        a.endpoint.connect("b", b.endpoint.listen(), WAIT)
        reasons = a.reason() + b.reason()
        assert "use the same setting everywhere" in reasons
    finally:
        ours.end()
        theirs.end()


def test_a_peer_that_has_no_rdma_is_spoken_to_over_tcp():
    ours, theirs = Rig("fake-footer"), Rig("tcp")
    try:
        a, b = ours.party("a"), theirs.party("b")
        for caller, called in ((a, b), (b, a)):
            channel = caller.endpoint.connect(called.name, called.endpoint.listen(), WAIT)
            channel.send(Lane.DELTA, 1, 0, b"")
            assert called.next().kind == 1
            assert a.endpoint.links() == (LinkState("b", "tcp", "the peer has no RDMA"),)
            assert b.endpoint.links() == (LinkState("a", "tcp", ""),)
            channel.close()
            assert a.reason() and b.reason()
    finally:
        ours.end()
        theirs.end()


def test_memory_is_given_back_with_the_channel_and_bounds_the_number_of_links():
    rig = Rig("fake-imm", RdmaSettings(notify=Notify.IMM, pinned_bytes_max=RingShape().pinned_bytes))
    try:
        a, b, c = rig.party("a"), rig.party("b"), rig.party("c")
        channel = a.endpoint.connect("b", b.endpoint.listen(), WAIT)
        channel.send(Lane.DELTA, 1, 0, b"")
        assert b.next().kind == 1 and a.endpoint.pinned == RingShape().pinned_bytes
        a.endpoint.connect("c", c.endpoint.listen(), WAIT)
        assert "the link to c pins" in a.reason()
        channel.close("done")
        assert a.reason() == "done" and a.endpoint.pinned == 0
    finally:
        rig.end()


def test_a_link_that_fails_ends_the_channel_with_its_reason():
    rig = Rig("fake-footer")
    try:
        a, b, to_b, to_a = rig.pair()
        to_b.send(Lane.DELTA, 1, 0, b"")
        b.next()
        eventually(lambda: to_a.transport._control.established is not None)
        to_a.transport._control.established.queue_pair.failed = True
        assert "_ERR" in a.reason()
    finally:
        rig.end()


# -- forks ------------------------------------------------------------------------------------------------------------

FORK = """
import os
from ferry.channel.rdma import fork as guard
from ferry.contract.errors import Bug
fork = os.fork
guard.hold()
try:
    os.fork()
except Bug as error:
    print("refused:", error)
child = fork()  # as by code that Python does not see
if child == 0:
    print("the child lives")
    os._exit(0)
print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
guard.drop()
if os.fork() == 0:
    os._exit(0)
print("given back", os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_no_fork_while_a_device_is_open():
    path = os.pathsep.join([str(Path(control_stream.__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("refused: fork while an RDMA device is open")
    assert lines[1:] == [f"child ended with {fork.EXIT_CODE}", "given back 0"]
    assert issubclass(Bug, Exception)


@pytest.mark.parametrize("carrier", ["tcp", "fake-footer", "fake-imm"])
def test_an_idle_pair_uses_less_than_a_hundredth_of_a_core(carrier):
    """Processor time, not time: both sides together, in a process of their own, over memory instead of a device.

    The least of five looks: what other programs take of a processor's caches counts as ours.
    """
    done = subprocess.run(
        [sys.executable, "-c", IDLE, carrier],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.01


IDLE = """
import sys, time, conftest
from channel_rig import Rig, eventually
rig = Rig(sys.argv[1])
*_, ours, theirs = rig.pair()
eventually(lambda: {ours.transport.link.kind, theirs.transport.link.kind} == {rig.carrier})
time.sleep(0.5)
shares = []
for _ in range(5):
    began, used = time.monotonic(), time.process_time()
    time.sleep(0.6)
    shares.append((time.process_time() - used) / (time.monotonic() - began))
print(min(shares))
rig.end()
"""
