"""The paced job of the strategies benchmark: nothing is omitted, and records are as old as the clock says."""

from __future__ import annotations

import time

import numpy as np

from bench.parts.strategies.case import Moved
from bench.shared.paced_keys import PacedKeys
from ferry.contract.latency import LatencyHistogram


def test_all_keys_come_first_and_then_what_is_due() -> None:
    source = PacedKeys(600_000, rate=1000.0)
    position = source.start()
    while position["read"] < 600_000:
        assert not position["since"]
        position = source.latest(position, 10)
    since = position["since"]
    assert abs(since / 1e6 - time.time()) < 5
    late = {**position, "since": since - 3_000_000}
    assert 3000 <= source.latest(late, 100_000)["read"] - 600_000 < 8000
    assert source.latest(late, 10) == {"read": 600_010, "since": late["since"]}, "what is left is a backlog"


def test_a_record_is_created_when_it_is_due() -> None:
    source = PacedKeys(100, rate=1000.0)
    (split,) = source.plan({"read": 90, "since": 0}, {"read": 110, "since": 5_000_000}, 1)
    (batch,) = source.read(split, ["created", "number", "key"])
    assert batch.schema.names == ["created", "number", "key"]
    assert batch.column("number").to_pylist() == [*range(90, 110)]
    created = batch.column("created").to_numpy()
    assert np.all(np.abs(created[:10] / 1000 - time.time()) < 5), "loaded"
    assert created[10:].tolist() == [5000 + n for n in range(10)]
    assert source.schema().names == ["ts", "key", "created", "number"]


def test_a_move_is_looked_at_with_what_waited_because_of_it() -> None:
    lines = [(t, LatencyHistogram({t: 1})) for t in range(1, 9)]
    moved = Moved("hash_count", "1GB", 16, "fluid", True, 3.5, [(t - 4.0, one) for t, one in lines], [], 4.0)
    assert moved.name == "fluid, warm"
    assert (moved.before.records, moved.during.records) == (3, 5)
