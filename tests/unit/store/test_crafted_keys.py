"""Keys that somebody chose for their hashes take no longer way in a table than random keys; measured in places, not in time.

A search goes from the home of a key to the next free place, so the square of the length of a run of places in use is what
the searches of its keys cost.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ferry.contract.errors import Bug, StateUnavailable
from ferry.kernels import hashing, parts
from ferry.kernels.columns import PartialArrays
from ferry.kernels.grouping import KEY, NO_BYTES, NO_INTS, Ints
from ferry.kernels.groups import Groups, merged
from ferry.kernels.salting import SEED, key_salts
from ferry.kernels.table import HELD, PLACE_BITS, STATE, STATE_BITS, USED
from ferry.store import slice_files
from ferry.store.dropped_vnodes import DroppedVnodes
from ferry.store.slice_table import BEGIN, RowArrays, SliceTable
from ferry.store.table_header import MAGIC, MAGIC_NUMBER, MAGIC_UNSEEDED, SEED_AGAIN
from ferry.store.table_header import SEED as SEED_WORD
from tests.unit.store.test_rot import flip

COUNT, VNODES, WORD = 20_000, 8, (1 << 64) - 1
CODES = np.array([0], np.int64)
PART, LOW = 5, 77
"""Of the crafted hashes: their first ten bits, and their last 24."""


def unmixed(x: int) -> int:
    """The integer of which this is the hash."""
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        y = x
        for _ in range(64 // shift + 1):
            y = x ^ y >> shift
        x = y * pow(factor, -1, 1 << 64) & WORD
    return x


def integers(crafted: bool) -> PartialArrays:
    if crafted:
        keys = np.array([unmixed(PART << 54 | i << 24 | LOW) for i in range(COUNT)], np.uint64).view(np.int64)
    else:
        keys = np.array(random.Random(1).sample(range(1 << 62), COUNT), np.int64)
    return arrays(hashing.hash_ints(keys), keys, NO_INTS, NO_BYTES)


def texts(crafted: bool) -> PartialArrays:
    """Two words each; of the crafted ones the second is chosen so that all have one hash."""
    words = np.array(
        [[random.Random(i).getrandbits(64), random.Random(-i).getrandbits(64)] for i in range(COUNT)], np.uint64
    )
    if crafted:
        length = hashing.hash_ints(np.array([16], np.int64))
        words[:, 1] = hashing.hash_ints((words[:, 0] ^ length).view(np.int64)) ^ np.uint64(4711)
    offsets, data = np.arange(COUNT + 1, dtype=np.int64) * 16, words.view(np.uint8).ravel()
    return arrays(hashing.hash_bytes(offsets, data), NO_INTS, offsets, data)


def arrays(hashes: Any, keys: Ints, offsets: Ints, data: Any) -> PartialArrays:
    ones = np.ones(COUNT, np.int64)
    return PartialArrays(np.zeros(COUNT, np.int64), hashes, keys, offsets, data, ones, ones.reshape(-1, 1).copy())


def cost(used: np.ndarray) -> int:
    """The sum of the squares of the runs of places in use."""
    ends = np.flatnonzero(np.diff(np.concatenate([[0], used.astype(np.int8), [0]])))
    return int(((ends[1::2] - ends[::2]) ** 2).sum())


def region_of(table: SliceTable) -> np.ndarray:
    place = int(table.places.max())
    return table.slots[place >> PLACE_BITS :][: 1 << (place & 63)]


def table_of(folder: Path, p: PartialArrays) -> SliceTable:
    folder.mkdir(exist_ok=True)
    table = SliceTable(folder, 0, 5, p.offsets.size > 0, DroppedVnodes(folder / "drops", VNODES))
    table.put(RowArrays(p.hashes, p.keys, p.offsets, p.data, p.n, p.cells), np.arange(COUNT), absent=False)
    return table


def positions(table: SliceTable, p: PartialArrays) -> Ints:
    groups = np.zeros((COUNT, 3), np.int64)
    groups[:, 1] = p.hashes.view(np.int64)
    groups[:, 2] = p.keys if p.keys.size else 0
    return table.find(groups, np.arange(COUNT), p.offsets, p.data)


@pytest.mark.parametrize("keys", [integers, texts])
def test_crafted_keys_are_spread_like_random_ones(keys: Any, tmp_path: Path) -> None:
    crafted, usual = keys(True), keys(False)
    by_bytes = crafted.offsets.size > 0
    table = table_of(tmp_path / "crafted", crafted)
    assert np.count_nonzero(table.places) == 1, "all are in one region"
    same = arrays((usual.hashes >> np.uint64(10)) | np.uint64(PART << 54), usual.keys, usual.offsets, usual.data)
    random_table = table_of(tmp_path / "random", same)
    assert cost(region_of(table)[:, USED] != 0) < 3 * cost(region_of(random_table)[:, USED] != 0)
    assert np.unique(positions(table, crafted)).size == COUNT

    costs = []
    for p in (crafted, usual):
        groups = Groups(CODES, by_bytes)
        for batch in range(2):
            assert groups.add(p.slices, p.hashes, p.keys, p.offsets, p.data, NO_INTS, p.cells) == COUNT
            assert groups.count == COUNT and (groups.rows()[:, 3] == batch + 1).all()
        costs.append(cost(groups._index != 0))
    assert costs[0] < 3 * costs[1]

    rows, _ = merged([crafted, crafted], by_bytes, 10, CODES)
    assert rows.shape[0] == COUNT and (rows[:, 3] == 2).all()
    homes = [
        parts._home(0, int(h) ^ salt, (1 << 16) - 1, SEED)
        for h, salt in zip(crafted.hashes.view(np.int64).tolist(), salts_of(crafted), strict=True)
    ]
    assert np.bincount(homes).max() < 12, "the places where a search in a part begins"


def salts_of(p: PartialArrays) -> list[int]:
    return key_salts(p.offsets, p.data, np.arange(COUNT), SEED).tolist() if p.offsets.size else [0] * COUNT


def test_a_slice_is_chosen_by_its_time_as_well() -> None:
    """Times of records are chosen by strangers, too: keys and slices whose sums or differences are equal are spread."""
    homes = [
        parts._home(step * (1 << shift), -step * (1 << shift), (1 << 16) - 1, SEED)
        for shift in (0, 20, 40)
        for step in range(5000)
    ]
    assert np.bincount(homes).max() < 12


def test_salts_are_those_of_the_bytes(tmp_path: Path) -> None:
    """Of every length, wherever the bytes lie; other bytes, another length or another seed have other ones."""
    draw = random.Random(7)
    keys = [draw.randbytes(n) for n in range(40)] + [b"\0" * n for n in range(20)]
    data = np.frombuffer(b"".join(keys), np.uint8)
    offsets = np.cumsum([0, *map(len, keys)]).astype(np.int64)
    order = np.arange(len(keys))
    salts = key_salts(offsets, data, order, SEED)
    assert (
        (salts >= 0).all() and (salts < 1 << 61).all() and np.unique(salts).size == len(keys) - 1
    )  # b"" is there twice
    assert key_salts(offsets, data, order[::-1].copy(), SEED).tolist() == salts[::-1].tolist()
    assert not (key_salts(offsets[2:], data, order[2:] - 2, SEED ^ 2) == salts[2:])[:20].any()


@pytest.mark.parametrize("keys", [integers, texts])
def test_a_table_of_an_earlier_version_is_read_and_written(
    keys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = keys(False)
    monkeypatch.setattr(slice_files, "new_seed", lambda: 0)
    monkeypatch.setattr(slice_files, "MAGIC_NUMBER", MAGIC_UNSEEDED)
    table = table_of(tmp_path, p)
    assert table.files.header[MAGIC] == MAGIC_UNSEEDED and (region_of(table)[:, USED] >> STATE_BITS == 0).all()
    held = region_of(table)[:, USED] & STATE == HELD
    if p.keys.size:
        assert (region_of(table)[held][:, KEY] != 0).any()
    at = positions(table, p)
    monkeypatch.undo()
    again = SliceTable(tmp_path, 0, 5, p.offsets.size > 0, DroppedVnodes(tmp_path / "drops", VNODES), verify=True)
    assert again.files.header[MAGIC] == MAGIC_UNSEEDED and positions(again, p).tolist() == at.tolist()
    again.put(RowArrays(p.hashes, p.keys, p.offsets, p.data, p.n + 1, p.cells), np.arange(COUNT), absent=False)
    rows, _ = again.scan(np.arange(VNODES), BEGIN, 2 * COUNT, 1 << 40)
    assert rows.shape[0] == COUNT and (rows[:, 3] == 2).all()


@pytest.mark.parametrize("word", [MAGIC, SEED_WORD, SEED_AGAIN])
@pytest.mark.parametrize("keys", [integers, texts])
def test_a_damaged_seed_is_noticed(keys: Any, word: int, tmp_path: Path) -> None:
    p = keys(False)
    table = table_of(tmp_path, p)
    assert table.files.header[MAGIC] == MAGIC_NUMBER
    opened = (tmp_path, 0, 5, p.offsets.size > 0, DroppedVnodes(tmp_path / "drops", VNODES))
    SliceTable(*opened, verify=True)
    flip(table.files.path, 8 * word + 3, 0)
    with pytest.raises((StateUnavailable, Bug)):
        SliceTable(*opened, verify=True)


def test_a_damaged_salt_is_noticed(tmp_path: Path) -> None:
    table = table_of(tmp_path, texts(False))
    place = int(table.places.max())
    row = (place >> PLACE_BITS) + int(np.flatnonzero(region_of(table)[:, USED])[0])
    flip(table.files.path, table.files.bytes_of_rows(row, 1)[1] + 5, 3)
    with pytest.raises(StateUnavailable, match="damaged"):
        SliceTable(tmp_path, 0, 5, True, DroppedVnodes(tmp_path / "drops", VNODES), verify=True)
