"""The log of deltas with an arena: deltas lie where a device may send them from, and nothing is written over them."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from ferry.contract.errors import Exhausted
from ferry.contract.names import Attempt, CommitId, Step
from ferry.store import mapped
from ferry.store.arena import ALIGN_BYTES, Arena
from ferry.store.log import DeltaLog

PAGE = mmap.PAGESIZE


def commit_id(epoch: int, number: int = 1) -> CommitId:
    return CommitId(Step(epoch, 0), Attempt(1, number))


def batch_of(rows: int, seed: int = 0) -> pa.RecordBatch:
    return pa.record_batch(
        {"x": np.random.default_rng(seed).integers(0, 1 << 62, rows), "y": ["a" * (seed % 7)] * rows}
    )


def inside(log: DeltaLog, body: pa.Buffer) -> bool:
    """The body lies in the log's arena."""
    assert log.arena is not None
    start = ctypes.addressof(ctypes.c_char.from_buffer(log.arena))
    return start <= body.address and body.address + body.size <= start + len(log.arena)


def found(log: DeltaLog, at: CommitId) -> list[pa.RecordBatch]:
    return [batch for _, _, batch in log.entries(at)]


@pytest.mark.parametrize("arena_bytes", [0, 1 << 20])
def test_the_body_is_the_message_that_a_receiver_reads(tmp_path: Path, arena_bytes: int) -> None:
    log = DeltaLog(tmp_path, arena_bytes)
    for epoch, batch in enumerate((batch_of(1000), batch_of(1000).slice(10, 7), batch_of(0))):
        body = log.append(commit_id(epoch), "s", {}, batch)
        assert body.equals(batch.serialize())
        assert pa.ipc.read_record_batch(pa.py_buffer(memoryview(body)), batch.schema) == batch
        assert inside(log, body) if arena_bytes else log.arena is None


def test_deltas_of_the_arena_survive_reopening(tmp_path: Path) -> None:
    log = DeltaLog(tmp_path, 1 << 20)
    log.append(commit_id(1), "0.0", {"n": 1}, batch_of(500, 1))
    log.append(commit_id(1), "1.0", {"n": 2}, batch_of(500, 2))
    assert all(file.stat().st_size < 200 for file in tmp_path.glob("*.delta")), "a delta is written once"
    again = DeltaLog(tmp_path, 1 << 20)
    assert again.entries(commit_id(1)) == [("0.0", {"n": 1}, batch_of(500, 1)), ("1.0", {"n": 2}, batch_of(500, 2))]
    for number in range(20):
        again.append(commit_id(2, number), "s", {}, batch_of(500, number))
    assert found(again, commit_id(1)) == [batch_of(500, 1), batch_of(500, 2)], "their blocks were taken"
    again.forget(Step(2, 0))
    assert DeltaLog(tmp_path, 1 << 20).commit_ids() == [] and not list(tmp_path.glob("*.delta"))


@pytest.mark.parametrize("damage", ["bytes of the delta", "place", "meta", "magic", "no arena"])
def test_torn_bytes_are_absent(tmp_path: Path, damage: str) -> None:
    log = DeltaLog(tmp_path, 1 << 20)
    body = log.append(commit_id(1), "s", {"n": 1}, batch_of(100))
    log.append(commit_id(1), "t", {"n": 1}, batch_of(100))
    arena, (file,) = tmp_path / "arena", tmp_path.glob("*-s.delta")
    content = bytearray(file.read_bytes())
    if damage == "bytes of the delta":
        assert log.arena is not None
        log.arena[log.arena.find(memoryview(body)[-50:].tobytes()) + 5] ^= 1
    elif damage == "no arena":
        arena.unlink()
    else:
        content[{"place": -10, "meta": 17, "magic": 7}[damage]] ^= 1
        file.write_bytes(content)
    again = DeltaLog(tmp_path, 1 << 20)
    assert [source for source, _, _ in again.entries(commit_id(1))] == ([] if damage == "no arena" else ["t"])
    assert not file.exists(), "its block is used again, so it must not come back"


def test_what_does_not_fit_gets_a_file_of_its_own(tmp_path: Path) -> None:
    log = DeltaLog(tmp_path, 3 * PAGE)
    bodies = [
        log.append(commit_id(1, number), "s", {}, batch_of(rows, number)) for number, rows in enumerate((300, 700, 300))
    ]
    assert [inside(log, body) for body in bodies] == [True, False, True]
    for opened in (log, DeltaLog(tmp_path, 3 * PAGE)):
        assert [found(opened, commit_id(1, n)) for n in range(3)] == [
            [batch_of(300)],
            [batch_of(700, 1)],
            [batch_of(300, 2)],
        ]


def test_a_block_is_used_again_when_it_is_forgotten_and_nobody_looks(tmp_path: Path) -> None:
    log = DeltaLog(tmp_path, 3 * PAGE)
    body = log.append(commit_id(1), "s", {}, batch_of(600))
    view, wanted = memoryview(body)[10:20], bytes(body)
    address = body.address
    assert inside(log, body) and not inside(log, log.append(commit_id(2), "s", {}, batch_of(600, 1))), "it is logged"
    log.forget(Step(1, 0))
    for number in range(3):
        assert not inside(log, log.append(commit_id(2, number), "s", {}, batch_of(600, 1))), "somebody looks at it"
    assert bytes(body) == wanted
    del body
    assert not inside(log, log.append(commit_id(2, 4), "s", {}, batch_of(600, 1))) and bytes(view) == wanted[10:20]
    del view
    assert log.append(commit_id(3), "s", {}, batch_of(600, 2)).address == address


def test_a_delta_that_is_replaced_frees_its_block(tmp_path: Path) -> None:
    log = DeltaLog(tmp_path, 8 * PAGE)
    for number in range(10):
        assert inside(log, log.append(commit_id(1), "s", {"n": number}, batch_of(600, number)))
        assert [(meta, batch) for _, meta, batch in log.entries(commit_id(1))] == [
            ({"n": number}, batch_of(600, number))
        ]


def test_rows_that_were_read_keep_their_block(tmp_path: Path) -> None:
    DeltaLog(tmp_path, 3 * PAGE).append(commit_id(1), "s", {}, batch_of(600))
    log = DeltaLog(tmp_path, 3 * PAGE)
    (batch,) = found(log, commit_id(1))
    log.forget(Step(1, 0))
    assert not inside(log, log.append(commit_id(2), "s", {}, batch_of(600, 1))) and batch == batch_of(600)
    del batch
    assert inside(log, log.append(commit_id(3), "s", {}, batch_of(600, 2)))


@pytest.mark.parametrize("after", [0, PAGE, 2 * PAGE, 1 << 20])
def test_what_is_logged_outlives_a_change_of_the_size(tmp_path: Path, after: int) -> None:
    log = DeltaLog(tmp_path, 8 * PAGE)
    for epoch in (1, 2):
        log.append(commit_id(epoch), "s", {"n": epoch}, batch_of(600, epoch))
    for size in (after, 8 * PAGE):
        again = DeltaLog(tmp_path, size)
        for epoch in (1, 2):
            assert again.entries(commit_id(epoch)) == [("s", {"n": epoch}, batch_of(600, epoch))]
        assert (len(again.arena) if again.arena else 0) == size
        assert (tmp_path / "arena").exists() == (size > 0)


def test_a_change_of_the_size_that_was_cut_short_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = DeltaLog(tmp_path, 8 * PAGE)
    for epoch in (1, 2, 3):
        log.append(commit_id(epoch), "s", {"n": epoch}, batch_of(300, epoch))
    replace, calls = os.replace, iter(range(10))

    def cut(source: Path, target: Path) -> None:
        if next(calls) == 1:
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(os, "replace", cut)
        DeltaLog(tmp_path, 0)
    again = DeltaLog(tmp_path, 3 * PAGE)
    assert [again.entries(commit_id(e)) for e in (1, 2, 3)] == [[("s", {"n": e}, batch_of(300, e))] for e in (1, 2, 3)]


@pytest.mark.parametrize("size", [1, PAGE - 1, PAGE, PAGE + 1])
def test_an_arena_is_whole_pages_and_never_more_than_asked_for(tmp_path: Path, size: int) -> None:
    arena = DeltaLog(tmp_path, size).arena
    assert (0 if arena is None else len(arena)) == size // PAGE * PAGE


def test_an_arena_without_room_is_exhausted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:
        full.setattr(mapped, "RESERVE_BYTES", 1 << 62)
        with pytest.raises(Exhausted, match="bytes are needed"):
            DeltaLog(tmp_path / "a", 1 << 20)
    DeltaLog(tmp_path / "b", 1 << 20)
    assert mapped.allocated_bytes(tmp_path / "b" / "arena") >= 1 << 20, "a write to a hole could end the process"
    with monkeypatch.context() as full:
        full.setattr(mapped, "RESERVE_BYTES", 1 << 62)
        assert DeltaLog(tmp_path / "b", 1 << 20).arena is not None, "its room is there already"

    def refuse(descriptor: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(Exhausted, match="no room for"):
        DeltaLog(tmp_path / "c", 1 << 20)


def test_blocks_do_not_overlap_and_neighbours_grow_together(tmp_path: Path) -> None:
    arena = Arena(tmp_path / "arena", PAGE)
    sizes = [1, 64, 65, 1000]
    blocks = [arena.take(size) for size in sizes]
    assert [block.offset for block in blocks if block] == [0, 64, 128, 256]
    assert arena.claim(64, 64) is None and arena.claim(63, 1) is None and arena.claim(PAGE - 1, 2) is None
    assert arena.take(PAGE) is None
    order = np.random.default_rng(3).permutation(len(blocks))
    for at in order:
        blocks[at] = None
    whole = arena.take(PAGE)
    assert whole is not None and whole.offset == 0 and whole.buffer.size == PAGE and ALIGN_BYTES == 64


SIZES = (0, 2 * PAGE, 5 * PAGE, 64 * PAGE)


class Machine(RuleBasedStateMachine):
    """The log against a dict; bodies that are held stay as they were."""

    where: Path

    def __init__(self) -> None:
        super().__init__()
        self.number = Machine.runs = getattr(Machine, "runs", 0) + 1
        self.size = SIZES[self.number % len(SIZES)]
        self.log = DeltaLog(self.where / str(self.number), self.size)
        self.kept: dict[tuple[int, int], tuple[int, pa.RecordBatch]] = {}
        self.held: list[tuple[pa.Buffer, bytes]] = []
        self.written = 0

    @rule(epoch=st.integers(1, 4), source=st.integers(0, 2), rows=st.integers(0, 900), hold=st.booleans())
    def append(self, epoch: int, source: int, rows: int, hold: bool) -> None:
        self.written += 1
        batch = batch_of(rows, self.written)
        body = self.log.append(commit_id(epoch), str(source), {"n": self.written}, batch)
        assert body.equals(batch.serialize())
        self.kept[epoch, source] = (self.written, batch)
        if hold:
            self.held.append((body, bytes(body)))

    @rule(upto=st.integers(0, 4))
    def forget(self, upto: int) -> None:
        self.log.forget(Step(upto, 0))
        self.kept = {at: entry for at, entry in self.kept.items() if at[0] > upto}

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))

    @rule(size=st.sampled_from(SIZES))
    def reopen(self, size: int) -> None:
        # A process that ended holds nothing.
        self.held.clear()
        self.size, self.log = size, DeltaLog(self.log.directory, size)

    @invariant()
    def nothing_is_lost_or_changed(self) -> None:
        for epoch in range(1, 5):
            wanted = [(str(s), {"n": n}, batch) for (e, s), (n, batch) in sorted(self.kept.items()) if e == epoch]
            assert self.log.entries(commit_id(epoch)) == wanted
        assert all(bytes(body) == content for body, content in self.held)

    def teardown(self) -> None:
        """Nothing is leaked: when all is forgotten, the whole arena is one block."""
        self.held.clear()
        self.log.forget(Step(9, 0))
        self.kept.clear()
        gc.collect()
        arena = self.log._arena
        assert arena is None or arena.take(self.size) is not None


def test_the_log_is_a_dict(tmp_path: Path) -> None:
    Machine.where = tmp_path
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
