"""Keys of every type are grouped as SQL groups them: nulls, -0.0 and NaN among them, from records to fired rows."""

from __future__ import annotations

import datetime as dt
import math
import tempfile
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Side, Window
from ferry.contract.epoch_times import EpochTimes
from ferry.kernels import hashing, keys
from ferry.kernels.kinds import key_kind_of, type_of
from ferry.spark.tasks import warmup
from ferry.spark.tasks.fragment import Fragmenter
from ferry.store.aggregate import AggregateState
from ferry.store.rows import RowState

VALUES: dict[str, list[Any]] = {
    "int": [0, 1, -1, 2**63 - 1, -(2**63)],
    "string": ["", "é", "a long key of more than eight bytes"],
    "bool": [True, False],
    "date": [dt.date(1969, 12, 31), dt.date(2024, 2, 29)],
    "binary": [b"", b"\0", b"\0\0"],
    "float": [0.0, -0.0, math.nan, -math.nan, math.inf, 0.1],
    "float32": [0.0, -0.0, math.nan, 0.5],
    "timestamp[s]": [dt.datetime(1969, 12, 31, 23), dt.datetime(2024, 2, 29)],
    "timestamp[us, tz=UTC]": [dt.datetime(2024, 2, 29, microsecond=1, tzinfo=dt.UTC)],
    "decimal128(12, 2)": [Decimal("0.00"), Decimal("-0.01"), Decimal("9999999999.99")],
}
EVERY = np.arange(4)


def aggregate(*kinds: str, window: Window = Window(20, 10)) -> OperatorDescriptor:  # noqa: B008
    key = tuple((f"k{i}", kind) for i, kind in enumerate(kinds))
    return OperatorDescriptor("op", 0, "aggregate", key, window, (Aggregate("n", "count"),))


def grouped(value: Any) -> Any:
    """Equal for what SQL takes for one value."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


def fragments(descriptor: OperatorDescriptor, rows: list[tuple], times: list[int]) -> list[pa.RecordBatch]:
    columns = {n: pa.array([r[i] for r in rows], type_of(kind)) for i, (n, kind) in enumerate(descriptor.key)}
    f = Fragmenter(descriptor, groups_max=3)
    f.add(pa.record_batch({**columns, "t": pa.array(times, pa.int64())}), [n for n, _ in descriptor.key], "t")
    assert not f.malformed()
    return [*f.take_full(), *f.drain()]


def inverse(hash_: int) -> int:
    """The integer key of a hash."""
    x, mask = hash_, (1 << 64) - 1
    x ^= x >> 31 ^ x >> 62
    x = x * pow(0x94D049BB133111EB, -1, 1 << 64) & mask
    x ^= x >> 27 ^ x >> 54
    x = x * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & mask
    x ^= x >> 30 ^ x >> 60
    return x - (x >> 63 << 64)


def drawn(kind: str) -> st.SearchStrategy[Any]:
    return st.none() | st.sampled_from(VALUES[kind])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_records_are_counted_by_any_key(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3))
    descriptor = aggregate(*kinds)
    record = st.tuples(st.tuples(*map(drawn, kinds)), st.integers(0, 19))
    epochs = data.draw(st.lists(st.lists(record, min_size=1, max_size=20), min_size=1, max_size=3))
    with tempfile.TemporaryDirectory() as directory:
        leader, replica = (AggregateState(descriptor, 4, Path(directory) / name) for name in ("leader", "replica"))
        for number, records in enumerate(epochs):
            merged = leader.combine(fragments(descriptor, [k for k, _ in records], [t for _, t in records]))
            delta, _ = leader.delta([merged], EpochTimes(-100, -100))
            leader.apply(delta, number, "")
        for chunk in leader.snapshot(EVERY, 300):
            replica.apply_absent(chunk)
        expected = Counter(tuple(map(grouped, k)) for records in epochs for k, _ in records)
        for state in (leader, AggregateState(descriptor, 4, Path(directory) / "leader"), replica):
            rows = pa.Table.from_batches(state.fired(EpochTimes(19, 20), EVERY))
            assert [rows.schema.field(n).type for n, _ in descriptor.key] == [type_of(kind) for kind in kinds]
            found = [(*map(grouped, tuple(r.values())[: len(kinds)]), r["n"]) for r in rows.to_pylist()]
            assert len(found) == len(expected) and {f[:-1]: f[-1] for f in found} == expected


def test_the_null_among_integers_is_none_of_them(tmp_path: Path) -> None:
    twin = inverse(int(keys.NULL_HASH))
    descriptor = aggregate("int")
    column = pa.array([0, None, twin, None, 0, 0])
    found = keys.stored(descriptor, [column])
    assert found.hashes[1] == found.hashes[2] == keys.NULL_HASH and found.keys[1] == found.keys[0] == 0
    back = keys.fired(descriptor, found.hashes, found.keys, np.empty(0, np.uint8))
    assert back[0].to_pylist() == column.to_pylist()
    state = AggregateState(descriptor, 4, tmp_path)
    for _ in range(2):
        partials = fragments(descriptor, [(k,) for k in column.to_pylist()], [10] * 6)
        state.apply(state.delta([state.combine(partials)], EpochTimes(-100, -100))[0], 0, "")
    for window in (EpochTimes(19, 20), EpochTimes(29, 30)):
        rows = [row for batch in state.fired(window, EVERY) for row in batch.to_pylist()]
        assert len(rows) == 3 and {r["k0"]: r["n"] for r in rows} == {0: 6, None: 4, twin: 2}


def test_the_hash_of_a_null_is_that_of_its_bytes() -> None:
    assert hashing.hash_bytes(np.array([0, 1]), np.zeros(1, np.uint8)).tolist() == [int(keys.NULL_HASH)]
    assert keys.stored(aggregate("string"), [pa.array([None], pa.string())]).hashes[0] == keys.NULL_HASH


@pytest.mark.parametrize("kinds", [("int",), ("string", "date")])
def test_null_keys_have_no_pairs(kinds: tuple[str, ...], tmp_path: Path) -> None:
    side = Side((("a", "v", "int64"),)), Side((("b", "v", "int64"),))
    key = tuple((f"k{i}", kind) for i, kind in enumerate(kinds))
    descriptor = OperatorDescriptor("op", 0, "join", key, Window(20, 20), (), *side)
    state = RowState(descriptor, 4, tmp_path)
    made = []
    for number in (0, 1):
        columns = {n: pa.array([VALUES[kind][0]] * 2, type_of(kind)) for n, kind in key}
        columns["k0"] = pa.array([VALUES[kinds[0]][0], None], type_of(kinds[0]))
        f = Fragmenter(descriptor, number)
        batch = pa.record_batch({**columns, "t": [1, 12], "v": [10 + number, 20 + number]})
        # It belongs to nothing, but it says how late it is.
        assert f.add(batch, [n for n, _ in key], "t") == 12 and not f.malformed()
        made += f.drain()
    assert sum(batch.num_rows for batch in made) == 2
    state.apply(state.delta([state.combine(made)], EpochTimes(-100, -100))[0], 0, "")
    assert [r for b in state.fired(EpochTimes(19, 20), EVERY) for r in b.to_pylist()] == [
        {"window_start": 0, "window_end": 20, "a": 10, "b": 11}
    ]


def test_integers_of_every_width_are_one_kind() -> None:
    for width in (8, 16, 32, 64):
        assert all(key_kind_of(pa.type_for_alias(f"{sign}int{width}")) == "int" for sign in ("", "u"))
    assert key_kind_of(pa.dictionary(pa.int8(), pa.uint16())) == "int"
    assert key_kind_of(pa.struct([("a", pa.int64())])) is None
    assert [key_kind_of(type_of(kind)) for kind in VALUES] == list(VALUES)


def test_the_first_ingest_is_prepared_for_keys_of_every_type() -> None:
    warmup.load([(aggregate(kind), None) for kind in VALUES])
