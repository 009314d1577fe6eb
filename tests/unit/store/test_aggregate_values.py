"""Aggregates of nulls and of great integers, from records to fired rows: as SQL says, exact, or a named error."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.contract.descriptors import GLOBAL, Aggregate, OperatorDescriptor, Window
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import DataRefused
from ferry.kernels import aggregates, columns, grouping
from ferry.kernels.contributions import contribute
from ferry.kernels.folding import merge_found
from ferry.spark.tasks.fragment import Fragmenter
from ferry.store.aggregate import AggregateState

EVERY = (
    Aggregate("n", "count"),
    Aggregate("n_x", "count", "x"),
    Aggregate("sum_x", "sum", "x"),
    Aggregate("sum_y", "sum", "y", None, "float"),
    Aggregate("min_x", "min", "x"),
    Aggregate("min_y", "min", "y", None, "float"),
    Aggregate("max_x", "max", "x"),
    Aggregate("max_y", "max", "y", None, "float"),
    Aggregate("mean_x", "mean", "x"),
    Aggregate("mean_y", "mean", "y", None, "float"),
    Aggregate("x_at_y", "arg_max", "x", "y", "int", "float"),
    Aggregate("y_at_x", "arg_max", "y", "x", "float", "int"),
)
LEAST, GREATEST = -(2**63), 2**63 - 1
SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("x", pa.int64()), ("y", pa.float64())])
Record = tuple[int, int, int | None, float | None]


def run(where: Path, aggregates: tuple[Aggregate, ...], window: Window, epochs: list[list[list[Record]]]) -> list[Any]:
    """Fired rows of these epochs, each a list of what its tasks read."""
    descriptor = OperatorDescriptor("op", 0, "aggregate", (("k", "int"),), window, aggregates)
    state = AggregateState(descriptor, 4, where)
    for tasks in epochs:
        parts = []
        for records in tasks:
            f = Fragmenter(descriptor, groups_max=3)
            rows = [dict(zip(SCHEMA.names, r, strict=True)) for r in records]
            f.add(pa.RecordBatch.from_pylist(rows, schema=SCHEMA), ["k"], "t")
            parts += f.drain()
        state.apply(state.delta([state.combine(parts)], EpochTimes(-(2**62), -(2**62)))[0])
    return [row for b in state.fired(EpochTimes(-1000, 1000), np.arange(4)) for row in b.to_pylist()]


def expected(records: list[Record]) -> tuple[Any, ...]:
    xs, ys = [r[2] for r in records if r[2] is not None], [r[3] for r in records if r[3] is not None]
    both = [(r[2], r[3]) for r in records if r[2] is not None and r[3] is not None]
    ends = [some(v) if v else None for v in (xs, ys) for some in (min, max)]
    return (
        len(records), len(xs), sum(xs) if xs else None, math.fsum(ys) if ys else None, ends[0], ends[2], ends[1], ends[3],
        sum(xs) / len(xs) if xs else None, math.fsum(ys) / len(ys) if ys else None,
        max(both, key=lambda b: (b[1], b[0]))[0] if both else None,
        max(both, key=lambda b: (b[0], b[1]))[1] if both else None,
    )  # fmt: skip


RECORD = st.tuples(
    st.integers(0, 2),
    st.integers(0, 29),
    st.one_of(st.none(), st.integers(-3, 3)),
    st.one_of(st.none(), st.integers(-6, 6).map(lambda i: i / 2)),
)


@settings(max_examples=30, deadline=None)
@given(epochs=st.lists(st.lists(st.lists(RECORD, max_size=6), min_size=1, max_size=2), min_size=1, max_size=3))
def test_nulls_are_left_out_column_by_column(
    tmp_path_factory: pytest.TempPathFactory, epochs: list[list[list[Record]]]
) -> None:
    fired = run(tmp_path_factory.mktemp("s"), EVERY, Window(20, 10), epochs)
    records = [r for tasks in epochs for task in tasks for r in task]
    windows: dict[tuple[int, int], list[Record]] = {}
    for r in records:
        for start in (r[1] // 10 * 10 - 10, r[1] // 10 * 10):
            windows.setdefault((r[0], start), []).append(r)
    assert {(row["k"], row["window_start"]): tuple(row.values())[3:] for row in fired} == {
        name: expected(some) for name, some in windows.items()
    }


@pytest.mark.parametrize("value", [LEAST, GREATEST])
def test_the_extremes_are_values_like_others(tmp_path: Path, value: int) -> None:
    for index, infinite in enumerate((math.inf, -math.inf)):
        (row,) = run(tmp_path / str(index), EVERY, Window(10, 10), [[[(1, 1, value, infinite), (1, 2, None, None)]]])
        assert list(row.values())[3:] == [2, 1, value, infinite] + [value, infinite] * 2 + [
            float(value),
            infinite,
            value,
            infinite,
        ]


SPREAD = {
    "in one task": [[[(1, 1, 2**62, None), (1, 2, 2**62, None)]]],
    "among helpers": [[[(1, 1, 2**62, None)], [(1, 2, 2**62, None)]]],
    "among epochs": [[[(1, 1, 2**62, None)]], [[(1, 2, 2**62, None)]]],
    "among panes": [[[(1, 1, 2**62, None), (1, 11, 2**62, None)]]],
    "below": [[[(1, 1, LEAST, None), (1, 2, -1, None)]]],
    "long ago": [[[(1, 1, 2**62, None), (1, 2, 2**62, None)]], [[(1, 3, 5, None)]]],
}


@pytest.mark.parametrize("epochs", SPREAD.values(), ids=SPREAD)
def test_a_sum_beyond_64_bits_is_an_error_that_names_it(tmp_path: Path, epochs: Any) -> None:
    some = (Aggregate("low", "min", "x"), Aggregate("much", "sum", "x"))
    said = r"too large: operator op, much=sum\('x'\): the sum of a key in the window from .*: key 1; make the column a double"
    with pytest.raises(DataRefused, match=said):
        run(tmp_path, some, Window(20, 10), epochs)


@pytest.mark.parametrize("epochs", SPREAD.values(), ids=SPREAD)
def test_a_mean_has_no_sum_that_is_too_great(tmp_path: Path, epochs: Any) -> None:
    fired = run(tmp_path, (Aggregate("low", "min", "x"), Aggregate("m", "mean", "x")), Window(20, 10), epochs)
    for row in fired:
        start = row["window_start"]
        xs = [x for tasks in epochs for records in tasks for _, t, x, _ in records if start <= t < start + 20]
        assert row["m"] == float(Fraction(sum(xs), len(xs)))


WIDE = st.one_of(
    st.sampled_from([LEAST, GREATEST, 0, -1, 2**62, 1_710_037_800_000_000_000]), st.integers(LEAST, GREATEST)
)


@pytest.mark.parametrize("carry_bits", [40, 61])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_mean_of_integers_is_that_of_the_exact_sum(carry_bits: int, data: st.DataObject) -> None:
    """In whatever order states are merged; where carries are too many (61), it is that of a sum of doubles."""
    some = data.draw(st.lists(st.one_of(WIDE, st.none()), min_size=1, max_size=40))
    descriptor = OperatorDescriptor("op", 0, "aggregate", (("k", "int"),), GLOBAL, (Aggregate("m", "mean", "x"),))
    (place,), codes = aggregates.places(descriptor), aggregates.merge_codes(descriptor)
    rows = np.zeros((len(some), grouping.CELLS + codes.size), np.int64)
    batch = pa.RecordBatch.from_pydict({"x": pa.array(some, pa.int64())})
    contribute(descriptor, batch, None, rows[:, grouping.CELLS :])
    if carry_bits == 61:  # as if more had come before than 22 bits of carries can tell
        rows[0, grouping.CELLS + 1] += np.int64((1 << 22) - 2) << 40
    known = [x for x in some if x is not None]
    before = (((1 << 22) - 2) << 64) if carry_bits == 61 else 0
    while len(rows) > 1:
        i = data.draw(st.integers(0, len(rows) - 2))
        one = np.array([0])
        into = np.ascontiguousarray(rows[i : i + 1])
        merge_found(into, one, one, rows[i + 1 :], codes)
        rows = np.concatenate([rows[:i], into, rows[i + 2 :]])
    cells = columns.cell_arrays(descriptor, rows[:, grouping.CELLS :])
    (found,) = place.results(cells[place.state], pa.array([len(some)]), rows[:, -1]).to_pylist()
    if known:
        assert math.isclose(found, Fraction(before + sum(known), len(known)), rel_tol=1e-15, abs_tol=1e-300)
    else:
        assert found is None


def test_a_sum_just_within_64_bits_is_exact(tmp_path: Path) -> None:
    epochs: Any = [[[(1, 1, GREATEST - 5, None)], [(1, 2, 5, None)]], [[(2, 1, LEAST + 5, None), (2, 2, -5, None)]]]
    fired = run(tmp_path, (Aggregate("s", "sum", "x"),), Window(10, 10), epochs)
    assert sorted((row["k"], row["s"]) for row in fired) == [(1, GREATEST), (2, LEAST)]


@pytest.mark.parametrize("cut", ["one task", "tasks", "epochs"])
@pytest.mark.parametrize(
    ("ys", "expected"),
    [
        ([math.inf, 1.0], math.nan), ([1.0, 2.0, -math.inf], math.nan), ([math.inf, math.inf], math.nan),
        ([math.inf, -math.inf, 3.0], math.nan), ([math.nan, 1.0], math.nan), ([math.inf], None), ([math.nan], None),
        ([1e200, -1e200], math.inf), ([1.0, 3.0], 2.0),
    ],
)  # fmt: skip
def test_a_variance_with_an_infinity_is_no_number(
    tmp_path: Path, ys: list[float], expected: float | None, cut: str
) -> None:
    """As in Spark, whose squares of differences from an infinite mean are none; finite ones may be too great."""
    records: list[Record] = [(1, i, None, y) for i, y in enumerate(ys)]
    epochs = {
        "one task": [[records]],
        "tasks": [[[one] for one in records]],
        "epochs": [[[one]] for one in records],
    }[cut]
    made = tuple(Aggregate(name, name, "y", None, "float") for name in ("variance", "stddev"))
    (row,) = run(tmp_path, made, Window(20, 20), epochs)
    for found, wanted in ((row["variance"], expected), (row["stddev"], expected and expected**0.5)):
        assert found == wanted or (math.isnan(found) and wanted is not None and math.isnan(wanted))
