"""Tables of aggregates that become large: growth touches a bounded part of them, however few virtual nodes there are."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Window
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import Exhausted
from ferry.spark.tasks.fragment import Fragmenter
from ferry.store import mapped, slice_files, slice_table
from ferry.store.aggregate import AggregateState

KEYS = {"int": (("k", "int"),), "text": (("k", "string"),)}


def descriptor_of(key: str) -> OperatorDescriptor:
    return OperatorDescriptor("op", 0, "aggregate", KEYS[key], Window(10, 10), (Aggregate("n", "count"),))


def add(state: AggregateState, keys: list[int], time: int = 1) -> None:
    """One record of each key, at this time."""
    fragmenter = Fragmenter(state.descriptor)
    named = keys if state.descriptor.int_key else [text(k) for k in keys]
    fragmenter.add(pa.record_batch({"k": named, "t": np.full(len(keys), time)}), ["k"], "t")
    delta, _ = state.delta([state.combine(fragmenter.drain())], EpochTimes(-1, -1))
    # Wrong ones change nothing, either.
    hints = state.hints if len(keys) % 3 else np.random.default_rng(len(keys)).permutation(state.hints)
    state.apply(delta, 0, "", None if len(keys) % 2 else hints)


def text(key: int) -> str:
    return f"{key}" * (1 + key % 5)


def counted(state: AggregateState) -> dict[Any, int]:
    """How often each key was added, by what fires and what a snapshot has."""
    out: dict[Any, int] = {}
    for batch in state.fired(EpochTimes(0, 10), np.arange(state.virtual_nodes), 100):
        for row in batch.to_pylist():
            assert row["k"] not in out
            out[row["k"]] = row["n"]
    scanned = [batch["n"].to_numpy().sum() for batch in state.snapshot(np.arange(state.virtual_nodes), 2000)]
    assert sum(scanned) == sum(out.values())
    assert state.statistics()["entries"].sum() == len(out)
    return out


STEP = st.one_of(
    st.tuples(st.just("add"), st.lists(st.integers(0, 400), min_size=1, max_size=120)),
    st.tuples(st.just("drop"), st.integers(0, 7)),
    st.tuples(st.sampled_from(["open", "tidy"]), st.just(0)),
)


@settings(deadline=None, max_examples=40)
@given(
    key=st.sampled_from(sorted(KEYS)),
    vnodes=st.sampled_from([1, 2, 8]),
    parts=st.sampled_from([1, 8, 64]),
    steps=st.lists(STEP, max_size=12),
)
def test_a_table_in_parts_is_a_dictionary(key: str, vnodes: int, parts: int, steps: list[tuple[str, Any]]) -> None:
    """Also when it is opened by who would make other parts of it."""
    model: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(slice_files, "PARTS_MIN", parts)
        patch.setattr(slice_table, "KEYS_BYTES", 256)
        state = AggregateState(descriptor_of(key), vnodes, Path(folder))
        for what, value in steps:
            match what:
                case "add":
                    add(state, value)
                    for k in value:
                        model[k] = model.get(k, 0) + 1
                case "drop" if value < vnodes:
                    gone = set(counted(state))
                    state.drop(np.array([value]))
                    gone -= set(counted(state))
                    model = {k: n for k, n in model.items() if (k if key == "int" else text(k)) not in gone}
                case "open":
                    patch.setattr(slice_files, "PARTS_MIN", 1024)
                    state = AggregateState(state.descriptor, vnodes, Path(folder))
                case "tidy":
                    while state.work():
                        pass
            assert counted(state) == {(k if key == "int" else text(k)): n for k, n in model.items()}


@pytest.mark.parametrize("vnodes", [1, 16])
def test_a_put_moves_few_rows_however_few_virtual_nodes_there_are(tmp_path: Path, vnodes: int) -> None:
    state = AggregateState(descriptor_of("int"), vnodes, tmp_path)
    most = 0
    for first in range(0, 400_000, 20_000):
        before = state._slices.table(0).places.copy() if first else np.zeros(0)
        add(state, list(range(first, first + 20_000)))
        after = state._slices.table(0).places
        if first:
            moved = before[(before != after) & (before != 0)] & 63
            most = max(most, int((1 << moved).sum()))
    assert 0 < most < 40_000 * 4, "places of the regions that were left: of 400,000 rows it would be a million"


def mappings_while_it_grows(state: AggregateState, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    opened: list[str] = []
    real = mapped.open_mapped

    def counting(path: Path, size: int | None = None) -> Any:
        opened.append(path.name)
        return real(path, size)

    with monkeypatch.context() as patch:
        patch.setattr(mapped, "open_mapped", counting)
        for first in range(0, 60_000, 2000):
            add(state, list(range(first, first + 2000)))
    return opened


def test_a_large_file_is_never_mapped_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in use of it would be taken away and given back, page by page."""
    monkeypatch.setattr(mapped, "LARGE_BYTES", 1 << 18)
    state = AggregateState(descriptor_of("text"), 4, tmp_path)
    opened = mappings_while_it_grows(state, monkeypatch)
    sizes = {name: (tmp_path / name).stat().st_size for name in ("0.table", "0.heap")}
    assert set(sizes.values()) == {mapped.ROOM_BYTES}
    assert opened.count("0.table") <= 6 and opened.count("0.heap") <= 9
    assert mapped.allocated_bytes(tmp_path / "0.table") < 20 << 20
    again = AggregateState(descriptor_of("text"), 4, tmp_path)
    assert again._slices.table(0).heap.size < 1 << 21, "of the heap no more than has room on the disk"
    add(again, list(range(60_000, 61_000)))
    assert len(counted(again)) == 61_000
    steps = 0
    again.release(0, 10)
    while again.work():
        steps += 1
    assert steps < 50 and not list(tmp_path.glob("0.*")), "nothing is given back of what was never used"


def test_where_no_file_may_be_so_long_it_grows_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.ftruncate

    def refusing(descriptor: int, size: int) -> None:
        if size >= mapped.ROOM_BYTES:
            raise OSError(27, "File too large")
        real(descriptor, size)

    monkeypatch.setattr(mapped, "LARGE_BYTES", 1 << 18)
    monkeypatch.setattr(mapped.os, "ftruncate", refusing)
    state = AggregateState(descriptor_of("text"), 4, tmp_path)
    mappings_while_it_grows(state, monkeypatch)
    assert max(path.stat().st_size for path in tmp_path.iterdir()) < 64 << 20
    assert len(counted(AggregateState(descriptor_of("text"), 4, tmp_path))) == 60_000


def test_a_heap_grows_only_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when its file is long enough: a write to a page that gets none would kill the process."""
    monkeypatch.setattr(mapped, "LARGE_BYTES", 1 << 12)
    state = AggregateState(descriptor_of("text"), 4, tmp_path)
    add(state, list(range(3000)))
    before = counted(state)
    monkeypatch.setattr(mapped, "RESERVE_BYTES", 1 << 62)
    with pytest.raises(Exhausted, match="kept in reserve"):
        state._slices.table(0).files.extend_heap(1 << 20)
    assert counted(state) == before


@pytest.mark.parametrize("key", ["int", "text"])
def test_a_new_slice_begins_with_room_for_the_rows_of_the_one_before(key: str, tmp_path: Path) -> None:
    state = AggregateState(descriptor_of(key), 8, tmp_path)
    abandoned = []
    for time in (1, 11, 21):
        for begin in range(0, 40_000, 4_000):
            add(state, [*range(begin, begin + 4_000)], time)
        files = state._slices.table(time // 10 * 10).files
        abandoned.append(int(files.end[0]) - int((1 << (files.places[files.places != 0] & 63)).sum()))
    assert abandoned[0] > 10_000 and max(abandoned[1:]) < 2_000, "rows of regions that became too small"
