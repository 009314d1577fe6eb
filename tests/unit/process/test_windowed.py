"""Aggregators in windows of time and by key, against a loop over records and the oracle."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ferry
from ferry.contract.errors import SpecRefused
from ferry.contract.limits import WATERMARK_END, WATERMARK_NONE
from ferry.process.aggregator import Functions
from ferry.process.harness import ProcessHarness
from ferry.process.windowed import KeyAggregate, WindowAggregate
from tests.unit.process.queries import fed, generated, rows_of, schema_of
from tests.unit.process.test_aggregator import Joined

RECORDS = pa.schema([("k", pa.string()), ("t", pa.string()), ("ts", pa.int64())])
record = st.tuples(st.sampled_from("ab"), st.integers(-20, 60))
epochs = st.lists(st.tuples(st.lists(record, max_size=8), st.integers(0, 25)), max_size=8)


@settings(max_examples=80, deadline=None)
@given(epochs, st.sampled_from([(10, 10), (20, 5), (12, 8), (15, 10)]))
def test_windows_are_those_of_a_loop(given_: Any, window: tuple[int, int]) -> None:
    size, slide = window
    rig = ProcessHarness(WindowAggregate(size, slide, Joined("t")), RECORDS, "k")
    windows: dict[tuple[str, int], list[tuple[int, str]]] = {}
    low, late, number = WATERMARK_NONE, 0, 0
    for records, ahead in [*given_, ([], None)]:
        high = WATERMARK_END if ahead is None else ahead if low == WATERMARK_NONE else low + ahead
        rows = [{"k": k, "t": chr(65 + number + i), "ts": ts} for i, (k, ts) in enumerate(records)]
        number += len(rows)
        for r in sorted(rows, key=lambda r: r["ts"]):
            ends = [
                e for e in range(r["ts"] - 60, r["ts"] + 60) if e % slide == size % slide and e - size <= r["ts"] < e
            ]
            late += all(e <= low for e in ends)
            for end in ends:
                if end > low:
                    windows.setdefault((r["k"], end), []).append((r["ts"], r["t"]))
        found = rig.epoch(rows, watermark=high)
        fired = {at: windows.pop(at) for at in list(windows) if at[1] <= high}
        want = Counter((k, end - size, end, "".join(sorted(t for _, t in of))) for (k, end), of in fired.items())
        made = [(k, b, e, "".join(sorted(t))) for k, b, e, t, _ in rows_of([found]).elements()]
        assert Counter(made) == want and rig.late == late
        low = high
    assert not rig.rows("panes") and not rig.timers()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(record, max_size=8), max_size=5))
def test_aggregates_of_keys_are_those_of_a_loop(given_: Any) -> None:
    rigs = [ProcessHarness(KeyAggregate(Joined("t"), emit), RECORDS, "k") for emit in ("changes", "end")]
    had: dict[str, str] = {}
    for records in given_:
        rows = [{"k": k, "t": str(ts), "ts": 0} for k, ts in records]
        for r in rows:
            had[r["k"]] = had.get(r["k"], "") + r["t"]
        changes, none = (rig.epoch(rows, watermark=0) for rig in rigs)
        assert rows_of([changes]) == Counter((k, t, len(t)) for k, t in had.items() if k in {r["k"] for r in rows})
        assert not none.num_rows
    assert rows_of([rigs[1].end()]) == Counter((k, t, len(t)) for k, t in had.items()) and not rigs[0].end().num_rows
    with pytest.raises(SpecRefused, match="emit='never'"):
        ProcessHarness(KeyAggregate(Joined("t"), "never"), RECORDS, "k")


def test_windows_of_bids_are_the_oracles(tmp_path: Path) -> None:
    case = generated(tmp_path, "nexmark", 3000, rate=200, group=100, delay_prob=0.1, delay_ms=3000)
    bid = schema_of(case, "bid")
    for query, slide, functions in [
        ("nbq5", 10_000, {"num": ferry.count()}),
        ("nb7", 60_000, {"max_price": ferry.max("price"), "num": ferry.count()}),
    ]:
        rig = ProcessHarness(WindowAggregate(60_000, slide, Functions(functions)), bid, "auction")
        columns = ["window_start", "window_end", "auction", *functions]
        assert rows_of(fed(rig, case, ("bid",), 1), columns) == case.expected(query) and not rig.late
