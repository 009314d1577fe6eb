"""Queries about closed auctions, as processes of users, against the oracle."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ferry
from ferry.process.aggregator import Functions
from ferry.process.harness import ProcessHarness
from ferry.process.row_windows import RowWindows
from ferry.process.running import RunningAggregate
from ferry_workloads.auctions import WinningBids
from tests.unit.process.queries import fed, generated, rows_of, schema_of

INPUTS: list[dict[str, Any]] = [
    {"rate": 20},
    {"rate": 2000, "group": 100, "delay_prob": 0.1, "delay_ms": 3000, "seed": 11},
    {"rate": 50, "tick": 1200, "seed": 4},
]


def averages(found: Counter[Any], columns: int) -> Counter[Any]:
    """Rows with num and total at their end, and the average."""
    return Counter({(*row[:columns], row[-2], row[-1], row[-1] // row[-2]): n for row, n in found.items()})


@pytest.mark.parametrize("options", INPUTS, ids=str)
def test_closed_auctions_are_the_oracles(tmp_path: Path, options: dict[str, Any]) -> None:
    case = generated(tmp_path, "nexmark", 8000, **options)
    auction, bid = schema_of(case, "auction"), schema_of(case, "bid")
    q9 = ProcessHarness(WinningBids(), auction, "id", bid, "auction")
    sold = fed(q9, case, ("auction", "bid"), 1)
    assert rows_of(sold) == case.expected("q9") and not q9.late
    assert not any(q9.rows(name) for name in ("auction", "bid")) and not q9.timers()
    order = ["closed_at", "id"]
    functions = Functions({"num": ferry.count(), "total": ferry.sum("price")})
    columns = {"closed_at": "closed_at", "auction": "id"}
    for query, key, process in [
        ("q4", "category", RunningAggregate(functions, columns | {"category": "category"}, order)),
        ("q6", "seller", RowWindows(10, functions, columns | {"seller": "seller"}, order=order)),
    ]:
        rig = ProcessHarness(process, sold[0].schema, key, time="closed_at")
        updates = [rig.epoch(table) for table in sold]
        assert averages(rows_of(updates), 3) == case.expected(f"{query}_updates")


def test_bids_that_came_too_early_wait_and_late_ones_are_counted() -> None:
    auction = pa.schema([(n, pa.int64()) for n in ("id", "ts", "expires", "reserve", "seller", "category")])
    bid = pa.schema([(n, pa.int64()) for n in ("auction", "price", "ts", "bidder", "seq")])
    rig = ProcessHarness(WinningBids(), auction, "id", bid, "auction")

    def bids(*given: tuple[int, int, int]) -> list[dict[str, int]]:
        return [{"auction": a, "price": p, "ts": ts, "bidder": 1, "seq": 100 * p + ts} for a, p, ts in given]

    rig.epoch([], bids((1, 5, 20), (1, 9, 12), (1, 7, 8), (2, 4, 30)), watermark=10)
    assert {e for _, e in rig.rows("bid")} == {520, 912, 430}, "one of before the watermark cannot be valid"
    rig.epoch([{"id": 1, "ts": 11, "expires": 40, "reserve": 5, "seller": 3, "category": 10}], [], watermark=25)
    assert {e for _, e in rig.rows("bid")} == {912, 430}, "the best bid, and one that waits"
    found = rig.epoch([], bids((1, 9, 15), (1, 99, 40)), watermark=40)
    assert found.column("bid_ts").to_pylist() == [12] and not rig.rows("bid")
    rig.epoch([], bids((1, 9, 39)), watermark=41)
    assert rig.late == 1 and not rig.rows("bid") and not rig.timers()
