"""The aggregate functions of groups, against plain Python; and one of a user's own, in sessions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ferry
from ferry.process.aggregator import Functions
from ferry.process.harness import ProcessHarness
from ferry.process.sessions import SessionAggregate

KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(-(2**40), 2**40)),
    (pa.int8(), st.integers(-128, 127)),
    (pa.float64(), st.floats(allow_nan=True, width=32)),
    (pa.string(), st.text(max_size=2)),
    (pa.bool_(), st.booleans()),
    (pa.date32(), st.dates(date(1960, 1, 1), date(2040, 1, 1))),
]


def order(value: Any) -> Any:
    """NaN is greater than every number."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value.encode() if isinstance(value, str) else value


def expected(values: list[Any], numbers: bool) -> dict[str, Any]:
    some = [v for v in values if v is not None]
    out: dict[str, Any] = {"n": len(values), "c": len(some)}
    out["lo"], out["hi"] = (min(some, key=order), max(some, key=order)) if some else (None, None)
    if numbers:
        out["s"] = sum(some) if some else None
        out["m"] = sum(some) / len(some) if some else None
    return out


@pytest.mark.parametrize(("kind", "values"), KINDS, ids=lambda k: str(k) if isinstance(k, pa.DataType) else "")
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_functions_of_groups(kind: pa.DataType, values: st.SearchStrategy[Any], data: st.DataObject) -> None:
    group = st.lists(st.none() | values, min_size=1, max_size=4)
    groups = data.draw(st.lists(st.lists(group, min_size=1, max_size=3), min_size=1, max_size=4))
    numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    words = {"n": ferry.count(), "c": ferry.count("v"), "lo": ferry.min("v"), "hi": ferry.max("v")}
    functions = Functions(words | ({"s": ferry.sum("v"), "m": ferry.mean("v")} if numbers else {}))
    functions.open(pa.schema([("v", kind)]))

    def begins(sizes: list[int]) -> Any:
        return np.cumsum([0, *sizes[:-1]])

    parts = [part for whole in groups for part in whole]
    rows = pa.record_batch({"v": pa.array([v for part in parts for v in part], kind)})
    states = functions.update(rows, begins([len(part) for part in parts]))
    found = functions.result(functions.merge(states, begins([len(whole) for whole in groups])))
    assert found.schema == functions.output
    for got, whole in zip(found.to_pylist(), groups, strict=True):
        want = expected([v for part in whole for v in part], numbers)
        assert got.keys() == want.keys()
        for name, value in want.items():
            same = value == got[name] or (isinstance(value, float) and value != value and got[name] != got[name])
            assert same or got[name] == pytest.approx(value, rel=1e-6, nan_ok=True), (name, got, want)


@dataclass
class Joined(ferry.Aggregator):
    """Texts of a group, one after the other."""

    column: str
    state = pa.schema([("text", pa.string())])
    output = pa.schema([("text", pa.string()), ("length", pa.int64())])

    def update(self, rows: pa.RecordBatch, begins: Any) -> Any:
        texts = np.array(rows.column(self.column).to_pylist(), object)
        return {"text": np.add.reduceat(texts, begins)}

    def merge(self, states: pa.RecordBatch, begins: Any) -> Any:
        return {"text": np.add.reduceat(np.array(states.column("text").to_pylist(), object), begins)}

    def result(self, states: pa.RecordBatch) -> Any:
        text = states.column("text")
        return {"text": text, "length": [len(t) for t in text.to_pylist()]}


def test_an_aggregator_of_ones_own() -> None:
    schema = pa.schema([("k", pa.int64()), ("t", pa.string()), ("ts", pa.int64())])
    rig = ProcessHarness(SessionAggregate(10, Joined("t")), schema, "k")
    records = [{"k": 1, "t": t, "ts": ts} for t, ts in [("b", 5), ("a", 3), ("z", 40)]]
    assert not rig.epoch(records, watermark=10).num_rows
    found = rig.epoch([{"k": 1, "t": "c", "ts": 12}], watermark=45)
    assert found.to_pylist() == [{"k": 1, "window_start": 3, "window_end": 22, "text": "abc", "length": 3}]
