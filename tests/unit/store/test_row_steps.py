"""No step of a join's state takes longer because there is more state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ferry.contract import limits
from ferry.store import joining
from ferry.store.rows import RowState
from tests.unit.store.test_rows import fragments, shape_of, some

ALL = np.arange(8)


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
    state.put(state.combine(fragments(shape_of(), [(0, 5, k, k) for k in range(500)])), 1, "a")
    monkeypatch.setattr(joining, "READ_BYTES_MAX", state._segments[0].bytes // 20)
    read = reads(monkeypatch)
    pieces = 0
    for batch in state.fired(0, 10, ALL):
        pieces += 1
        assert batch.num_rows == 0 and len(read) == pieces
    assert pieces >= 20 and sum(read) == 500


@pytest.mark.parametrize("vnodes", [1, 8, 256])
def test_what_fires_is_counted_by_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vnodes: int) -> None:
    state = RowState(shape_of(), vnodes, tmp_path)
    state.put(some(0, 40_000), 1, "a")
    every = np.arange(vnodes)
    assert state.fired_count(0, 10, every) == 20_000, "what is little is counted"
    monkeypatch.setattr(joining, "COUNT_BYTES_MAX", state._segments[0].bytes // 10)
    read = reads(monkeypatch)
    assert 14_000 < state.fired_count(0, 10, every) < 26_000
    assert 0 < sum(read) < 40_000 / 8


def test_a_count_by_a_sample_is_never_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has found more rows than it may hold divides by it."""
    state = RowState(shape_of(), 8, tmp_path)
    state.put(state.combine(fragments(shape_of(), [(0, 5, k, k) for k in range(500)])), 1, "a")
    assert state.fired_count(0, 10, ALL) == 0
    monkeypatch.setattr(joining, "COUNT_BYTES_MAX", 500)
    assert state.fired_count(0, 10, ALL) == 1
    assert state.fired_count(10, limits.WATERMARK_END, ALL) == 0
