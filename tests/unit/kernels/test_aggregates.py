"""The aggregate functions, each against its definition, from records to fired rows, however the records are divided.

Of integers and floats; other types have `test_values`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ferry
from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Window
from ferry.contract.epoch_times import EpochTimes
from ferry.kernels import aggregates
from ferry.spark.tasks.fragment import Fragmenter
from ferry.store.aggregate import AggregateState

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("x", pa.int64()), ("y", pa.float64())])
Record = tuple[int, int | None, float | None]
"""Event time, x, y; all have one key."""


def values(records: list[Record], column: int) -> list[Any]:
    return [r[column] for r in records if r[column] is not None]


def at(records: list[Record], column: int, sign: int) -> Any:
    """The value of the greatest sign * time; of equal times the greatest one."""
    of = [(sign * r[0], r[column]) for r in records if r[column] is not None]
    return max(of)[1] if of else None


def sample(function: Callable[[list[Any]], float], found: list[Any]) -> float | None:
    return float(function(found)) if len(found) > 1 else None


DEFINITIONS: dict[str, Callable[[list[Record], int], Any]] = {
    "count": lambda records, c: len(values(records, c)),
    "sum": lambda records, c: sum(values(records, c)) if values(records, c) else None,
    "min": lambda records, c: min(values(records, c), default=None),
    "max": lambda records, c: max(values(records, c), default=None),
    "mean": lambda records, c: statistics.fmean(values(records, c)) if values(records, c) else None,
    "first": lambda records, c: at(records, c, -1),
    "last": lambda records, c: at(records, c, 1),
    "variance": lambda records, c: sample(statistics.variance, values(records, c)),
    "stddev": lambda records, c: sample(statistics.stdev, values(records, c)),
}
"""Of records and a column; `arg_max` takes two, and is in `test_aggregate_values`; what is about right has a file of its own."""

EVERY = tuple(Aggregate(f"{name}_{column}", name, column, None, number)
              for name in DEFINITIONS for column, number in (("x", "int"), ("y", "float")))  # fmt: skip


def run(
    where: Path, tasks: list[list[Record]], shown: tuple[Aggregate, ...] = EVERY, epochs: int = 2
) -> dict[str, Any]:
    """The one fired row of what these tasks read, half of them in a first epoch."""
    descriptor = OperatorDescriptor("op", 0, "aggregate", (("k", "int"),), Window(1000, 500), shown[:9])
    rest = OperatorDescriptor("op", 0, "aggregate", (("k", "int"),), Window(1000, 500), shown[9:])
    out: dict[str, Any] = {}
    for number, one in enumerate((descriptor, rest)):
        if not one.aggregates:
            continue
        state = AggregateState(one, 4, where / str(number))
        for epoch in range(epochs):
            parts = []
            for records in tasks[epoch::epochs]:
                f = Fragmenter(one)
                rows = [dict(zip(SCHEMA.names, (7, *r), strict=True)) for r in records]
                f.add(pa.RecordBatch.from_pylist(rows, schema=SCHEMA), ["k"], "t")
                parts += f.drain()
            if parts:
                state.apply(state.delta([state.combine(parts)], EpochTimes(-(2**62), -(2**62)))[0])
        fired = [row for b in state.fired(EpochTimes(-10_000, 1000), np.arange(4)) for row in b.to_pylist()]
        found = [row for row in fired if row["window_start"] == 0]
        out.update(found[0] if found else {})
    return out


records = st.lists(
    st.tuples(
        st.integers(0, 999),
        st.none() | st.integers(-(2**40), 2**40),
        st.none() | st.floats(-1e6, 1e6, allow_nan=False),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(records, min_size=1, max_size=5))
def test_every_function_is_what_it_is_called(
    tmp_path_factory: pytest.TempPathFactory, tasks: list[list[Record]]
) -> None:
    everything = [record for task in tasks for record in task]
    found = run(tmp_path_factory.mktemp("state"), tasks)
    for name, definition in DEFINITIONS.items():
        for place, column in ((1, "x"), (2, "y")):
            expected, seen = definition(everything, place), found[f"{name}_{column}"]
            if isinstance(expected, float):
                scale = max((abs(v) for v in values(everything, place)), default=0.0)
                around = 1e-9 * scale * (scale if name == "variance" else 1) + 1e-9
                assert seen is not None and math.isclose(seen, expected, rel_tol=1e-9, abs_tol=around), (name, column)
            else:
                assert seen == expected, (name, column)


def test_every_function_is_tried() -> None:
    assert {*DEFINITIONS, "arg_max", "approx_count_distinct", "count_distinct"} == set(aggregates.FUNCTIONS)


def test_a_variance_keeps_the_small_difference_of_great_values(tmp_path: Path) -> None:
    """Sums of squares would lose all of it: 1e9 squared has no room for 1 in a double."""
    tasks: list[list[Record]] = [[(i, 10**9 + i % 3, 1e9 + i % 3) for i in range(n, n + 50)] for n in (0, 50, 100)]
    found = run(tmp_path, tasks)
    expected = statistics.variance([i % 3 for i in range(150)])
    for column in "xy":
        assert found[f"variance_{column}"] == pytest.approx(expected, rel=1e-7)
        assert found[f"stddev_{column}"] == pytest.approx(math.sqrt(expected), rel=1e-7)


def test_one_value_has_no_variance_and_equal_ones_have_none(tmp_path: Path) -> None:
    assert run(tmp_path / "one", [[(5, 3, None)]])["variance_x"] is None
    assert run(tmp_path / "equal", [[(5, 3, 0.1)], [(6, 3, 0.1)], [(7, 3, 0.1)]])["stddev_y"] == 0.0


def test_not_a_number_is_no_value_that_vanishes(tmp_path: Path) -> None:
    found = run(tmp_path, [[(1, 1, float("nan")), (2, 2, 1.0)], [(3, 3, 2.0)]])
    assert math.isnan(found["variance_y"]) and math.isnan(found["stddev_y"]) and math.isnan(found["first_y"])
    assert found["last_y"] == 2.0


def test_the_words_of_a_pipeline() -> None:
    """What a pipeline says is what the table has, with the types that a result has."""
    for word in (ferry.first, ferry.last, ferry.variance, ferry.stddev):
        made = word("x")
        assert made == Aggregate("", word.__name__, "x")
        assert aggregates.reads_values(made), "its column must be a number"
        assert word.__doc__
    assert aggregates.result_type(ferry.stddev("x")) == pa.float64()
    assert aggregates.result_type(ferry.first("x")) == pa.int64()
    assert not aggregates.reads_values(ferry.count("x"))
