from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.channel.base import Lane, LinkState, Message
from ferry.channel.flow import FlowChannel
from ferry.channel.frames import (
    FIRST,
    HEADER_BYTES,
    LAST,
    PAYLOAD_BYTES,
    Outgoing,
    decode_header,
    encode,
    job_hash,
    slots_of,
    verify,
)
from ferry.contract import limits
from ferry.contract.errors import Refusal

JOB = job_hash("job")
lengths = st.sampled_from([0, 1, 3, 100, PAYLOAD_BYTES - 1, PAYLOAD_BYTES, PAYLOAD_BYTES + 1, 2 * PAYLOAD_BYTES + 5])


class Loop:
    """A transport that moves nothing: the test does."""

    name = "loop"
    link = LinkState("peer", name, "")

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.channel = FlowChannel("peer", "job", self.got.append, self)

    def queued(self, size: int) -> None: ...
    def wake(self) -> None: ...
    def close(self, reason: str) -> None: ...

    def flush(self, timeout: float) -> bool:
        return False


def test_a_full_frame_fills_a_slot():
    assert PAYLOAD_BYTES == limits.SLOT_BYTES
    assert [slots_of(n) for n in (0, 1, PAYLOAD_BYTES, PAYLOAD_BYTES + 1)] == [1, 1, 1, 2]


@given(
    payload=st.binary(max_size=9000),
    lane=st.sampled_from(Lane),
    kind=st.integers(0, 2**32 - 1),
    generation=st.integers(0, 2**64 - 1),
    sequence=st.integers(0, 2**64 - 1),
    credit=st.integers(0, 2**64 - 1),
)
def test_decode_is_the_inverse_of_encode(payload, lane, kind, generation, sequence, credit):
    pieces = encode(
        (payload[:5], payload[5:]),
        lane=lane,
        flags=FIRST | LAST,
        job=JOB,
        kind=kind,
        generation=generation,
        sequence=sequence,
        credit=credit,
        total=len(payload),
        head=min(5, len(payload)),
    )
    raw = memoryview(b"".join(bytes(piece) for piece in pieces))
    header = decode_header(raw, 0, JOB)
    verify(raw, header)
    assert header.length == len(raw) and raw[HEADER_BYTES:] == payload
    assert header[:2] == (lane, FIRST | LAST)
    assert header[3:-1] == (kind, JOB, generation, sequence, credit, len(payload), min(5, len(payload)))


@given(place=st.integers(0, HEADER_BYTES + 49), bit=st.integers(0, 7))
def test_any_flipped_bit_is_refused_or_waits_for_more(place, bit):
    raw = bytearray(b"".join(bytes(p) for p in encode((bytes(50),), lane=1, flags=3, job=JOB, sequence=1, total=50)))
    raw[place] ^= 1 << bit
    receiver = Loop()
    try:
        used = receiver.channel.feed(memoryview(raw))
    except Refusal:
        used = 0
    assert used == 0 and not receiver.got


@given(cuts=st.lists(st.integers(0, 400), max_size=30), takes=st.lists(st.integers(1, 90), min_size=1, max_size=30))
def test_taking_pieces_gives_the_payload_in_order(cuts, takes):
    body = [bytes([n % 251]) * n for n in cuts]
    message = Outgoing(Lane.BULK, 0, 0, b"head", body)
    whole = b"head" + b"".join(body)
    out, left = b"", message.total
    for take in takes:
        count = min(take, left)
        out += b"".join(message.take(count))
        left -= count
    out += b"".join(message.take(left))
    assert out == whole


@settings(max_examples=40, deadline=None)
@given(
    messages=st.lists(st.tuples(st.sampled_from(Lane), lengths, lengths), min_size=1, max_size=8),
    cuts=st.lists(st.integers(1, 200_000), min_size=1, max_size=10),
)
def test_any_messages_survive_any_cuts_of_the_stream(messages, cuts):
    """Two channels, bytes moved in arbitrary pieces both ways: every message arrives, per lane in order."""
    one, two = Loop(), Loop()
    want = {lane: [] for lane in Lane}
    for number, (lane, head, body) in enumerate(messages):
        one.channel.post(lane, number, number, bytes([number]) * head, (bytes([number + 100]) * body,))
        want[lane].append((number, number, bytes([number]) * head, bytes([number + 100]) * body))
    waiting = b""
    turn = 0
    while gather := one.channel.collect():
        one.channel.handed_over()
        waiting += b"".join(bytes(piece) for piece in gather)
        seen = 0
        while seen < len(waiting):
            seen = min(len(waiting), seen + cuts[turn % len(cuts)])
            turn += 1
            used = two.channel.feed(memoryview(waiting)[:seen])
            waiting, seen = waiting[used:], seen - used
        back = b"".join(bytes(piece) for piece in two.channel.collect())
        assert one.channel.feed(memoryview(back)) == len(back)
    assert waiting == b""
    got = {lane: [(m.kind, m.generation, m.head, bytes(m.body)) for m in two.got if m.lane == lane] for lane in Lane}
    assert got == want


def test_a_message_larger_than_the_bound_is_refused(monkeypatch):
    monkeypatch.setattr("ferry.channel.frames.MESSAGE_BYTES_MAX", 10)
    with pytest.raises(Refusal, match="lane BULK is larger than MESSAGE_BYTES_MAX"):
        Outgoing(Lane.BULK, 0, 0, b"12345", (b"123456",))
