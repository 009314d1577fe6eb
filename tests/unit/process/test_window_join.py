"""Joins in windows of time, with what has no partner, against a loop over windows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.contract.limits import WATERMARK_END, WATERMARK_NONE
from ferry.process.harness import ProcessHarness
from ferry.process.joins import HOW
from ferry.process.window_join import WindowJoin
from tests.unit.process.queries import fed, generated, rows_of, schema_of
from tests.unit.process.test_sessions import joined

RECORDS = pa.schema([("k", pa.string()), ("n", pa.int64()), ("ts", pa.int64())])
record = st.tuples(st.sampled_from(["a", "b", None]), st.integers(-20, 60), st.integers(0, 1))
epochs = st.lists(st.tuples(st.lists(record, max_size=8), st.integers(0, 25)), max_size=8)


@settings(max_examples=120, deadline=None)
@given(epochs, st.sampled_from([(10, 10), (20, 5), (15, 10)]), st.sampled_from(HOW))
def test_joins_in_windows_are_those_of_a_loop(given_: Any, window: tuple[int, int], how: str) -> None:
    size, slide = window
    process = WindowJoin(size, slide, {"left_key": "k", "left": "n"}, {"right_key": "k", "right": "n"}, how)
    rig = ProcessHarness(process, RECORDS, "k", RECORDS, "k")
    windows: dict[tuple[str | None, int], tuple[list[int], list[int]]] = {}
    low, late, number = WATERMARK_NONE, 0, 0
    for records, ahead in [*given_, ([], None)]:
        high = WATERMARK_END if ahead is None else ahead if low == WATERMARK_NONE else low + ahead
        sides: list[list[dict[str, Any]]] = [[], []]
        for k, ts, side in records:
            sides[side].append({"k": k, "n": number, "ts": ts})
            ends = [e for e in range(ts - 60, ts + 60) if e % slide == size % slide and e - size <= ts < e]
            late += all(e <= low for e in ends)
            for end in ends:
                if end > low:
                    windows.setdefault((k, end), ([], []))[side].append(number)
            number += 1
        want = Counter[Any]()
        for (k, end), halves in [(at, windows.pop(at)) for at in list(windows) if at[1] <= high]:
            for a, b in joined(*halves, how, apart=k is None):
                want[end - size, end, None if a is None else k, a, None if b is None else k, b] += 1
        assert rows_of([rig.epoch(*sides, watermark=high)]) == want
        assert rig.late == late
        low = high
    assert not rig.rows("left") and not rig.rows("right") and not rig.timers()


def test_an_inner_join_is_the_oracles(tmp_path: Path) -> None:
    case = generated(tmp_path, "nexmark", 5000, rate=20, group=64)
    right = {"auction": "id", "reserve": "reserve", "auction_seq": "seq"}
    process = WindowJoin(60_000, 60_000, {"person": "id", "person_seq": "seq"}, right)
    rig = ProcessHarness(process, schema_of(case, "person"), "id", schema_of(case, "auction"), "seller")
    columns = ["window_start", "window_end", "person", "auction", "reserve", "person_seq", "auction_seq"]
    found = rows_of(fed(rig, case, ("person", "auction"), 1), columns)
    assert found == case.expected("nbq8", window=60_000) and not rig.late
