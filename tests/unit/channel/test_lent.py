"""Memory that is lent to the device: bodies are sent from where they lie, and it is kept as long as it may be read."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import time
import weakref

import numpy as np
import pyarrow as pa
import pytest
from channel_rig import WAIT, Rig, eventually, prefer
from fake_verbs import FakeDevice, FakeQueuePair

from ferry.channel.base import Lane
from ferry.channel.rdma import link_control
from ferry.channel.rdma.connection import ConnectionFactory, RdmaConnection
from ferry.channel.rdma.endpoint import Notify, RdmaSettings
from ferry.channel.rdma.memory import Budget, LentMemory, RingShape
from ferry.contract.errors import Exhausted
from ferry.contract.names import Attempt, CommitId, Step
from ferry.store.log import DeltaLog

SHAPE = RingShape(4, 16_384)


class Block:
    """Bytes of a mapping, and whether anybody still looks at them."""

    def __init__(self, mapping, offset, size):
        view = np.frombuffer(mapping, np.uint8, size, offset)
        self.address = view.ctypes.data
        self._ended = []
        weakref.finalize(view, self._ended.append, True)
        self.buffer = pa.py_buffer(view)

    def given(self):
        """The buffer, which this object does not hold any more."""
        buffer, self.buffer = self.buffer, None
        return buffer

    @property
    def free(self):
        return bool(self._ended)


@pytest.fixture
def mapping():
    memory = mmap.mmap(-1, 1 << 20)
    memory[:] = os.urandom(1 << 20)
    return memory


@pytest.fixture(params=[Notify.FOOTER, Notify.IMM])
def rig(request):
    rig = Rig(f"fake-{request.param}", RdmaSettings(SHAPE, request.param, fallback=True))
    yield rig
    rig.end()


def connections(*mappings):
    lent = LentMemory()
    lent.mappings = mappings
    ends = [
        RdmaConnection(ConnectionFactory(FakeDevice(), SHAPE, False, Budget(), one), lambda: None)
        for one in (lent, LentMemory())
    ]
    ends[0].attach(ends[1].hello)
    ends[1].attach(ends[0].hello)
    return *ends, lent


def read(connection):
    into = memoryview(bytearray(SHAPE.slot_bytes))
    size = connection.inbound.take(into)
    connection.inbound.post_credit(idle=True)
    return bytes(into[:size])


def test_lent_bytes_are_gathered_from_where_they_are(mapping, monkeypatch):
    gathers, write = [], FakeQueuePair.post_write
    monkeypatch.setattr(
        FakeQueuePair,
        "post_write",
        lambda pair, entries, *a, **k: (gathers.append(entries), write(pair, entries, *a, **k)),
    )
    a, b, lent = connections(mapping)
    block = Block(mapping, 4096, 8192)
    small = memoryview(mapping)[0:4095]
    a.outbound.put([b"head", memoryview(block.buffer).cast("B"), b"tail", small])
    (gather,) = gathers
    inside = [piece for piece in gather if block.address <= piece.address < block.address + 8192]
    assert [(piece.address, piece.length) for piece in inside] == [(block.address, 8192)]
    assert len(gather) == 3 and ctypes.string_at(gather[0].address, 4) == b"head"
    assert read(b) == b"head" + mapping[4096:12_288] + b"tail" + mapping[:4095]
    assert lent.sent_bytes == 8192, "what is cheaper to copy is copied"


def test_a_block_is_kept_until_it_was_read_and_the_own_device_is_done(mapping):
    a, b, _ = connections(mapping)
    blocks = [Block(mapping, at, 8192) for at in (0, 8192)]
    for block in blocks:
        a.outbound.put([memoryview(block.given()).cast("B")])
    a.requests.poll()
    assert not a.outbound.read_credit() and a.requests.completed == 2, "done, and not read"
    assert not any(block.free for block in blocks) and a.outbound.keeps_lent and not a.idle
    assert read(b) == mapping[:8192]
    assert a.outbound.read_credit()
    assert [block.free for block in blocks] == [True, False]
    read(b)
    a.outbound.read_credit()
    assert all(block.free for block in blocks) and a.idle


def test_a_block_that_was_read_is_kept_until_the_own_device_is_done(mapping):
    a, b, _ = connections(mapping)
    block = Block(mapping, 0, 8192)
    a.outbound.put([memoryview(block.given()).cast("B")])
    assert read(b) == mapping[:8192]
    assert a.outbound.read_credit() and not block.free and not a.idle, "the completion was not taken"
    assert a.requests.signaled == 1, "every request of lent memory has a completion"
    a.requests.poll()
    assert a.outbound.settled and a.all_completed and not a.idle, "asleep it would not be let go"
    a.outbound.read_credit()
    assert block.free and a.idle


def test_what_was_not_read_is_sent_again_from_lent_memory(mapping):
    a, b, _ = connections(mapping)
    blocks = [Block(mapping, at, 8192) for at in (0, 8192)]
    for block in blocks:
        a.outbound.put([b"x", memoryview(block.given()).cast("B")])
    read(b)
    a.requests.poll()
    again = a.outbound.unread(1)
    assert again == [b"x" + mapping[8192:16_384]]
    assert not any(block.free for block in blocks)
    a.close()
    assert all(block.free for block in blocks)


def test_memory_counts_for_every_link(mapping):
    lent = LentMemory()
    lent.mappings = (mapping,)
    budget = Budget(SHAPE.pinned_bytes + len(mapping))
    connection = ConnectionFactory(FakeDevice(), SHAPE, False, budget, lent).open("b")
    assert budget.used == SHAPE.pinned_bytes + len(mapping)
    with pytest.raises(Exhausted, match=r"transport\.rdma\.pinned"):
        ConnectionFactory(FakeDevice(), SHAPE, False, budget, lent).open("c")
    connection.close()
    assert budget.used == 0


def lending_pair(rig, mapping):
    a, b = rig.party("a"), rig.party("b")
    a.endpoint.lend(mapping)
    channel = a.endpoint.connect("b", b.endpoint.listen(), WAIT)
    eventually(lambda: channel.transport.link.kind == "rdma")
    return a, b, channel


@pytest.mark.parametrize("size", [5000, 300_000])
def test_a_body_that_is_delivered_is_let_go_on_an_idle_link(rig, mapping, size):
    a, b, channel = lending_pair(rig, mapping)
    block = Block(mapping, 4096, size)
    channel.send(Lane.DELTA, 1, 0, b"head", (block.given(),), timeout=WAIT)
    assert bytes(b.next().body) == mapping[4096 : 4096 + size]
    eventually(lambda: block.free, 2.0)
    assert size * 0.9 < a.endpoint.lent_bytes <= size


def test_a_body_is_let_go_when_the_channel_closes(rig, mapping, monkeypatch):
    a, _, channel = lending_pair(rig, mapping)
    monkeypatch.setattr(FakeQueuePair, "poll", lambda queue_pair: 0)
    blocks = [Block(mapping, at, 200_000) for at in (0, 300_000)]
    for block in blocks:
        channel.send(Lane.DELTA, 1, 0, b"", (block.given(),), timeout=WAIT)
    time.sleep(0.05)
    assert not any(block.free for block in blocks)
    a.endpoint.close()
    gc.collect()
    eventually(lambda: all(block.free for block in blocks))


def test_a_link_that_falls_sends_lent_bytes_again_and_lets_them_go(rig, mapping, monkeypatch):
    monkeypatch.setattr(link_control, "RETRY_SECONDS", 60.0)
    _, b, channel = lending_pair(rig, mapping)
    blocks = [Block(mapping, at, 60_000) for at in range(0, 600_000, 60_000)]
    for number, block in enumerate(blocks):
        channel.send(Lane.DELTA, number, 0, b"", (block.given(),), timeout=WAIT)
        if number == 5:
            prefer(channel, rdma=False)
    assert [bytes(message.body) for message in b.take(10)] == [
        mapping[at : at + 60_000] for at in range(0, 600_000, 60_000)
    ]
    eventually(lambda: all(block.free for block in blocks))


def test_a_delta_goes_from_the_log_to_the_peer_and_its_block_is_used_again(rig, tmp_path):
    size = 256 << 10
    log = DeltaLog(tmp_path, size)
    a, b, channel = lending_pair(rig, log.arena)
    for epoch in range(1, 9):
        delta = pa.record_batch({"x": np.arange(epoch, 20_000 + epoch)})
        channel.send(
            Lane.DELTA,
            epoch,
            0,
            b"head",
            (log.append(CommitId(Step(epoch, 0), Attempt(1, 1)), "s", {}, delta),),
            timeout=WAIT,
        )
        assert pa.ipc.read_record_batch(pa.py_buffer(b.next().body), delta.schema) == delta
        eventually(lambda: not channel.transport._control.established.outbound.keeps_lent)
        log.forget(Step(epoch, 0))
    assert a.endpoint.lent_bytes > 8 * 150_000, "every one of them had a block"
    assert log._arena.take(size) is not None


def test_a_block_is_not_written_again_while_a_fall_may_need_it(rig, tmp_path, monkeypatch):
    """Each delta is forgotten as soon as it is in the ring, and another one is logged: only the link keeps its block."""
    monkeypatch.setattr(link_control, "RETRY_SECONDS", 60.0)
    log = DeltaLog(tmp_path, 64 << 10)
    _, b, channel = lending_pair(rig, log.arena)
    connection = channel.transport._control.established
    monkeypatch.setattr(connection.queue_pair, "post_write", lambda *_, **__: None)  # what is sent is lost on the way
    first = connection.outbound.sent
    deltas = [pa.record_batch({"x": np.full(1500, number)}) for number in range(8)]
    for number, delta in enumerate(deltas):
        at = CommitId(Step(number, 0), Attempt(1, 1))
        channel.post(Lane.DELTA, number, 0, b"", (log.append(at, "s", {}, delta),))
        if number < SHAPE.slots:
            eventually(lambda n=number: connection.outbound.sent > first + n)
        log.forget(at.step)
    prefer(channel, rdma=False)
    got = b.take(len(deltas))
    assert [
        pa.ipc.read_record_batch(pa.py_buffer(m.body), d.schema) for m, d in zip(got, deltas, strict=True)
    ] == deltas
    eventually(lambda: log._arena.take(64 << 10) is not None)
