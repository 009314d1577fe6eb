"""What every carrier promises. A new carrier is added to the fixture `rig`, and to nothing here."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from channel_rig import WAIT, defer_all, job_of, settled, together

from ferry.channel import base, flow
from ferry.channel.base import CREDIT_BATCH, DEFERRED_SLOTS_MAX, DeferredCredit, Lane
from ferry.channel.frames import CREDIT, FIRST, HEADER, LAST, MAGIC, PAYLOAD_BYTES, VERSION, encode
from ferry.contract import limits
from ferry.contract.errors import Exhausted, Refusal, Unreachable


def test_a_message_arrives_as_it_was_sent(rig):
    a, b, to_b, to_a = rig.pair()
    to_b.send(Lane.DELTA, 7, 2**40, b"head", (b"bo", b"", memoryview(b"dy")))
    got = b.next()
    assert (got.peer, got.lane, got.kind, got.generation) == ("a", Lane.DELTA, 7, 2**40)
    assert (got.head, bytes(got.body)) == (b"head", b"body")
    to_a.post(Lane.BULK, 8, 1, b"")
    answer = a.next()
    assert (answer.peer, answer.lane, answer.kind, answer.head, bytes(answer.body)) == ("b", Lane.BULK, 8, b"", b"")


def test_each_lane_keeps_its_order_whatever_the_others_do(rig):
    _, b, to_b, _ = rig.pair()
    count = 400

    def sender(lane):
        def run():
            for number in range(count):
                body = bytes(PAYLOAD_BYTES * 2) if number % 100 == 50 else b"x" * (number % 7)
                to_b.send(lane, number, 0, b"h", (body,), WAIT)

        return run

    together(*(sender(lane) for lane in Lane))
    seen = {lane: [] for lane in Lane}
    for message in b.take(3 * count):
        seen[message.lane].append(message.kind)
    assert all(kinds == list(range(count)) for kinds in seen.values())


@pytest.mark.parametrize(
    "size", [0, 1, PAYLOAD_BYTES - 4, PAYLOAD_BYTES, PAYLOAD_BYTES + 1, 3 * PAYLOAD_BYTES, 9 << 20]
)
def test_sizes_around_a_slot_and_beyond_all_credit(rig, size):
    _, b, to_b, _ = rig.pair()
    body = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    to_b.send(Lane.BULK, 1, 2, b"four", (body[: size // 3], body[size // 3 :]), WAIT)
    got = b.next()
    assert got.head == b"four" and np.array_equal(np.frombuffer(got.body, np.uint8), body)


def test_a_head_larger_than_a_slot(rig):
    _, b, to_b, _ = rig.pair()
    head = bytes(range(256)) * 600
    body = np.arange(30_000)
    to_b.send(Lane.DELTA, 1, 1, head, (body,), WAIT)
    got = b.next()
    assert got.head == head
    values = np.frombuffer(got.body, np.int64)
    assert values.flags.aligned and np.array_equal(values, body)


def test_a_lane_without_credit_blocks_nothing_else(rig):
    a, b, to_b, to_a = rig.pair()
    kept, b.handler = defer_all(Lane.FRAGMENT)
    for number in range(limits.SLOTS):
        assert to_b.send_nowait(Lane.FRAGMENT, number, 0, b"")
    b.take(limits.SLOTS)
    assert to_b.send_nowait(Lane.FRAGMENT, 99, 0, b"") is False
    with pytest.raises(Exhausted, match=r"lane FRAGMENT to b"):
        to_b.send(Lane.FRAGMENT, 99, 0, b"", timeout=0.01)
    # The other lanes, with more messages than they have credit, in both directions: credit flows back all the time.
    for number in range(3 * limits.SLOTS):
        to_b.send(Lane.DELTA, number, 0, b"", timeout=WAIT)
        to_b.send(Lane.BULK, number, 0, b"", timeout=WAIT)
        to_a.send(Lane.FRAGMENT, number, 0, b"", timeout=WAIT)
    b.take(6 * limits.SLOTS)
    a.take(3 * limits.SLOTS)
    for credit in kept:
        credit.release()
        credit.release()
    to_b.send(Lane.FRAGMENT, 100, 0, b"", timeout=WAIT)
    assert b.next().kind == 100


def test_a_sender_without_credit_goes_on_when_it_comes(rig):
    _, b, to_b, _ = rig.pair()
    kept, b.handler = defer_all(Lane.DELTA)
    for _ in range(limits.SLOTS):
        to_b.send(Lane.DELTA, 0, 0, b"")
    b.take(limits.SLOTS)
    sent = threading.Event()
    threading.Thread(target=lambda: (to_b.send(Lane.DELTA, 5, 0, b""), sent.set()), daemon=True).start()
    assert not sent.wait(0.02)
    kept[0].release()
    assert sent.wait(WAIT) and b.next().kind == 5
    assert to_b.statistics().lanes[Lane.DELTA].stalls == 1


def test_one_credit_is_reported_when_the_rest_is_deferred(rig):
    _, b, to_b, _ = rig.pair()
    kept, defer = defer_all(Lane.DELTA)
    few = CREDIT_BATCH - 1
    b.handler = lambda message: None if message.kind < few else defer(message)
    for number in range(limits.SLOTS):
        to_b.send(Lane.DELTA, number, 0, b"")
    for _ in range(few):
        to_b.send(Lane.DELTA, 999, 0, b"", timeout=WAIT)
    assert len(b.take(limits.SLOTS + few)) == limits.SLOTS + few and len(kept) == limits.SLOTS


def test_large_messages_with_deferred_credit_stop_their_lane_after_a_few(rig):
    _, b, to_b, _ = rig.pair()
    kept, b.handler = defer_all(Lane.BULK)
    body = bytes(2 * DEFERRED_SLOTS_MAX * PAYLOAD_BYTES)
    count = limits.SLOTS // DEFERRED_SLOTS_MAX
    for _ in range(count + 1):
        to_b.post(Lane.BULK, 1, 0, b"", (body,))
    b.take(count)
    assert not to_b.flush(0.05) and b.messages.empty()
    kept[0].release()
    assert len(b.next().body) == len(body)


def test_credit_may_be_released_before_the_handler_returns(rig):
    _, b, to_b, _ = rig.pair()

    def handler(message):
        credit = DeferredCredit()
        credit.release()
        return credit

    b.handler = handler
    for _ in range(2 * limits.SLOTS):
        to_b.send(Lane.DELTA, 0, 0, b"", timeout=WAIT)
    b.take(2 * limits.SLOTS)


def test_post_never_waits_and_its_queue_has_a_bound(rig, monkeypatch):
    _, b, to_b, _ = rig.pair()
    _, b.handler = defer_all(Lane.BULK)
    monkeypatch.setattr(flow, "QUEUE_MESSAGES_MAX", 10)
    for _ in range(limits.SLOTS):
        to_b.send(Lane.BULK, 0, 0, b"", timeout=WAIT)
    b.take(limits.SLOTS)
    for _ in range(10):
        to_b.post(Lane.BULK, 0, 0, b"")
    with pytest.raises(Exhausted, match=r"queue of lane BULK to b is full"):
        to_b.post(Lane.BULK, 0, 0, b"")
    monkeypatch.setattr(flow, "QUEUE_BYTES_MAX", 1000)
    to_b.post(Lane.DELTA, 1, 0, b"", (bytes(5000),))
    assert b.next().kind == 1


def test_a_message_above_the_bound_is_refused_at_the_sender(rig, monkeypatch):
    _, _, to_b, _ = rig.pair()
    monkeypatch.setattr("ferry.channel.frames.MESSAGE_BYTES_MAX", 1000)
    with pytest.raises(Refusal, match="MESSAGE_BYTES_MAX"):
        to_b.send(Lane.BULK, 0, 0, b"", (bytes(1001),))


def test_close_is_reported_once_on_both_sides_and_wakes_a_blocked_sender(rig):
    a, b, to_b, to_a = rig.pair()
    _, b.handler = defer_all(Lane.DELTA)
    for _ in range(limits.SLOTS):
        to_b.send(Lane.DELTA, 0, 0, b"")
    b.take(limits.SLOTS)
    woken = []

    def blocked():
        with pytest.raises(Unreachable, match="closed by"):
            to_b.send(Lane.DELTA, 0, 0, b"")
        woken.append(True)

    thread = threading.Thread(target=blocked, daemon=True)
    thread.start()
    to_a.close("finished with you")
    to_a.close()
    assert b.reason() == "finished with you"
    assert a.reason() == "closed by the peer: finished with you"
    thread.join(WAIT)
    assert woken
    for channel in (to_b, to_a):
        with pytest.raises(Unreachable):
            channel.post(Lane.DELTA, 0, 0, b"")
        with pytest.raises(Unreachable):
            channel.send_nowait(Lane.DELTA, 0, 0, b"")
    assert a.endpoint.channel("b") is None and b.endpoint.channel("a") is None
    assert a.events == ["open", "closed by the peer: finished with you"] and b.events == ["open", "finished with you"]


def test_flush_then_close_loses_nothing(rig):
    _, b, to_b, _ = rig.pair()
    for _ in range(500):
        to_b.post(Lane.DELTA, 0, 0, b"", (bytes(3000),))
    settled(to_b)
    to_b.close()
    assert len(b.take(500)) == 500


@pytest.mark.parametrize("wrong", ["secret", "job", "name"])
def test_a_stranger_is_refused_without_a_word(rig, wrong):
    a = rig.party("a", job="other" if wrong == "job" else "job", secret=b"wrong" if wrong == "secret" else b"right")
    b = rig.party("b", secret=b"right")
    address = b.endpoint.listen()
    with pytest.raises(Refusal, match="the secret, the job or the names"):
        a.endpoint.connect("c" if wrong == "name" else "b", address, WAIT)
    assert a.opened.empty() and b.opened.empty() and b.endpoint.channel("a") is None


def test_nobody_there_and_oneself(rig):
    a = rig.party("a")
    with pytest.raises(Unreachable, match="cannot reach b"):
        a.endpoint.connect("b", ("127.0.0.1", 1), 1.0)
    with pytest.raises(Refusal, match="itself"):
        a.endpoint.connect("a", a.endpoint.listen(), 1.0)


def frame(channel, **changes):
    fields = {"lane": Lane.DELTA, "flags": FIRST | LAST, "job": job_of(channel), "sequence": 1, "total": 4, **changes}
    payload = fields.pop("payload", b"body")
    return b"".join(bytes(piece) for piece in encode((payload,), **fields))


def corrupted(channel):
    raw = bytearray(frame(channel))
    raw[-1] ^= 1
    return bytes(raw)


def damaged_header(channel):
    raw = bytearray(frame(channel))
    raw[12] ^= 1
    return bytes(raw)


def too_large(channel):
    values = (MAGIC, VERSION, 1, FIRST, 64, 0, job_of(channel), 0, 1, 0, base.MESSAGE_BYTES_MAX + 1, 0, 0)
    return HEADER.pack(*values)


WRONG = {
    "checksum of frame 1 of lane DELTA": corrupted,
    r"checksum of frame 1 of lane DELTA is wrong: it": damaged_header,
    "frame 2 of lane DELTA came after frame 0": lambda c: frame(c, sequence=2),
    "frame 1 of lane DELTA came after frame 1": lambda c: frame(c) + frame(c),
    "frame of another job": lambda c: frame(c, job=1),
    "not a frame": lambda c: b"x" * 64,
    "impossible credit on lane BULK: 1 slots consumed": lambda c: frame(c, lane=2, flags=CREDIT, credit=1, payload=b""),
    "with lane 3": lambda c: frame(c, lane=3),
    "flags 128": lambda c: frame(c, flags=128),
    "is not the expected part": lambda c: frame(c, flags=LAST),
    "do not add up": lambda c: frame(c, flags=FIRST),
    "message of 5 bytes with 4 bytes": lambda c: frame(c, total=5),
    "MESSAGE_BYTES_MAX": too_large,
    "with a head of 9": lambda c: frame(c, head=9),
}


@pytest.mark.parametrize("reason", WRONG)
def test_what_a_peer_should_not_have_sent_closes_the_connection_with_a_reason(rig, reason):
    a, b, to_b, _ = rig.pair()
    rig.inject(to_b, WRONG[reason](to_b))
    assert reason in b.reason()
    assert a.reason().startswith("closed by the peer: ")
    assert b.endpoint.channel("a") is None


def test_frames_beyond_the_credit_are_refused(rig):
    _, b, to_b, _ = rig.pair()
    _, b.handler = defer_all(Lane.DELTA)
    rig.inject(to_b, b"".join(frame(to_b, sequence=number) for number in range(1, limits.SLOTS + 2)))
    assert b.reason() == "frame 65 of lane DELTA was sent without credit"
    assert b.messages.qsize() == limits.SLOTS


def test_credit_that_runs_backwards_is_refused(rig):
    a, b, to_b, to_a = rig.pair()
    for _ in range(CREDIT_BATCH):
        to_b.send(Lane.DELTA, 0, 0, b"")
    b.take(CREDIT_BATCH)
    to_a.send(Lane.DELTA, 0, 0, b"")
    a.next()
    rig.inject(to_a, frame(to_a, flags=CREDIT, credit=CREDIT_BATCH - 1, payload=b""))
    assert "impossible credit on lane DELTA" in a.reason()


def test_a_failing_handler_ends_its_connection_with_the_reason(rig):
    a, b, to_b, _ = rig.pair()

    def handler(message):
        raise KeyError("lost my way")

    b.handler = handler
    to_b.send(Lane.DELTA, 0, 0, b"")
    assert "lost my way" in b.reason() and "lost my way" in a.reason()


def test_a_new_connection_replaces_the_old_one_on_both_sides(rig):
    a, b = rig.party("a"), rig.party("b")
    address = b.endpoint.listen()
    first = a.endpoint.connect("b", address, WAIT)
    second = a.endpoint.connect("b", address, WAIT)
    assert a.endpoint.channel("b") is second is not first
    with pytest.raises(Unreachable):
        first.post(Lane.DELTA, 0, 0, b"")
    second.send(Lane.DELTA, 3, 0, b"")
    assert b.next().kind == 3
    b.endpoint.channel("a").send(Lane.DELTA, 4, 0, b"")
    assert a.next().kind == 4
    assert a.events == b.events == ["open", "replaced", "open"]


def test_a_new_life_of_a_peer_replaces_its_old_connection(rig):
    a, b = rig.party("a"), rig.party("b")
    here, there = a.endpoint.listen(), b.endpoint.listen()
    a.endpoint.connect("b", there, WAIT)
    reborn = rig.party("b")
    reborn.endpoint.connect("a", here, WAIT).send(Lane.DELTA, 1, 0, b"")
    assert a.next().kind == 1
    assert a.events == ["open", "replaced", "open"]


def test_closing_an_endpoint_reports_every_channel_and_then_nothing(rig):
    a, b, to_b, _ = rig.pair()
    a.endpoint.close()
    assert a.events == ["open", "endpoint closed"]
    assert b.reason() == "closed by the peer: endpoint closed"
    with pytest.raises(Unreachable):
        to_b.send(Lane.DELTA, 0, 0, b"")
    with pytest.raises(Unreachable):
        a.endpoint.connect("b", ("127.0.0.1", 1), 1.0)


def test_statistics_count_messages_bytes_and_credit(rig):
    _, b, to_b, to_a = rig.pair()
    _, b.handler = defer_all(Lane.DELTA)
    for _ in range(3):
        to_b.send(Lane.DELTA, 0, 0, b"hh", (b"bbb",))
    b.take(3)
    settled(to_b)
    sent, got = to_b.statistics(), to_a.statistics()
    assert (sent.peer, sent.transport, sent.closed) == ("b", rig.carrier, None)
    lane = sent.lanes[Lane.DELTA]
    assert (lane.sent_messages, lane.sent_bytes, lane.credits, lane.queued_bytes) == (3, 15, limits.SLOTS - 3, 0)
    assert (got.lanes[Lane.DELTA].received_messages, got.lanes[Lane.DELTA].received_bytes) == (3, 15)
    assert got.lanes[Lane.DELTA].unreturned == 3 and got.lanes[Lane.BULK].unreturned == 0
    to_b.close()
    assert to_b.statistics().closed == "closed by this side"
