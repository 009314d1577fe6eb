"""Merging by parts equals one table of all rows, for every merge code; loops made for their codes equal the general one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Window
from ferry.kernels import folding, groups
from ferry.kernels.aggregates import merge_codes
from ferry.kernels.columns import PartialArrays, from_groups
from ferry.kernels.folding import PLAIN_MAX, fold_for
from ferry.kernels.grouping import CELLS, COUNT, FLAGS, HASH, KEY, NO_BYTES, NO_INTS, OVERFLOWED, SLICE, heap_keys
from ferry.kernels.groups import Groups, merged

BITS = 10
CODES = [
    [],
    [0, FLAGS],
    [1, 1, 0, FLAGS],
    [2, 4],
    [3, 5, FLAGS],
    [6, -3, FLAGS],
    [8, -1, -1],
    [10, -1, FLAGS],
    [11, -1, FLAGS],
]


def partials(rng: np.random.Generator, rows: int, keys: int, codes: list[int], by_bytes: bool) -> PartialArrays:
    """Distinct rows; few different high bits, so that parts are large, small and empty."""
    number = rng.choice(keys * 3, size=min(rows, keys * 3), replace=False)
    key, slices = number % keys, number // keys * 10
    hashes = (key.astype(np.uint64) % 7) << np.uint64(61) | key.astype(np.uint64)
    cells = rng.integers(-5, 5, (number.size, len(codes)))
    floats = [c for c, code in enumerate(codes) if code in (1, 3, 5, -4)]
    cells[:, floats] = rng.integers(-5, 5, (number.size, len(floats))).astype(np.float64).view(np.int64)
    if 8 in codes:
        cells[:, 0], cells[:, 1:] = 1, np.ones(2).view(np.int64)
    if codes[-1:] == [FLAGS]:
        cells[:, -1] = 1
    offsets, data = NO_INTS, NO_BYTES
    if by_bytes:
        texts = [b"k%d" % k * (1 + k % 3) for k in key.tolist()]
        offsets = np.cumsum([0, *map(len, texts)]).astype(np.int64)
        data = np.frombuffer(b"".join(texts), np.uint8).copy()
    n = rng.integers(1, 9, number.size)
    return PartialArrays(slices, hashes, NO_INTS if by_bytes else key, offsets, data, n, np.ascontiguousarray(cells))


def as_set(rows: np.ndarray, heap: np.ndarray, by_bytes: bool) -> list[tuple[object, ...]]:
    """Groups with their keys."""
    keys: list[object] = rows[:, KEY].tolist()
    if by_bytes:
        offsets, data = heap_keys(heap, np.ascontiguousarray(rows[:, KEY]))
        keys = [bytes(data[a:b]) for a, b in pairwise(offsets.tolist())]
    return sorted(
        zip(rows[:, SLICE].tolist(), keys, rows[:, COUNT].tolist(), map(tuple, rows[:, CELLS:].tolist()), strict=True)
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(CODES), st.booleans(), st.integers(1, 4))
def test_parts_and_one_table_have_the_same_groups(seed: int, codes: list[int], by_bytes: bool, batches: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = [partials(rng, int(rng.integers(0, 300)), 100, codes, by_bytes) for _ in range(batches)]
    whole = Groups(np.array(codes, np.int64), by_bytes)
    for p in inputs:
        whole.add(p.slices, p.hashes, p.keys, p.offsets, p.data, p.n, p.cells)
    rows, heap = merged(inputs, by_bytes, BITS, np.array(codes, np.int64))
    assert as_set(rows, heap, by_bytes) == as_set(whole.rows(), whole.heap, by_bytes)
    parts = rows[:, HASH].view(np.uint64) >> np.uint64(64 - BITS)
    assert (np.diff(parts.astype(np.int64)) >= 0).all()


@pytest.mark.parametrize("codes", [codes for codes in CODES if folding.PLAIN.issuperset(codes)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_loop_for_its_codes_does_what_the_general_one_does(codes: list[int], order: str, monkeypatch) -> None:
    rng = np.random.default_rng(len(codes))
    inputs = [partials(rng, 300, 60, codes, False) for _ in range(3)]

    def groups_of() -> list[tuple[object, ...]]:
        table = Groups(np.array(codes, np.int64), False)
        for p in inputs:
            cells = np.array(p.cells, order=order)
            table.add(p.slices, p.hashes, p.keys, p.offsets, p.data, NO_INTS, cells)
        return as_set(table.rows(), table.heap, False)

    own = groups_of()
    general = fold_for(np.array([9], np.int64))
    monkeypatch.setattr(groups, "fold_for", lambda codes: general)
    assert own == groups_of()


def test_a_sum_that_overflows_is_flagged_in_a_loop_for_its_codes() -> None:
    table = Groups(np.array([2, 0, FLAGS], np.int64), False)
    cells = np.array([[1, 2**63 - 1, 3]] * 2)
    ones = np.zeros(2, np.int64)
    table.add(ones, ones.astype(np.uint64), ones, NO_INTS, NO_BYTES, NO_INTS, cells)
    assert table.rows()[0, CELLS:].tolist() == [1, -2, 3 | 1 << OVERFLOWED + 1]


def test_loops_are_made_for_few_codes_of_one_word() -> None:
    general = fold_for(np.array([6, -3], np.int64))
    assert fold_for(np.array([0] * (PLAIN_MAX + 1), np.int64)) is general
    assert fold_for(np.array([0, FLAGS], np.int64)) is not general


@pytest.mark.parametrize("groups_", [1, 2])
def test_a_batch_of_groups_stays_when_their_table_is_used_again(groups_: int) -> None:
    descriptor = OperatorDescriptor(
        "op", 0, "aggregate", (("k", "int"),), Window(10, 10), (Aggregate("n", "sum", "v"),)
    )
    table, numbers = Groups(merge_codes(descriptor), False), np.arange(groups_)
    batches = []
    for value in (1, 2):
        cells = np.full((groups_, 2), value)
        table.add(numbers, numbers.astype(np.uint64), numbers, NO_INTS, NO_BYTES, NO_INTS, cells)
        batches.append(from_groups(descriptor, table.rows(), table.heap))
        table.clear()
    assert [batch.column(4).to_pylist() for batch in batches] == [[1] * groups_, [2] * groups_]
