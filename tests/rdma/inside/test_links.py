"""What a peer cannot do, whatever it sends: every request here is made with real verbs, and its bytes must not land."""

from __future__ import annotations

import time

import pytest

from ferry.channel.rdma.connection import ConnectionFactory, RdmaConnection
from ferry.channel.rdma.memory import RingShape
from ferry.channel.rdma.ring import SLEEPING
from ferry.channel.rdma.verbs import ScatterGatherEntry, status_name
from ferry.contract.errors import Refusal, Unreachable

PATTERN = b"\xa5" * 4096
SECRET = b"these bytes must not land"


@pytest.fixture
def pair(device):
    """A writer and an owner of memory that the writer may write."""
    writer, owner = device.queue_pair(64, 8), device.queue_pair(64, 8)
    to_writer, to_owner = writer.address, owner.address
    writer.connect(to_owner)
    owner.connect(to_writer)
    source = writer.region(4096, remote=False)
    source.view[: len(SECRET)] = SECRET
    target = owner.region(8192, remote=True)
    target.view[:] = PATTERN * 2
    yield writer, owner, ScatterGatherEntry(source.address, len(SECRET), source.lkey), target
    writer.close()
    owner.close()


def outcome(link, seconds=3.0):
    """What becomes of the last request: 'done', or why it failed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if link.poll():
                return "done"
        except Unreachable as error:
            return str(error)
        time.sleep(0.0005)
    return "nothing"


def untouched(target):
    return bytes(target.view) == PATTERN * 2


def test_a_write_that_is_allowed_lands(pair):
    writer, _, piece, target = pair
    writer.post_write([piece], target.address + 100, target.rkey, 1, signaled=True)
    assert outcome(writer) == "done" and bytes(target.view[100 : 100 + len(SECRET)]) == SECRET


def test_a_wrong_key_writes_nothing(pair):
    writer, _, piece, target = pair
    writer.post_write([piece], target.address, target.rkey ^ 0x111, 1, signaled=True)
    assert "REM_ACCESS_ERR" in outcome(writer) and untouched(target)


@pytest.mark.parametrize("offset", [8192 - len(SECRET) + 8, 8192, -8])
def test_a_write_out_of_bounds_writes_nothing_not_even_its_part_within(pair, offset):
    writer, _, piece, target = pair
    writer.post_write([piece], target.address + offset, target.rkey, 1, signaled=True)
    assert "REM_ACCESS_ERR" in outcome(writer) and untouched(target)


def test_memory_without_the_right_is_not_written(pair):
    writer, owner, piece, _ = pair
    private = owner.region(8192, remote=False)
    private.view[:] = PATTERN * 2
    writer.post_write([piece], private.address, private.rkey, 1, signaled=True)
    assert "REM_ACCESS_ERR" in outcome(writer) and untouched(private)


def test_memory_of_another_peer_is_not_written(pair, device):
    writer, _, piece, target = pair
    other = device.queue_pair(8, 8)
    memory = other.region(8192, remote=True)
    memory.view[:] = PATTERN * 2
    writer.post_write([piece], memory.address, memory.rkey, 1, signaled=True)
    assert "REM_ACCESS_ERR" in outcome(writer) and untouched(memory) and untouched(target)
    other.close()


def test_a_zombie_writes_nothing_once_the_memory_is_revoked(pair):
    """It holds the right key and was allowed until now; then it is fenced, and its late write has no effect."""
    writer, _, piece, target = pair
    address, key = target.address, target.rkey
    writer.post_write([piece], address, key, 1, signaled=True)
    assert outcome(writer) == "done"
    target.revoke()
    target.view[:] = PATTERN * 2
    writer.post_write([piece], address, key, 2, signaled=True)
    assert "REM_ACCESS_ERR" in outcome(writer) and untouched(target)


def test_a_zombie_does_not_reach_memory_that_is_registered_anew(pair):
    writer, owner, piece, target = pair
    key = target.rkey
    target.revoke()
    again = owner.region(8192, remote=True, mapping=target._map)
    target.view[:] = PATTERN * 2
    assert again.address == target.address and again.rkey != key
    writer.post_write([piece], target.address, key, 1, signaled=True)
    assert "REM_ACCESS_ERR" in outcome(writer) and untouched(target)
    again.revoke()
    again.view.release()
    owner._regions.remove(again)
    again._pin = None


def test_a_link_that_is_gone_is_told_to_a_writer(pair):
    writer, owner, piece, target = pair
    owner._qp.close()
    began = time.monotonic()
    writer.post_write([piece], target.address, target.rkey, 1, signaled=True)
    assert "RETRY_EXC_ERR" in outcome(writer) and time.monotonic() - began < 1.0 and untouched(target)


def test_requests_after_a_failure_are_flushed_and_all_of_them_tell(pair):
    writer, _, piece, target = pair
    writer.post_write([piece], target.address, 0xDEAD, 1, signaled=True)
    assert "REM_ACCESS_ERR" in outcome(writer)
    for number in range(2, 12):
        writer.post_write([piece], target.address, target.rkey, number)
    told = []
    until(lambda: told.extend(status_name(int(done.status)) for done in writer._send_cq.poll(16)[1]) or len(told) >= 10)
    assert told == ["WR_FLUSH_ERR"] * 10 and untouched(target)


# -- rings ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def connections(device):
    from ferry.channel.rdma.memory import Budget

    factory = ConnectionFactory(device, RingShape(8, 4096), False, Budget())
    a, b = RdmaConnection(factory, lambda: None), RdmaConnection(factory, lambda: None)
    a.attach(b.hello)
    b.attach(a.hello)
    yield a, b
    a.close()
    b.close()


def until(call, seconds=3.0):
    deadline = time.monotonic() + seconds
    while not (got := call()) and time.monotonic() < deadline:
        time.sleep(0.0005)
    return got


def word(connection, value):
    """The peer of `connection` writes this into its credit word."""
    raw = value.to_bytes(8, "little")
    return connection.outbound.credit.address, connection.outbound.credit.rkey, raw


def forge(writer, owner, value):
    address, key, raw = word(owner, value)
    stage = writer.inbound._credit_staging
    stage.view[:8] = raw
    writer.requests.post_write([ScatterGatherEntry(stage.address, 8, stage.lkey)], address, key, signaled=True)
    assert until(writer.requests.poll)


def test_bytes_go_round_the_ring_and_credit_comes_back(connections):
    a, b = connections
    into = memoryview(bytearray(4096))
    for number in range(100):
        body = bytes([number]) * (1 + number * 37 % 4000)
        assert until(lambda: a.requests.poll() or a.outbound.read_credit() or a.outbound.room)
        assert not a.outbound.put([body])
        size = until(lambda: b.inbound.take(into))
        assert into[:size] == body
        b.requests.poll()
        b.inbound.post_credit(idle=True)
        until(lambda: a.requests.poll() + a.outbound.read_credit())


@pytest.mark.parametrize("value", [1, 2**40, 9 | SLEEPING])
def test_credit_for_what_was_never_sent_is_refused(connections, value):
    a, b = connections
    forge(b, a, value)
    with pytest.raises(Refusal, match="impossible credit of the ring"):
        until(a.outbound.read_credit)


def test_credit_that_runs_backwards_is_refused(connections):
    a, b = connections
    into = memoryview(bytearray(4096))
    for _ in range(4):
        a.outbound.put([b"body"])
        assert until(lambda: b.inbound.take(into))
    b.inbound.post_credit(idle=True)
    assert until(a.outbound.read_credit) and a.outbound.consumed == 4
    forge(b, a, 3)
    with pytest.raises(Refusal, match=r"impossible credit of the ring: 3 slots"):
        until(a.outbound.read_credit)


def test_a_full_ring_sends_nothing_more(connections):
    a, _ = connections
    rest = a.outbound.put([bytes(4072)] * 10)
    assert len(rest) == 2 and a.outbound.sent == 8
    assert until(lambda: a.requests.poll() and a.requests.completed >= 8)
    assert len(a.outbound.put(rest)) == 2


def test_a_slot_meant_for_another_link_is_refused(connections):
    a, b = connections
    a.outbound._peer = b.hello._replace(ring_id=b.hello.ring_id ^ 1)
    a.outbound.put([b"body"])
    with pytest.raises(Refusal, match="its footer says"):
        until(lambda: b.inbound.take(memoryview(bytearray(4096))))


def test_an_idle_probe_is_answered_without_the_peers_attention(connections):
    a, _ = connections
    a.outbound.probe()
    assert until(a.requests.poll) and a.all_completed
