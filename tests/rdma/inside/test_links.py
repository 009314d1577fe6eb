"""What a peer cannot do, whatever it sends: every request here is made with real verbs, and its bytes must not land."""

from __future__ import annotations

import time

import pytest

from ferry.channel.rdma.connection import ConnectionFactory, RdmaConnection
from ferry.channel.rdma.memory import RingShape
from ferry.channel.rdma.ring import SLEEPING
from ferry.channel.rdma.verbs import Piece, status_name
from ferry.contract.errors import Refusal, Unreachable

PATTERN = b"\xa5" * 4096
SECRET = b"these bytes must not land"


@pytest.fixture
def pair(device):
    """A writer and an owner of memory that the writer may write."""
    writer, owner = device.link(64, 8), device.link(64, 8)
    to_writer, to_owner = writer.here, owner.here
    writer.connect(to_owner)
    owner.connect(to_writer)
    source = writer.region(4096, remote=False)
    source.view[: len(SECRET)] = SECRET
    target = owner.region(8192, remote=True)
    target.view[:] = PATTERN * 2
    yield writer, owner, Piece(source.address, len(SECRET), source.local_key), target
    writer.close()
    owner.close()


def outcome(link, seconds=3.0):
    """What becomes of the last request: 'done', or why it failed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if link.reap():
                return "done"
        except Unreachable as error:
            return str(error)
        time.sleep(0.0005)
    return "nothing"


def untouched(target):
    return bytes(target.view) == PATTERN * 2


def test_a_write_that_is_allowed_lands(pair):
    writer, _, piece, target = pair
    writer.write([piece], target.address + 100, target.remote_key, 1, signal=True)
    assert outcome(writer) == "done" and bytes(target.view[100 : 100 + len(SECRET)]) == SECRET


def test_a_wrong_key_writes_nothing(pair):
    writer, _, piece, target = pair
    writer.write([piece], target.address, target.remote_key ^ 0x111, 1, signal=True)
    assert "REM_ACCESS_ERR" in outcome(writer) and untouched(target)


@pytest.mark.parametrize("offset", [8192 - len(SECRET) + 8, 8192, -8])
def test_a_write_out_of_bounds_writes_nothing_not_even_its_part_within(pair, offset):
    writer, _, piece, target = pair
    writer.write([piece], target.address + offset, target.remote_key, 1, signal=True)
    assert "REM_ACCESS_ERR" in outcome(writer) and untouched(target)


def test_memory_without_the_right_is_not_written(pair):
    writer, owner, piece, _ = pair
    private = owner.region(8192, remote=False)
    private.view[:] = PATTERN * 2
    writer.write([piece], private.address, private.remote_key, 1, signal=True)
    assert "REM_ACCESS_ERR" in outcome(writer) and untouched(private)


def test_memory_of_another_peer_is_not_written(pair, device):
    writer, _, piece, target = pair
    other = device.link(8, 8)
    memory = other.region(8192, remote=True)
    memory.view[:] = PATTERN * 2
    writer.write([piece], memory.address, memory.remote_key, 1, signal=True)
    assert "REM_ACCESS_ERR" in outcome(writer) and untouched(memory) and untouched(target)
    other.close()


def test_a_zombie_writes_nothing_once_the_memory_is_revoked(pair):
    """It holds the right key and was allowed until now; then it is fenced, and its late write has no effect."""
    writer, _, piece, target = pair
    address, key = target.address, target.remote_key
    writer.write([piece], address, key, 1, signal=True)
    assert outcome(writer) == "done"
    target.revoke()
    target.view[:] = PATTERN * 2
    writer.write([piece], address, key, 2, signal=True)
    assert "REM_ACCESS_ERR" in outcome(writer) and untouched(target)


def test_a_zombie_does_not_reach_memory_that_is_registered_anew(pair):
    writer, owner, piece, target = pair
    key = target.remote_key
    target.revoke()
    again = owner.region(8192, remote=True, mapping=target._map)
    target.view[:] = PATTERN * 2
    assert again.address == target.address and again.remote_key != key
    writer.write([piece], target.address, key, 1, signal=True)
    assert "REM_ACCESS_ERR" in outcome(writer) and untouched(target)
    again.revoke()
    again.view.release()
    owner._regions.remove(again)
    again._pin = None


def test_a_link_that_is_gone_is_told_to_a_writer(pair):
    writer, owner, piece, target = pair
    owner._qp.close()
    began = time.monotonic()
    writer.write([piece], target.address, target.remote_key, 1, signal=True)
    assert "RETRY_EXC_ERR" in outcome(writer) and time.monotonic() - began < 1.0 and untouched(target)


def test_requests_after_a_failure_are_flushed_and_all_of_them_tell(pair):
    writer, _, piece, target = pair
    writer.write([piece], target.address, 0xDEAD, 1, signal=True)
    assert "REM_ACCESS_ERR" in outcome(writer)
    for number in range(2, 12):
        writer.write([piece], target.address, target.remote_key, number)
    told = []
    until(lambda: told.extend(status_name(int(done.status)) for done in writer._sent.poll(16)[1]) or len(told) >= 10)
    assert told == ["WR_FLUSH_ERR"] * 10 and untouched(target)


# -- rings ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pipes(device):
    from ferry.channel.rdma.memory import Budget

    means = ConnectionFactory(device, RingShape(8, 4096), False, Budget())
    a, b = RdmaConnection(means, lambda: None), RdmaConnection(means, lambda: None)
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


def word(pipe, value):
    """The peer of `pipe` writes this into its credit word."""
    raw = value.to_bytes(8, "little")
    return pipe.outbound.credit.address, pipe.outbound.credit.remote_key, raw


def forge(writer, owner, value):
    address, key, raw = word(owner, value)
    stage = writer.inbound._report
    stage.view[:8] = raw
    writer.posts.post([Piece(stage.address, 8, stage.local_key)], address, key, signal=True)
    assert until(writer.posts.reap)


def test_bytes_go_round_the_ring_and_credit_comes_back(pipes):
    a, b = pipes
    into = memoryview(bytearray(4096))
    for number in range(100):
        body = bytes([number]) * (1 + number * 37 % 4000)
        assert until(lambda: a.posts.reap() or a.outbound.look() or a.outbound.room)
        assert not a.outbound.put([body])
        size = until(lambda: b.inbound.take(into))
        assert into[:size] == body
        b.posts.reap()
        b.inbound.report(idle=True)
        until(lambda: a.posts.reap() + a.outbound.look())


@pytest.mark.parametrize("value", [1, 2**40, 9 | SLEEPING])
def test_credit_for_what_was_never_sent_is_refused(pipes, value):
    a, b = pipes
    forge(b, a, value)
    with pytest.raises(Refusal, match="impossible credit of the ring"):
        until(a.outbound.look)


def test_credit_that_runs_backwards_is_refused(pipes):
    a, b = pipes
    into = memoryview(bytearray(4096))
    for _ in range(4):
        a.outbound.put([b"body"])
        assert until(lambda: b.inbound.take(into))
    b.inbound.report(idle=True)
    assert until(a.outbound.look) and a.outbound.consumed == 4
    forge(b, a, 3)
    with pytest.raises(Refusal, match=r"impossible credit of the ring: 3 slots"):
        until(a.outbound.look)


def test_a_full_ring_sends_nothing_more(pipes):
    a, _ = pipes
    rest = a.outbound.put([bytes(4072)] * 10)
    assert len(rest) == 2 and a.outbound.sent == 8
    assert until(lambda: a.posts.reap() and a.posts.done >= 8)
    assert len(a.outbound.put(rest)) == 2


def test_a_slot_meant_for_another_link_is_refused(pipes):
    a, b = pipes
    a.outbound._peer = b.hello._replace(link=b.hello.link ^ 1)
    a.outbound.put([b"body"])
    with pytest.raises(Refusal, match="its footer says"):
        until(lambda: b.inbound.take(memoryview(bytearray(4096))))


def test_an_idle_probe_is_answered_without_the_peers_attention(pipes):
    a, _ = pipes
    a.outbound.probe()
    assert until(a.posts.reap) and a.answered
