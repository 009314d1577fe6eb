"""Expectations: refused at declaration if they do not fit, evaluated by batch, and never an error of the job."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle

from ferry.api.expectations import Broken, CheckTask, broken_in
from ferry.api.pipeline import Build, Input
from ferry.api.stream import Stream
from ferry.contract.errors import SpecRefused

SCHEMA = pa.schema([("k", pa.string()), ("cents", pa.int64())])


def stream() -> Stream:
    return Stream(Build(lambda function, schema, where: schema), Input("sales", (), SCHEMA, None, 0))


def batch(*cents: int | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": "a", "cents": one} for one in cents], schema=SCHEMA)


def positive(rows: pa.RecordBatch) -> Any:
    return pc.greater_equal(rows.column("cents"), 0)


def as_numpy(rows: pa.RecordBatch) -> Any:
    return rows.column("cents").fill_null(-1).to_numpy() >= 0


@pytest.mark.parametrize(
    "condition", [pc.field("cents") >= 0, positive, as_numpy], ids=["expression", "arrow", "numpy"]
)
def test_rows_that_violate_an_expectation_are_counted_with_an_example(condition: Any) -> None:
    (made,) = stream().expect("cents are positive", condition).input.expectations
    task = cloudpickle.loads(cloudpickle.dumps(CheckTask((made,))))
    batches = [batch(1, 2), batch(3, -4, -5, None), batch()]
    assert list(broken_in([made], batches)) == [Broken(0, 3, "k=a, cents=-4")]
    assert list(task.parts(batches)) == [("k=a, cents=-4", 0, 3)]
    (rows,) = task.frame(iter(batches))
    assert rows.to_pylist() == [{"example": "k=a, cents=-4", "number": 0, "rows": 3}]


def test_a_condition_that_fails_is_violated_and_does_not_fail_the_job() -> None:
    def wrong(rows: pa.RecordBatch) -> Any:
        if rows.num_rows:
            raise ValueError("no such shop")
        return np.empty(0, bool)

    def short(rows: pa.RecordBatch) -> Any:
        return np.ones(min(rows.num_rows, 1), bool)

    expectations = stream().expect("wrong", wrong).expect("short", short).input.expectations
    first, second = broken_in(expectations, [batch(1, 2)])
    assert first.rows == second.rows == 2
    assert "ValueError: no such shop" in first.example and "1 values for 2 rows" in second.example


@pytest.mark.parametrize(
    ("name", "condition", "why"),
    [
        ("", pc.field("cents") >= 0, "the first argument is a name"),
        ("x", "cents >= 0", "str is no condition; give an Arrow expression"),
        ("x", pc.field("euros") >= 0, "fails on an empty batch with columns ['k', 'cents']"),
        ("x", pc.field("cents"), "the condition gives int64, not an array of true and false"),
        ("x", lambda rows: True, "the condition gives bool, not an array of true and false"),
    ],
)
def test_a_condition_that_does_not_fit_is_refused(name: str, condition: Any, why: str) -> None:
    with pytest.raises(SpecRefused) as refused:
        stream().expect(name, condition)
    assert str(refused.value).startswith("expect on source 'sales'") and why in str(refused.value)


def test_nothing_but_a_sink_follows_an_expectation() -> None:
    expected = stream().expect("cents are positive", positive)
    for step in (
        lambda: expected.key_by("k"),
        lambda: expected.map_batches(lambda rows: rows),
        lambda: stream().union(expected),
    ):
        with pytest.raises(SpecRefused, match=r"only \.sink\(\.\.\.\) or another \.expect\(\.\.\.\) may follow it"):
            step()
    with pytest.raises(SpecRefused, match="a union: give each of its streams a sink of its own"):
        stream().union(stream()).expect("cents are positive", positive)
