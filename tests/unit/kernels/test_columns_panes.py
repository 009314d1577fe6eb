"""Windows of slices against brute force, grouping by slice, ranges of virtual nodes."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.contract import limits
from ferry.contract.descriptors import Window
from ferry.contract.epoch_times import EpochTimes
from ferry.kernels import columns, grouping, panes

WINDOWS = st.sampled_from([Window(10, 10), Window(30, 10), Window(60, 1), Window(25, 10), Window(4, 10), Window(7, 3)])


@settings(max_examples=200, deadline=None)
@given(WINDOWS, st.sets(st.integers(-100, 100), max_size=8), st.integers(-200, 200), st.integers(0, 200), st.booleans())
def test_windows_between_is_brute_force(window: Window, panes_: set, low: int, length: int, far: bool) -> None:
    slices = [p * window.pane_ms for p in panes_] + ([10**12 // window.pane_ms * window.pane_ms] if far else [])
    low, high = (-(2**62), 2**62) if far else (low, low + length)
    slices.sort()
    windows = panes.windows_between(window, np.array(slices, np.int64), low, high)
    found = {start: slices[a:b] for start, a, b in zip(*(array.tolist() for array in windows), strict=True)}
    expected: dict = {}
    for s in slices:
        for start in range(s - window.size_ms, s + 1):
            inside = start % window.slide_ms == 0 and start <= s < start + window.size_ms
            if inside and low < start + window.size_ms <= high:
                expected.setdefault(start, []).append(s)
    assert found == {k: sorted(v) for k, v in expected.items()}
    assert list(found) == sorted(found)


@given(WINDOWS, st.lists(st.integers(-1000, 1000), min_size=1, max_size=30))
@settings(max_examples=50, deadline=None)
def test_slices_and_last_ends(window: Window, times: list) -> None:
    slices, greatest = panes.slices_of(np.array(times, np.int64), window.pane_ms)
    assert slices.tolist() == [t // window.pane_ms * window.pane_ms for t in times]
    assert greatest == max(times)
    assert panes.last_ends(window, slices).tolist() == [window.last_end(s) for s in slices.tolist()]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-50, 50), max_size=40), st.booleans())
def test_slice_groups_are_stable(numbers: list, far: bool) -> None:
    slices = np.array([n * 10 for n in numbers] + ([10**15] if far else []), np.int64)
    distinct, bounds, order = columns.slice_groups(slices, 10)
    assert distinct.tolist() == sorted(set(slices.tolist()))
    for i, s in enumerate(distinct.tolist()):
        assert order[bounds[i] : bounds[i + 1]].tolist() == [r for r, x in enumerate(slices.tolist()) if x == s]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 2**64 - 1), max_size=40),
    st.sampled_from([1, 2, 8, 1024]),
    st.lists(st.integers(0, 1023), max_size=9),
)
def test_split_and_take(hashes: list, virtual_nodes: int, chosen: list) -> None:
    hashes.sort()
    batch = pa.record_batch({"hash": pa.array(hashes, pa.uint64())})
    offsets = columns.split_by_vnode(batch, virtual_nodes)
    vnode = [h * virtual_nodes >> 64 for h in hashes]
    assert np.diff(offsets).tolist() == [vnode.count(v) for v in range(virtual_nodes)]
    vnodes = [c % virtual_nodes for c in chosen]
    owners = [vnodes[:2], [], vnodes[2:]]
    shares = columns.shares_of(batch, offsets, owners)
    for number, owner in enumerate(owners):
        alone = columns.take_vnodes(batch, offsets, np.array(owner, np.int64))
        assert shares.of(number).equals(alone)
        assert batch.take(pa.array(shares.numbers[slice(*shares.bounds[number : number + 2])])).equals(alone)
    taken = columns.take_vnodes(batch, offsets, np.array(vnodes, np.int64)).column("hash").to_pylist()
    assert taken == [h for v in vnodes for h in hashes if h * virtual_nodes >> 64 == v]


@pytest.mark.parametrize("virtual_nodes", [1, 2, 64])
def test_records_are_counted_by_virtual_node(virtual_nodes: int) -> None:
    draw = np.random.default_rng(5)
    hashes, many = np.sort(draw.integers(0, 2**64, 1000, np.uint64)), draw.integers(1, 2**40, 1000)
    vnode = [int(h) * virtual_nodes >> 64 for h in hashes]
    rows = pa.record_batch({"hash": pa.array(hashes), "l_n": pa.array(many)})
    assert columns.records_by_vnode([rows], virtual_nodes).tolist() == [vnode.count(v) for v in range(virtual_nodes)]
    partials = pa.record_batch({"hash": pa.array(hashes), "n": pa.array(many)})
    counted = [sum(int(n) for v, n in zip(vnode, many) if v == one) for one in range(virtual_nodes)]
    assert columns.records_by_vnode([partials, partials], virtual_nodes).tolist() == [2 * n for n in counted]
    assert columns.records_by_vnode([partials.slice(0, 0)], virtual_nodes).tolist() == [0] * virtual_nodes


def test_order_by_hash_large_equals_small() -> None:
    hashes = np.random.default_rng(3).integers(0, 2**64, 1 << 15, np.uint64)
    hashes[::7] = hashes[0]
    assert np.array_equal(grouping.order_by_hash(hashes), np.argsort(hashes, kind="stable"))


@pytest.mark.parametrize(
    "low, high, ends",
    [
        (limits.WATERMARK_NONE, limits.WATERMARK_NONE, 0),
        (limits.WATERMARK_NONE, 59_999, 12),
        (120_000, 120_000, 0),
        (120_000, 124_999, 0),
        (120_000, 125_000, 1),
        (119_999, 125_000, 2),
        (120_000, 420_000, 12),
        (120_000, limits.WATERMARK_END, 12),
    ],
)
def test_a_new_row_fires_in_as_many_windows_as_end(low: int, high: int, ends: int) -> None:
    """What fires decides whether the driver may fetch it: a minute every five seconds is twelve rows of one."""
    assert panes.ends_of_a_row(Window(60_000, 5_000), EpochTimes(low, high)) == ends
