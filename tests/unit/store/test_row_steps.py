"""No step of a join's state takes longer because there is more state: files go one at a time, reads come in pieces."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ferry.contract import limits
from ferry.contract.epoch_times import EpochTimes
from ferry.store import joining, rows, segment_removal, segments
from ferry.store.rows import RowState
from tests.unit.store.test_rows import contents, fragments, shape_of, some, upkeep

ALL = np.arange(8)


def filled(directory: Path, count: int) -> RowState:
    state = RowState(shape_of(), 8, directory)
    for i in range(count):
        state.apply(some(100 * i), i, "a")
    return state


def looked_into(directory: Path) -> int:
    """Files below the directory that this process has mapped, removed ones too."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return len({line.split()[4] for line in lines if f"{directory}/" in line})


class Slow:
    """Removing files takes until it is told to go on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.begun, self.goes = threading.Semaphore(0), threading.Semaphore(0)
        patch.setattr(segment_removal, "unlink", self._unlink)
        patch.setattr(segment_removal, "WAIT_SECONDS", 0.0)

    def _unlink(self, path: Path) -> None:
        self.asked.append(path.name)
        self.begun.release()
        assert self.goes.acquire(timeout=20)
        path.unlink()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    slow = Slow(monkeypatch)
    yield slow
    slow.goes.release(1000)
    segment_removal.finish()


def test_no_step_waits_for_a_file_to_go(tmp_path: Path, slow: Slow) -> None:
    state = filled(tmp_path, rows.TIER)
    first = sorted(p.name for p in tmp_path.glob("*.0.arrow"))
    for number in range(1, rows.TIER + 1):
        for _ in range(20):
            assert state.work()
        assert slow.begun.acquire(timeout=20)
        assert slow.asked == first[:number], "one at a time, in the order in which they came"
        assert contents(state).total() == 20 * rows.TIER
        slow.goes.release()
        segment_removal.finish()
    upkeep(state)
    assert [p.suffixes[0] for p in tmp_path.glob("*.arrow")] == [".1"]


def test_a_file_that_cannot_be_removed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(segment_removal, "unlink", fail)
    with pytest.raises(PermissionError):
        upkeep(filled(tmp_path, rows.TIER))


def test_who_opens_the_files_of_a_former_state_waits_for_what_it_removes(tmp_path: Path, slow: Slow) -> None:
    state = filled(tmp_path, rows.TIER)
    while not slow.asked:
        state.work()
    opened: list[RowState] = []
    thread = threading.Thread(target=lambda: opened.append(RowState(shape_of(), 8, tmp_path)))
    thread.start()
    thread.join(0.05)
    assert not opened
    slow.goes.release()
    thread.join(60)
    assert contents(opened[0]) == contents(state)


def let_go(state: RowState, directory: Path) -> None:
    """All upkeep, and no step of it lets go of more than one file."""
    before, busy = looked_into(directory), True
    while busy:
        busy = state.work()
        now = looked_into(directory)
        assert now >= before - 1
        before = now
    assert before == len(state._segments)


def test_files_are_let_go_one_at_a_time(tmp_path: Path) -> None:
    filled(tmp_path, rows.TIER)
    gc.collect()
    again = RowState(shape_of(), 8, tmp_path)
    let_go(again, tmp_path)
    again.apply(some(0), 100, "a")
    again.drop(ALL)
    let_go(again, tmp_path)
    assert looked_into(tmp_path) == 0


@pytest.mark.parametrize("chunks", [0, 3, 1000])
def test_so_are_those_of_a_snapshot(tmp_path: Path, chunks: int) -> None:
    """However it ends: it is stopped before its first chunk, in the middle, or is over."""
    state = filled(tmp_path, rows.TIER)
    snapshot = state.snapshot(ALL, 100)
    for _ in zip(range(chunks), snapshot, strict=False):
        pass
    upkeep(state)
    held = looked_into(tmp_path)
    assert held == rows.TIER + 1
    del snapshot
    assert looked_into(tmp_path) == held
    let_go(state, tmp_path)
    assert looked_into(tmp_path) == 1


def test_a_snapshot_of_what_has_expired_comes_back_to_who_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = RowState(shape_of(), 8, tmp_path)
    monkeypatch.setattr(segments, "PART_BYTES", 100)
    state.apply(state.combine([some(0, 2000), some(10**6, 2, time=15)]), 1, "a")
    assert len(state._segments[0].parts) > 20 * rows.IN_VAIN_MAX
    state.release(0, 10)
    read: list[int] = []
    living = RowState._living
    monkeypatch.setattr(RowState, "_living", lambda self, *a: (read.append(1), living(self, *a))[1])
    found = 0
    for chunk in state.snapshot(ALL):
        assert len(read) <= rows.IN_VAIN_MAX
        read.clear()
        found += chunk.num_rows
    assert found == 2


def reads(patch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each piece that a join reads from now on."""
    read: list[int] = []
    rows_of = joining.Join._rows

    def noted(self: joining.Join, *piece: Any) -> pa.RecordBatch:
        found = rows_of(self, *piece)
        read.append(found.num_rows)
        return found

    patch.setattr(joining.Join, "_rows", noted)
    return read


def test_a_piece_in_which_nothing_is_joined_is_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = RowState(shape_of(), 8, tmp_path)
    state.apply(state.combine(fragments(shape_of(), [(0, 5, k, k) for k in range(500)])), 1, "a")
    monkeypatch.setattr(joining, "READ_BYTES_MAX", state._segments[0].bytes // 20)
    read = reads(monkeypatch)
    pieces = 0
    for batch in state.fired(EpochTimes(0, 10), ALL):
        pieces += 1
        assert batch.num_rows == 0 and len(read) == pieces
    assert pieces >= 20 and sum(read) == 500


@pytest.mark.parametrize("vnodes", [1, 8, 256])
def test_what_fires_is_counted_by_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vnodes: int) -> None:
    state = RowState(shape_of(), vnodes, tmp_path)
    state.apply(some(0, 40_000), 1, "a")
    every = np.arange(vnodes)
    assert state.fired_count(EpochTimes(0, 10), every) == 20_000, "what is little is counted"
    monkeypatch.setattr(joining, "COUNT_BYTES_MAX", state._segments[0].bytes // 10)
    read = reads(monkeypatch)
    assert 14_000 < state.fired_count(EpochTimes(0, 10), every) < 26_000
    assert 0 < sum(read) < 40_000 / 8


def test_a_count_by_a_sample_is_never_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has found more rows than it may hold divides by it."""
    state = RowState(shape_of(), 8, tmp_path)
    state.apply(state.combine(fragments(shape_of(), [(0, 5, k, k) for k in range(500)])), 1, "a")
    assert state.fired_count(EpochTimes(0, 10), ALL) == 0
    monkeypatch.setattr(joining, "COUNT_BYTES_MAX", 500)
    assert state.fired_count(EpochTimes(0, 10), ALL) == 1
    assert state.fired_count(EpochTimes(10, limits.WATERMARK_END), ALL) == 0
