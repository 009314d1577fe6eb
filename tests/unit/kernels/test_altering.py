"""Derived state equals the state that the altered operator would have made itself, for all columns of both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.contract.descriptors import GLOBAL, Aggregate, OperatorDescriptor, Side, Window
from ferry.contract.epoch_times import EpochTimes
from ferry.kernels.altering import deriving
from ferry.kernels.schemas import state_schema
from ferry.spark.tasks.fragment import Fragmenter
from ferry.store.state import State, open_state

COLUMNS = {
    "n": Aggregate("n", "count"), "c": Aggregate("c", "count", "x"), "s": Aggregate("s", "sum", "x"),
    "m": Aggregate("m", "max", "y", number="float"), "l": Aggregate("l", "min", "y", number="float"),
    "a": Aggregate("a", "mean", "x"), "b": Aggregate("b", "arg_max", "x", by="y", by_number="float"),
    "d": Aggregate("d", "approx_count_distinct", "x"), "v": Aggregate("v", "variance", "y", number="float"),
    "t": Aggregate("t", "max", "z", number="decimal128(38, 2)"), "u": Aggregate("u", "sum", "z", number="decimal128(38, 2)"),
}  # fmt: skip
COUNTED = OperatorDescriptor("a", 0, "aggregate", (("k", "int"),), Window(10, 10), (COLUMNS["n"],))
TIMES = EpochTimes(0, 0)


def of(names: list[str], **more: object) -> OperatorDescriptor:
    return replace(COUNTED, aggregates=tuple(COLUMNS[name] for name in names), **more)  # type: ignore[arg-type]


def records(count: int, nulls: bool) -> pa.RecordBatch:
    rng = np.random.default_rng(count)
    missing = rng.random((3, count)) < (0.5 if nulls else 0.0)
    return pa.RecordBatch.from_pydict({
        "k": pa.array(rng.integers(0, 5, count)), "ts": pa.array(rng.integers(0, 30, count)),
        "x": pa.array(rng.integers(-9, 9, count), mask=missing[0]), "y": pa.array(rng.random(count), mask=missing[1]),
        "z": pa.array([None if no else i * 100 for i, no in enumerate(missing[2])], pa.decimal128(38, 2)),
    })  # fmt: skip


def opened(descriptor: OperatorDescriptor, folder: Path, batch: pa.RecordBatch) -> State:
    state, fragmenter = open_state(descriptor, 4, folder, 1 << 24), Fragmenter(descriptor)
    fragmenter.add(batch, ["k"], "ts")
    delta, _ = state.delta([state.combine([*fragmenter.take_full(), *fragmenter.drain()])], TIMES)
    state.apply(delta, 1, "")
    return state


def rows(state: State) -> list[dict[str, str]]:
    found = pa.Table.from_batches(list(state.snapshot(np.arange(4))), state_schema(state.descriptor))  # type: ignore[attr-defined]
    cells = [{name: str(value) for name, value in row.items()} for row in found.to_pylist()]  # NaN equals NaN.
    return sorted(cells, key=lambda row: (row["slice"], row["key"]))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([*COLUMNS]), min_size=1, unique=True), st.lists(st.sampled_from([*COLUMNS]), min_size=1, unique=True),
    st.booleans(), st.sampled_from([{}, {"window": GLOBAL, "ttl_ms": 50}, {"window": GLOBAL, "emit": "changes"}]),
)  # fmt: skip
def test_columns_of_both_are_kept_and_the_others_are_as_without_a_record(
    tmp_path_factory: pytest.TempPathFactory, old: list[str], new: list[str], nulls: bool, more: dict[str, object]
) -> None:
    folder, batch = tmp_path_factory.mktemp("altering"), records(60, nulls)
    before, after = of(old, **more), of(new, **more)
    source, derived = opened(before, folder / "before", batch), open_state(after, 4, folder / "after", 1 << 24)
    for piece in source.snapshot(np.arange(4), 64):
        derived.apply_absent(deriving(before, after)(piece))
    # What only the altered operator has, no record of before has reached it.
    unseen = {COLUMNS[name].column for name in set(new) - set(old)} - {None}
    both = of([name for name in new if name in old], **more) if set(new) & set(old) else None
    assert len(rows(derived)) == len(rows(source))
    if both is not None:
        narrow = open_state(both, 4, folder / "both", 1 << 24)
        for piece in derived.snapshot(np.arange(4)):
            narrow.apply_absent(deriving(after, both)(piece))
        assert rows(narrow) == rows(opened(both, folder / "own", batch))
    if unseen == {"x"} and set(new) - set(old) <= {"c", "s", "a", "d"} and not set(old) & {"c", "s", "a", "d", "b"}:
        blank = batch.set_column(2, "x", pa.nulls(batch.num_rows, pa.int64()))
        assert rows(derived) == rows(opened(after, folder / "blank", blank))


def test_a_join_gains_null_columns_and_loses_others() -> None:
    side = Side((("a", "a", "int64"), ("b", "b", "string")))
    before = OperatorDescriptor("j", 0, "join", (("k", "int"),), Window(10, 10), left=side, right=side)
    after = replace(before, left=Side((("c", "c", "double"), ("a", "a", "int64"))))
    values = [[0], [1], [2], [0], [3], ["x"], [None], [None]]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(v, f.type) for v, f in zip(values, state_schema(before), strict=True)], schema=state_schema(before)
    )
    derived = deriving(before, after)(batch)
    assert derived.schema == state_schema(after)
    assert derived.to_pylist()[0] == {
        "slice": 0,
        "hash": 1,
        "key": 2,
        "side": 0,
        "l_c": None,
        "l_a": 3,
        "r_a": None,
        "r_b": None,
    }


RECORDS = st.lists(st.tuples(st.integers(0, 6), st.integers(-12, 4)), max_size=12)
"""Key, and event time from the greatest one so far on."""
NEVER = float("inf")
TTLS = st.sampled_from([None, 3, 10, 40])


@settings(max_examples=150, deadline=None)
@given(st.lists(RECORDS, max_size=8), st.integers(0, 8), TTLS, TTLS.filter(bool), st.booleans())
def test_a_key_is_forgotten_at_the_earlier_of_both_times_until_its_next_record(
    tmp_path_factory: pytest.TempPathFactory,
    epochs: list[list[tuple[int, int]]],
    switch: int,
    old: int | None,
    new: int,
    forgets: bool,
) -> None:
    """Whether the rows of forgotten keys are still there or not."""
    folder, low = tmp_path_factory.mktemp("lives"), 0
    before, after = (of(["n"], window=GLOBAL, emit="changes", ttl_ms=ttl) for ttl in (old, new))
    state, ttl = open_state(before, 4, folder / "before", 1 << 24), old
    ends, counts = dict[int, float](), dict[int, int]()
    for epoch, records in enumerate(epochs):
        if epoch == switch:
            derived = open_state(after, 4, folder / "after", 1 << 24)
            for piece in state.snapshot(np.arange(4)):
                derived.apply_absent(deriving(before, after)(piece))
            derived.release(epoch - 1, low)
            state, ttl = derived, new
            ends = {key: end if old is None else end + min(0, new - old) for key, end in ends.items()}
        counts = {key: n for key, n in counts.items() if ends[key] > low}
        ends = {key: end for key, end in ends.items() if key in counts}
        for key, at in records:
            end, known = NEVER if ttl is None else low + at + ttl, ends.get(key, NEVER)
            ends[key] = end if known == NEVER else max(known, end)
            counts[key] = counts.get(key, 0) + 1
        times = EpochTimes(low, max([low, *(low + at for _, at in records)]), epoch)
        fragmenter = Fragmenter(state.descriptor)  # type: ignore[attr-defined]
        fragmenter.add(
            pa.record_batch({"k": [k for k, _ in records], "t": [low + at for _, at in records]}), ["k"], "t"
        )
        delta, _ = state.delta([state.combine(fragmenter.drain())], times)
        for _ in range(2):
            state.apply(delta, epoch, "")
        fired = {row["k"]: row["n"] for batch in state.fired(times, np.arange(4)) for row in batch.to_pylist()}
        assert fired == {key: counts[key] for key, _ in records}
        low = times.high
        if forgets:
            state.release(epoch, low)
