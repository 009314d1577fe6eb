"""Snapshots on their way to learners: in order, under credit, and no faster than the bandwidth limit says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ferry.contract import messages as m
from ferry.contract.descriptors import Window
from ferry.contract.names import Attempt, CommitId, InstanceId, Step
from ferry.protocol.instance.io import BeginSnapshot
from ferry.sidecar import scans
from ferry.sidecar.scans import Scans, SnapshotScan, begun

ME, B, C = InstanceId("0.0"), InstanceId("1.0"), InstanceId("2.0")
BASE = CommitId(Step(4, 0), Attempt(1, 9))
BYTES = 800


def batch(first: int) -> pa.RecordBatch:
    return pa.record_batch({"n": np.arange(first, first + BYTES // 8)})


def chunks(count: int) -> Iterator[tuple[int, int, pa.RecordBatch | None]]:
    for number in range(count):
        yield 0, 10 + number, batch(number)
    yield 1, 99, None


class Sender:
    """What one instance sends; who is in `full` has no credit."""

    def __init__(self, rate: int | None = None) -> None:
        self.sent: list[tuple[InstanceId, m.Chunk, pa.RecordBatch | None]] = []
        self.full: set[InstanceId] = set()
        self.scans = Scans(ME, self.send, rate, self.announce)

    def send(self, to: InstanceId, chunk: m.Chunk, body: pa.RecordBatch | None) -> bool:
        if to in self.full:
            return False
        self.sent.append((to, chunk, body))
        return True

    def announce(self, to: InstanceId, chunk: m.Chunk) -> None:
        self.sent.append((to, chunk, None))

    def begin(self, learner: InstanceId, count: int, session: int = 1) -> None:
        self.scans.begin(SnapshotScan(learner, session, BASE, chunks(count)))

    def numbers(self, learner: InstanceId, session: int = 1) -> list[int]:
        return [c.number for to, c, _ in self.sent if (to, c.session) == (learner, session)]


def test_a_chunk_without_rows_has_no_body() -> None:
    """A learner that joined during a deploy could not read it: the operator of the program was not known there yet."""
    sender = Sender()
    rows = iter([(0, 10, batch(0)), (1, 10, batch(0).slice(0, 0)), (1, 10, None)])
    sender.scans.begin(SnapshotScan(B, 1, BASE, rows))
    while sender.scans.pump(1):
        pass
    assert [body is not None for _, _, body in sender.sent] == [False, True, False, False]
    assert [chunk.last for _, chunk, _ in sender.sent] == [False, False, False, True]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(scans.time, "monotonic", lambda: now[0])
    return now


def test_a_snapshot_is_sent_in_order_between_two_chunks_without_rows() -> None:
    sender = Sender()
    assert not sender.scans and not sender.scans.pump(2)
    sender.begin(B, 3)
    assert sender.scans.pump(2) and sender.numbers(B) == [0, 1, 2]
    assert sender.scans.pump(2) and not sender.scans
    said = [(c.leader, c.base, c.number, c.last, c.operator, c.floor) for _, c, _ in sender.sent[1:]]
    assert said == [(ME, BASE, 1 + n, False, 0, 10 + n) for n in range(3)] + [(ME, BASE, 4, True, 1, 99)]
    assert [body for _, _, body in sender.sent] == [None, batch(0), batch(1), batch(2), None]
    assert sender.scans.sent_bytes == 3 * BYTES
    assert not sender.scans.pump(2)


def test_its_base_is_told_at_once_whatever_waits(clock: list[float]) -> None:
    sender = Sender(rate=20 * BYTES)
    sender.begin(B, 100)
    while sender.scans.pump(2):
        pass
    sender.full = {B, C}
    sender.begin(C, 2)
    assert sender.numbers(C) == [0], "without bandwidth, without credit"
    assert (sender.sent[-1][1].base, sender.sent[-1][1].last, sender.sent[-1][2]) == (BASE, False, None)


def test_a_chunk_without_credit_is_kept_and_holds_nobody_else_up() -> None:
    sender = Sender()
    sender.begin(B, 2)
    sender.begin(C, 2)
    sender.full = {B}
    assert sender.scans.pump(1) and (sender.numbers(B), sender.numbers(C)) == ([0], [0, 1])
    sender.full = {B, C}
    assert not sender.scans.pump(1), "nothing could be sent"
    assert sender.scans.sent_bytes == BYTES
    sender.full = set()
    while sender.scans:
        sender.scans.pump(1)
    assert sender.numbers(B) == sender.numbers(C) == [0, 1, 2, 3]
    assert [body for to, _, body in sender.sent if to == B] == [None, batch(0), batch(1), None]


def test_a_snapshot_that_nobody_wants_any_more_is_forgotten() -> None:
    sender = Sender()
    sender.begin(B, 9)
    sender.begin(B, 9, session=2)
    sender.scans.pump(1)
    sender.scans.stop(B, 1)
    sender.scans.stop(C, 1)
    sender.scans.pump(1)
    assert sender.numbers(B) == [0, 1] and sender.numbers(B, 2) == [0, 1, 2]


@pytest.mark.parametrize("step", [0.0005, 0.003, 0.5])
def test_the_limit_holds_over_all_snapshots_and_is_made_use_of(clock: list[float], step: float) -> None:
    rate, seconds = 100_000, 10.0
    sender = Sender(rate)
    sender.begin(B, 4000)
    sender.begin(C, 4000)
    clock[0] += 60.0  # What was not sent while there was nothing to send is not saved up.
    for _ in range(int(seconds / step)):
        sender.scans.pump(2)
        clock[0] += step
    burst = rate / 20 + BYTES
    assert sender.scans.sent_bytes <= rate * seconds + burst
    often = rate * seconds if step < 0.05 else burst * seconds / step
    assert sender.scans.sent_bytes > often * 0.5


def test_over_the_limit_nothing_is_sent_until_time_has_passed(clock: list[float]) -> None:
    sender = Sender(rate=20 * BYTES)
    sender.begin(B, 100)
    sender.begin(C, 100)
    assert sender.scans.pump(2)
    assert sender.numbers(B) == [0, 1] and sender.numbers(C) == [0], "one chunk is what a twentieth of a second allows"
    assert not sender.scans.pump(2)
    clock[0] += 0.025
    assert sender.scans.pump(2) and sender.numbers(B) == [0, 1, 2], "half a chunk is left, and the next one is begun"
    clock[0] += 0.02
    assert not sender.scans.pump(2), "and has to be paid for"
    clock[0] += 0.01
    assert sender.scans.pump(2)


class Kept:
    """State of one operator: chunks of what it holds when it is asked."""

    def __init__(self, *firsts: int) -> None:
        self.firsts, self.expired, self.asked = list(firsts), 0, list[Any]()

    def snapshot(self, vnodes: np.ndarray, chunk_bytes: int) -> Iterator[pa.RecordBatch]:
        self.asked.append(vnodes.tolist())
        return iter([batch(first) for first in self.firsts])


def test_a_snapshot_is_of_all_operators_at_one_time_and_says_what_has_expired_since() -> None:
    first, second = Kept(3), Kept(1, 2)
    scan = begun([first, second], np.array([4, 7]))  # type: ignore[list-item]
    assert first.asked == second.asked == [[4, 7]], "asked before the first chunk is taken"
    first.firsts.append(4)
    assert next(scan) == (1, 0, batch(1))
    first.expired, second.expired = 60, 50
    assert list(scan) == [(1, 50, batch(2)), (0, 60, batch(3)), (1, 50, None)]


class Left:
    """What a state held once."""

    def __init__(self, until: int | None = None) -> None:
        self.until = until
        self.window = None if until is None else Window(60, 20)
        self.is_over = False

    def over(self) -> bool:
        return self.is_over


def test_at_the_boundary_of_a_window_the_end_is_sent_and_nothing_else(clock: list[float]) -> None:
    sender, ends = Sender(), [Left(100), Left(140)]
    sender.scans.begin(SnapshotScan(B, 1, BASE, chunks(0), (3, 5), list(ends)))
    assert sender.scans.boundaries() == ((3, B, 100), (5, B, 100)), "the first window that starts after what is there"
    assert not sender.scans, "nobody has to come round for it"
    for number in (1, 2):
        clock[0] += scans.SAY_SECONDS
        assert not sender.scans.pump(9) and not sender.scans.pump(9)
        assert sender.numbers(B) == list(range(number + 1)), "it is told that it is not forgotten"
    ends[1].is_over = True
    assert not sender.scans.pump(1) and sender.scans.boundaries() == ((3, B, 60), (5, B, 60))
    sender.full.add(B)
    clock[0] += scans.SAY_SECONDS
    assert not sender.scans.pump(1)
    sender.full.clear()
    ends[0].is_over = True
    assert sender.scans.pump(1) and sender.scans.boundaries() == ()
    assert sender.numbers(B) == [0, 1, 2, 3] and [c.last for _, c, _ in sender.sent] == [False] * 3 + [True]
    assert [body for _, _, body in sender.sent] == [None] * 4 and sender.scans.sent_bytes == 0


def test_nobody_knows_when_a_window_of_rows_ends() -> None:
    sender = Sender()
    sender.scans.begin(SnapshotScan(B, 1, BASE, chunks(0), (3,), [Left(100), Left()]))
    assert sender.scans.boundaries() == ((3, B, None),)


def test_what_cannot_be_watched_is_copied(caplog: pytest.LogCaptureFixture) -> None:
    class Held:
        expired = 0

        def __init__(self, left: Left | None) -> None:
            self.left = left

        def prior_state(self, vnodes: Any) -> Left | None:
            return self.left

        def snapshot(self, vnodes: Any, size: int) -> Iterator[pa.RecordBatch]:
            yield batch(0)

    def rows(at_window: bool, *left: Left | None) -> int:
        order = BeginSnapshot(B, 1, (0,), BASE, at_window)
        scan = scans.scan_of(order, [Held(one) for one in left])  # type: ignore[misc]
        return sum(found is not None for _, _, found in scan.chunks)

    assert rows(False, Left(), Left()) == 2
    assert rows(True, Left(), Left()) == 0
    assert not caplog.records
    assert rows(True, Left(), None) == 2
    assert "too many entries" in caplog.text


def test_the_bandwidth_may_change_while_a_snapshot_is_sent(clock: list[float]) -> None:
    sender = Sender(rate=20 * BYTES)
    sender.begin(B, 100)
    while sender.scans.pump(2):
        pass
    slow = len(sender.numbers(B))
    sender.scans.budget.limit(None)
    while sender.scans:
        sender.scans.pump(2)
    assert slow < 100 == len(sender.numbers(B)) - 2
    sender.begin(C, 100)
    sender.scans.budget.limit(20 * BYTES)
    clock[0] += 1.0
    while sender.scans.pump(2):
        pass
    assert len(sender.numbers(C)) < 10, "and is bound again"
