"""Prints as JSON how often kernels visit the rows of a table: `python -m tests.unit.kernels.touches`.

The kernels run as plain Python over arrays that note the row of each access. An access to a row that is not among the last
four is a visit: the row has to be loaded into the cache. Places of an index count like rows.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ["NUMBA_DISABLE_JIT"] = "1"

import numpy as np

from ferry.kernels import ahead

ahead.prefetch = lambda array, position: None  # hints are no visits

from ferry.kernels import folding, hashing, parts, table  # noqa: E402
from ferry.kernels.grouping import CELLS, COUNT, FLAGS, HASH, KEY, NO_BYTES, NO_INTS  # noqa: E402

KEYS, BITS, SEED = 600, 4, 0x9E3779B97F4A7C15 >> 1 | 1
CODES = np.array([0, FLAGS])
RECENT = 4


class Noted(np.ndarray):
    """An array that notes its visited rows in `visits`, also for its views."""

    visits: list[int] | None

    def __array_finalize__(self, other: Any) -> None:
        self.visits = getattr(other, "visits", None)

    def _note(self, key: Any) -> None:
        row = key[0] if isinstance(key, tuple) else key
        if self.visits is not None and isinstance(row, int | np.integer) and int(row) not in self.visits[-RECENT:]:
            self.visits.append(int(row))

    def __getitem__(self, key: Any) -> Any:
        self._note(key)
        return np.asarray(self)[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._note(key)
        np.asarray(self)[key] = value


def noted(shape: Any) -> Any:
    array = np.zeros(shape, np.int64).view(Noted)
    array.visits = []
    return array


def visits(array: Any, act: Callable[[], Any], rows: int) -> float:
    """Visits while `act` runs, for each of these rows."""
    array.visits.clear()
    act()
    return round(len(array.visits) / rows, 2)


def measure() -> dict[str, float]:
    """Visits a row, by what is done."""
    draw = np.random.default_rng(7)
    keys = draw.permutation(1 << 20)[:KEYS].astype(np.int64)
    hashes, zeros, ones = hashing.hash_ints(keys), np.zeros(KEYS, np.int64), np.ones(KEYS, np.int64)
    cells = np.ones((KEYS, 2), np.int64)
    out = dict[str, float]()

    index, rows = noted(2048), noted((KEYS, CELLS + 2))
    heap, none = NO_BYTES, np.empty(0, np.int64)
    groups = 0

    def fold() -> None:
        nonlocal groups
        batch = zeros, hashes, keys, none, NO_BYTES, none, none, cells
        _, groups, _, _ = folding.fold_for(CODES)((index, rows, heap, none), batch, CODES, False, SEED, 0, groups, 0)

    out["fold a new group, rows"] = visits(rows, fold, KEYS)
    out["fold a record, rows"] = visits(rows, fold, KEYS)
    out["fold a record, index"] = visits(index, fold, KEYS)

    bounds = np.zeros((1 << BITS) + 1, np.int64)
    for _ in range(2):
        parts.count_parts(hashes, BITS, bounds)
    np.cumsum(bounds, out=bounds)
    twice, at = noted((2 * KEYS, CELLS + 2)), bounds[:-1].copy()

    def scatter() -> None:
        for _ in range(2):
            parts.scatter(
                twice, NO_INTS, at, BITS, False, heap, 0, zeros, hashes, keys, none, NO_BYTES, none, ones, cells
            )

    out["merge: scatter"] = visits(twice, scatter, 2 * KEYS)
    same = list[Any]()
    out["merge: search for equal groups"] = visits(
        twice, lambda: same.extend(parts.same_groups(twice, heap, NO_INTS, False, bounds, SEED)), 2 * KEYS
    )
    later, first = same
    assert later.size == KEYS
    out["merge: a duplicate"] = visits(twice, lambda: folding.merge_found(twice, first, later, twice, CODES), KEYS)

    slots, per_part = noted((1 << 14, table.CELLS + 2)), 1 << BITS
    places, counts, key_bytes, sums = (np.zeros(per_part, np.int64) for _ in range(4))
    arrays, ends = (slots, heap, places, counts, key_bytes, sums), (np.zeros(1, np.int64), np.zeros(1, np.int64))
    order = np.argsort(hashes >> np.uint64(64 - BITS), kind="stable")
    expected = parts.rows_of_parts(order, hashes, per_part, BITS)
    columns = hashes, keys, none, NO_BYTES, ones, cells

    def put() -> None:
        done, why = table.put(arrays, ends, 1 << 14, expected, BITS, False, order, columns, none, SEED, False, 0)
        assert (done, why) == (KEYS, table.DONE)

    out["put a new row"] = visits(slots, put, KEYS)
    out["put a stored row"] = visits(slots, put, KEYS)
    asked = np.zeros((KEYS, COUNT), np.int64)
    asked[:, HASH], asked[:, KEY] = hashes.view(np.int64), keys
    found = list[Any]()
    out["find a stored row"] = visits(
        slots,
        lambda: found.append(table.find(slots, heap, places, BITS, False, order, asked, none, NO_BYTES, none, SEED)),
        KEYS,
    )
    hints = np.empty(KEYS, np.int64)
    hints[order] = found[0]
    put_hinted = lambda: table.put_hinted(slots, heap, places, sums, BITS, False, order, columns, hints)  # noqa: E731
    out["put a row where it was found"] = visits(slots, put_hinted, KEYS)
    return out


if __name__ == "__main__":
    with TemporaryDirectory() as folder, np.errstate(over="ignore"):
        os.chdir(Path(folder))
        json.dump(measure(), sys.stdout)
