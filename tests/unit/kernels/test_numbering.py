"""Numbers of keys, rows in their order, and sessions, against plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.kernels.grouping import NO_BYTES, NO_INTS
from ferry.kernels.numbering import numbered, ordered
from ferry.kernels.places import texts
from ferry.kernels.sessions import joined

INTS = st.integers(0, 5)


def expected(keys: list[Any]) -> tuple[list[int], list[int]]:
    firsts = {key: keys.index(key) for key in dict.fromkeys(keys)}
    return [[*firsts].index(key) for key in keys], [*firsts.values()]


@settings(deadline=None)
@given(st.lists(st.tuples(INTS, INTS)))
def test_keys_of_one_hash_have_numbers_of_their_own(keys: list[tuple[int, int]]) -> None:
    hashes = np.array([h for h, _ in keys], np.uint64)
    found = numbered(hashes, np.array([k for _, k in keys], np.int64), NO_INTS, NO_BYTES)
    assert tuple(map(np.ndarray.tolist, found)) == expected(keys)
    found = numbered(hashes, NO_INTS, *texts([bytes([k % 3]) * (1 + k % 2) for _, k in keys]))
    assert tuple(map(np.ndarray.tolist, found)) == expected(keys)


def test_of_many_keys() -> None:
    keys = np.random.default_rng(1).integers(0, 5_000, 20_000)
    found, firsts = numbered(keys.astype(np.uint64) << np.uint64(4), keys, NO_INTS, NO_BYTES)
    assert (keys[firsts][found] == keys).all() and firsts.size == np.unique(keys).size
    assert (np.diff(firsts) > 0).all()


@settings(deadline=None)
@given(st.lists(st.tuples(INTS, INTS)))
def test_rows_by_number_then_value_then_as_they_came(rows: list[tuple[int, int]]) -> None:
    numbers, values = np.array(rows, np.int64).reshape(-1, 2).T.copy()
    assert ordered(numbers, values).tolist() == sorted(range(len(rows)), key=lambda i: rows[i])


@settings(deadline=None)
@given(st.lists(st.tuples(INTS, st.integers(0, 40), INTS)), st.integers(0, 4), st.integers(-1, 41))
def test_spans_are_joined_that_are_a_gap_apart(spans: list[tuple[int, int, int]], gap: int, alone: int) -> None:
    spans = sorted(spans)
    sessions: list[list[tuple[int, int, int]]] = []
    for key, start, length in spans:
        before = sessions[-1] if sessions else [(-1, 0, 0)]
        reach = max(begin + more for _, begin, more in before)
        if before[0][0] == key and start - reach <= gap and before[0][1] > alone:
            before.append((key, start, length))
        else:
            sessions.append([(key, start, length)])
    key, start, length = np.array(spans, np.int64).reshape(-1, 3).T.copy()
    of_each, begins, lasts = joined(key, start, start + length, gap, alone)
    assert of_each.tolist() == [i for i, session in enumerate(sessions) for _ in session]
    assert [spans[i] for i in begins] == [session[0] for session in sessions]
    assert lasts.tolist() == [max(begin + more for _, begin, more in session) for session in sessions]
