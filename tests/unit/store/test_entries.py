"""EntryStore on disk against dictionaries: changes, snapshots, drops, restarts, a process that is killed, a disk that is full."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.contract.errors import Exhausted
from ferry.kernels import places
from ferry.kernels.changes import CHANGES, EMIT, EVENT_TIMERS, PROCESSING_TIMERS, PUT, REMOVE, emission
from ferry.kernels.hashing import hash_ints
from ferry.store import entries, mapped
from ferry.store.entries import EntryStore

VNODES = 8
EVERY = np.arange(VNODES)

Change = tuple[int, int, int, int, bytes]
"""change, key, table, entry, value; of timers the entry is the time"""


def places_of(rows: list[tuple[int, int, int]]) -> tuple[np.ndarray, list[bytes]]:
    """Hashes and places of (key, table, entry)."""
    keys = np.array([k for k, _, _ in rows], np.int64)
    hashes = hash_ints(keys)
    tables = np.array([t for _, t, _ in rows], np.uint8)
    key_bytes = places.bytes_of(pa.array(keys))
    own = places.ordered_ints(np.array([e for _, _, e in rows], np.int64))
    return hashes, places.lists(*places.places(hashes, key_bytes, tables, own))


def batch_of(changes: list[Change]) -> pa.RecordBatch:
    hashes, found = places_of([(k, t, e) for _, k, t, e, _ in changes])
    for i, (change, _, _, entry, value) in enumerate(changes):
        if change == EMIT:
            found[i] = emission(entry, i, len(value))
    order = np.argsort(hashes, kind="stable")
    arrays = [pa.array(hashes), pa.array([c for c, *_ in changes], pa.int8()), pa.array(found, pa.binary())]
    arrays.append(pa.array([v for *_, v in changes], pa.binary()))
    return pa.RecordBatch.from_arrays(arrays, schema=CHANGES).take(pa.array(order))


def vnode_of(key: int) -> int:
    return int(hash_ints(np.array([key]))[0] >> np.uint64(61))


def contents(state: EntryStore, vnodes: np.ndarray = EVERY, chunk_bytes: int = 100) -> dict[bytes, bytes]:
    chunks = [c for c in state.snapshot(vnodes, chunk_bytes) if c.num_rows]
    assert all(c.schema.equals(CHANGES) for c in chunks)
    rows = [tuple(row.values()) for c in chunks for row in c.select(["place", "value"]).to_pylist()]
    assert len(rows) == len(dict(rows)), "an entry came twice"
    return dict(rows)


def timers_of(due: entries.Due) -> list[tuple[int, bytes]]:
    return sorted(zip(due.times.tolist(), due.keys, strict=True))


class Model:
    """What a dictionary would hold."""

    def __init__(self) -> None:
        self.there: dict[tuple[int, int, int], bytes] = {}
        self.emitted: list[tuple[int, int, bytes]] = []

    def apply(self, changes: list[Change]) -> None:
        for change, key, table, entry, value in changes:
            if change == PUT:
                self.there[key, table, entry] = value
            elif change == REMOVE:
                self.there.pop((key, table, entry), None)

    def check(self, state: EntryStore) -> None:
        order = list(self.there)
        hashes, found = places_of(order)
        assert state.values(hashes, found) == [self.there[o] for o in order]
        assert contents(state) == dict(zip(found, self.there.values(), strict=True))
        counts = np.bincount([vnode_of(k) for k, _, _ in order], minlength=VNODES)
        assert state.statistics()["entries"].tolist() == counts.tolist()
        for until in (-5, 0, 3, 100):
            due = state.due(EVENT_TIMERS, until, EVERY)
            mine = sorted(e for _, t, e in order if t == EVENT_TIMERS and e <= until)
            assert due.times.tolist() == mine
        for key in {k for k, _, _ in order}:
            one, begin = places_of([(key, 1, 0)])
            numbers, rests, values = state.below(one, [begin[0][:-8]])
            mine = sorted((e, v) for (k, t, e), v in self.there.items() if (k, t) == (key, 1))
            assert list(zip(places.ints_of(rests).tolist() if rests else [], values, strict=True)) == mine
            assert not numbers.any()


change_lists = st.lists(
    st.tuples(
        st.sampled_from([PUT, PUT, REMOVE]),
        st.integers(-3, 12),
        st.sampled_from([0, 1, EVENT_TIMERS]),
        st.integers(-4, 4),
        st.binary(max_size=3),
    ).map(lambda c: (c[0], c[1], c[2], c[3], b"" if c[2] == EVENT_TIMERS else c[4])),
    max_size=25,
    unique_by=lambda c: c[1:4],
)


@given(st.lists(change_lists, max_size=4), st.data())
@settings(max_examples=40, deadline=None)
def test_as_a_dictionary(tmp_path_factory: pytest.TempPathFactory, deltas: list[list[Change]], data: Any) -> None:
    directory = tmp_path_factory.mktemp("entries")
    state, model = EntryStore(directory, VNODES), Model()
    for delta in deltas:
        for _ in range(data.draw(st.integers(1, 2))):  # to apply it twice is to apply it once
            if delta:
                state.apply(batch_of(delta))
        model.apply(delta)
        if data.draw(st.booleans()):
            dropped = data.draw(st.integers(0, VNODES - 1))
            state.drop(np.array([dropped]))
            model.there = {k: v for k, v in model.there.items() if vnode_of(k[0]) != dropped}
        if data.draw(st.booleans()):
            state.work()
        if data.draw(st.booleans()):
            state.close()
            state = EntryStore(directory, VNODES)
        model.check(state)
    while state.work():
        model.check(state)
    state.close()


@given(st.lists(change_lists.filter(bool), min_size=1, max_size=4), st.data())
@settings(max_examples=40, deadline=None)
def test_a_snapshot_while_deltas_are_applied(
    tmp_path_factory: pytest.TempPathFactory, deltas: list[list[Change]], data: Any
) -> None:
    leader = EntryStore(tmp_path_factory.mktemp("leader"), VNODES)
    learner = EntryStore(tmp_path_factory.mktemp("learner"), VNODES)
    learner.apply(batch_of([(PUT, 1, 0, 0, b"old"), (PUT, 1, EVENT_TIMERS, 2, b""), (EMIT, 2, 0, 7, b"old")]))
    learner.drop(EVERY)
    leader.apply(batch_of(deltas[0]))
    chunks = leader.snapshot(EVERY, 60)
    on_the_way: list[pa.RecordBatch] = []
    for delta in [*deltas[1:], None]:
        for _ in range(data.draw(st.integers(0, 6))):
            on_the_way += [c for c in [next(chunks, None)] if c is not None]
        for _ in range(data.draw(st.integers(0, len(on_the_way)))):
            learner.apply_absent(on_the_way.pop(0))
        if delta:
            changes = batch_of(delta)
            leader.apply(changes)
            learner.apply(changes)
    for chunk in [*on_the_way, *chunks]:
        learner.apply_absent(chunk)
    learner.whole(EVERY)
    while learner.work():
        pass
    assert contents(learner) == contents(leader)
    assert learner.statistics()["entries"].tolist() == leader.statistics()["entries"].tolist()
    mine, theirs = (one.due(EVENT_TIMERS, 100, EVERY) for one in (learner, leader))
    assert timers_of(mine) == timers_of(theirs)
    leader.close()
    learner.close()


def test_a_chunk_does_not_bring_back_what_a_delta_removed(tmp_path: Path) -> None:
    leader, learner = EntryStore(tmp_path / "a", VNODES), EntryStore(tmp_path / "b", VNODES)
    leader.apply(batch_of([(PUT, 1, 0, 0, b"x"), (PUT, 1, EVENT_TIMERS, 5, b"")]))
    learner.drop(EVERY)
    chunks = [c for c in leader.snapshot(EVERY) if c.num_rows]
    learner.apply(batch_of([(REMOVE, 1, 0, 0, b""), (REMOVE, 1, EVENT_TIMERS, 5, b"")]))
    for chunk in chunks:
        learner.apply_absent(chunk)
    assert not contents(learner)
    assert not learner.due(EVENT_TIMERS, 9, EVERY).keys
    # Dropped again it knows nothing of that any more, and takes the snapshot.
    learner.drop(EVERY)
    for chunk in chunks:
        learner.apply_absent(chunk)
    assert len(contents(learner)) == 2


def test_what_was_removed_earlier_does_not_remove_what_was_set_later(tmp_path: Path) -> None:
    """Of a checkpoint the newest changes come first."""
    state = EntryStore(tmp_path, VNODES)
    state.drop(EVERY)
    key, timer = (1, 0, 5), (1, EVENT_TIMERS, 50)
    for change, value in ((PUT, b"new"), (REMOVE, b""), (PUT, b"old")):
        state.apply_absent(batch_of([(change, *key, value), (change, *timer, value)]))
    assert [*contents(state).values()] == [b"new", b"new"]
    assert state.next_timer(EVENT_TIMERS) == 50 and state.statistics()["entries"].sum() == 2
    state.apply_absent(batch_of([(REMOVE, 2, 0, 5, b"")]))
    state.apply_absent(batch_of([(PUT, 2, 0, 5, b"old")]))
    assert len(contents(state)) == 2
    state.close()


def test_what_is_held_whole_does_not_remember_what_was_removed(tmp_path: Path) -> None:
    state = EntryStore(tmp_path, VNODES)
    state.drop(EVERY)
    state.apply(batch_of([(PUT, k, 0, 0, b"x") for k in range(20)]))
    state.apply(batch_of([(REMOVE, k, 0, 0, b"") for k in range(20)]))
    assert removed(state) == 20
    state.whole(EVERY)
    while state.work():
        pass
    state.apply(batch_of([(REMOVE, k, 0, 0, b"") for k in range(20)]))
    assert removed(state) == 0


def removed(state: EntryStore) -> int:
    with state._env.begin() as txn:
        return int(txn.stat(state._removed)["entries"])


def test_rows_of_an_epoch(tmp_path: Path) -> None:
    state = EntryStore(tmp_path, VNODES)
    key = {vnode_of(k): k for k in range(100)}
    state.apply(batch_of([(EMIT, key[1], 0, 4, b"a"), (EMIT, key[2], 0, 4, b"bc"), (EMIT, key[1], 0, 5, b"later")]))
    assert list(state.emitted(4, np.array([1, 2]))) == [b"a", b"bc"]
    assert list(state.emitted(4, np.array([2]))) == [b"bc"]
    assert state.emitted_count(4, EVERY) == 3
    learner = EntryStore(tmp_path / "learner", VNODES)
    for chunk in state.snapshot(np.array([1])):
        learner.apply_absent(chunk)
    assert list(learner.emitted(4, EVERY)) == [b"a"]
    assert list(learner.emitted(5, EVERY)) == [b"later"]
    state.release(4)
    assert not list(state.emitted(4, EVERY))
    assert list(state.emitted(5, EVERY)) == [b"later"]
    state.apply(batch_of([(EMIT, key[1], 0, 4, b"again")]))
    state.close()
    state = EntryStore(tmp_path, VNODES)
    assert not list(state.emitted(4, EVERY))
    assert state.released == 4
    state.drop(np.array([1]))
    assert not list(state.emitted(5, EVERY))


def test_the_next_timer(tmp_path: Path) -> None:
    state = EntryStore(tmp_path, VNODES)
    assert state.next_timer(PROCESSING_TIMERS) is None
    state.apply(batch_of([(PUT, 1, PROCESSING_TIMERS, 7, b""), (PUT, 2, PROCESSING_TIMERS, -3, b"")]))
    state.apply(batch_of([(PUT, 1, EVENT_TIMERS, -9, b"")]))
    assert state.next_timer(PROCESSING_TIMERS) == -3
    state.apply(batch_of([(REMOVE, 2, PROCESSING_TIMERS, -3, b"")]))
    assert state.next_timer(PROCESSING_TIMERS) == 7


def test_long_keys_and_entries_are_cut(tmp_path: Path) -> None:
    state = EntryStore(tmp_path, 1)
    texts = [b"k" * 600 + bytes([i]) for i in range(4)]
    offsets, data, long = places.cut(*places.texts(texts))
    assert long.tolist() == [0, 1, 2, 3]
    none = np.zeros(5, np.int64), places.NO_BYTES
    found = places.lists(*places.places(np.zeros(4, np.uint64), (offsets, data), np.zeros(4, np.uint8), none))
    assert len(set(found)) == 4
    assert max(map(len, found)) <= places.PLACE_BYTES_MAX < 500
    values = [places.with_wholes(b"v", texts[i], b"entry") for i in range(4)]
    arrays = [pa.array([0] * 4, pa.uint64()), pa.array([PUT] * 4, pa.int8())]
    arrays += [pa.array(found, pa.binary()), pa.array(values, pa.binary())]
    state.apply(pa.RecordBatch.from_arrays(arrays, schema=CHANGES))
    back = state.values(np.zeros(4, np.uint64), found)
    key, rest = places.split_whole(back[2] or b"")
    assert (key, places.split_whole(rest)) == (texts[2], (b"entry", b"v"))


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_integers_keep_their_order(values: list[int]) -> None:
    found = places.lists(*places.ordered_ints(np.array(values, np.int64)))
    assert sorted(found) == [places.ordered_int(v) for v in sorted(values)]
    assert places.ints_of(found).tolist() == values


def test_a_killed_process_leaves_whole_deltas(tmp_path: Path) -> None:
    """Every delta puts the same number under 50 keys; whatever is there after a kill is one of them as a whole."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from test_entries import *\n"
        "state = EntryStore(Path(sys.argv[1]), VNODES)\n"
        "for n in range(10**6):\n"
        "    state.apply(batch_of([(PUT, k, 0, 0, str(n).encode()) for k in range(50)]))\n"
        "    print(n, flush=True)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path), str(Path(__file__).parent)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ})
    assert child.stdout is not None
    while int(child.stdout.readline()) < 30:
        pass
    time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    said = [int(line) for line in child.stdout.read().split()]
    child.wait()
    state = EntryStore(tmp_path, VNODES)
    values = set(contents(state).values())
    assert len(values) == 1
    assert int(values.pop()) >= max([30, *said])
    assert state.statistics()["entries"].sum() == 50


@pytest.mark.parametrize("seed", range(12))
def test_a_file_is_never_shorter_than_its_pages(tmp_path: Path, seed: int) -> None:
    """LMDB does not write pages that a change takes and gives back, and a file that is too short is refused as cut."""
    draw, state = random.Random(seed), EntryStore(tmp_path, VNODES)
    for number in range(450):
        match draw.choice(["put", "drop", "work"]):
            case "put":
                keys, sizes = draw.choices(range(3000), k=draw.randint(1, 40)), [50, 900, 1900]
                state.apply(batch_of([(PUT, key, 0, 0, bytes(draw.choice(sizes))) for key in keys]))
            case "drop":
                state.drop(np.array([draw.randrange(VNODES)]))
            case _:
                state.work()
        pages = (state._env.info()["last_pgno"] + 1) * state._env.stat()["psize"]
        assert (tmp_path / "data.mdb").stat().st_size >= pages, f"after change {number}"
    state.close()


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = EntryStore(tmp_path, VNODES)
    state.apply(batch_of([(PUT, 1, 0, 0, b"x")]))
    with monkeypatch.context() as patched:
        patched.setattr(mapped, "_free", lambda _: mapped.RESERVE_BYTES - 1)
        with pytest.raises(Exhausted, match="more room"):
            state.apply(batch_of([(PUT, 2, 0, 0, b"y")]))
        # What gives room back goes on.
        state.release(7)
        state.drop(np.array([(vnode_of(1) + 1) % VNODES]))
        state.whole(EVERY)
        assert not state.work()
    assert len(contents(state)) == 1
    state.apply(batch_of([(PUT, 2, 0, 0, b"y")]))
    assert len(contents(state)) == 2


def test_a_map_that_is_full_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "MAP_BYTES", 1 << 20)
    state = EntryStore(tmp_path, VNODES)
    state.apply(batch_of([(PUT, 1, 0, 0, b"x")]))
    with pytest.raises(Exhausted, match="could not be written"):
        state.apply(batch_of([(PUT, k, 0, 0, b"y" * 400) for k in range(2000)]))
    assert len(contents(state)) == 1
    assert state.statistics()["entries"].sum() == 1


def test_a_file_that_cannot_be_made_longer_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full file system that wants room for a longer file at once."""
    state = EntryStore(tmp_path, VNODES)

    def truncate(path: Path, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(Exhausted, match=r"could not be written: .*No space left"):
        patch.setattr(os, "truncate", truncate)
        state.apply(batch_of([(PUT, 1, 0, 0, b"x")]))
    assert contents(state) == {} and state.statistics()["entries"].sum() == 0
    state.apply(batch_of([(PUT, 1, 0, 0, b"x")]))
    assert len(contents(state)) == 1
