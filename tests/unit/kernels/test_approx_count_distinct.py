"""The sketch of distinct values: what its error is, and that nothing changes it but the values themselves."""

from __future__ import annotations

import math
import re
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
from ferry.contract.errors import SpecRefused
from ferry.kernels import aggregates, columns, contributions, grouping, hashing, schemas, sketch
from ferry.kernels.grouping import NO_BYTES, NO_INTS, RANKS, Hashes, Ints
from ferry.kernels.groups import Groups
from ferry.spark.tasks import partial_aggregates
from ferry.spark.tasks.fragment import Fragmenter
from ferry.store.aggregate import AggregateState

DISTINCT = Aggregate("d", "approx_count_distinct", "x")
SUM = Aggregate("s", "sum", "y")
WINDOW = Window(1000, 500)
STANDARD_ERROR = 1.04 / math.sqrt(sketch.REGISTERS)


def descriptor(*kept: Aggregate, key: str = "int") -> OperatorDescriptor:
    return OperatorDescriptor("op", 0, "aggregate", (("k", key),), WINDOW, kept)  # type: ignore[arg-type]


def fragments(one: OperatorDescriptor, values: pa.Array, keys: Any = None, times: Any = None) -> list[pa.RecordBatch]:
    """What one task makes of these values; of one key and time where not said otherwise."""
    rows = len(values)
    keys = pa.array(["key"] * rows) if keys is None and not one.int_key else keys
    made = {
        "k": np.zeros(rows, np.int64) if keys is None else keys,
        "t": np.zeros(rows, np.int64) if times is None else times,
        "x": values,
        "y": np.ones(rows, np.int64),
    }
    f = Fragmenter(one)
    f.add(pa.record_batch(made), ["k"], "t")
    return [*f.take_full(), *f.drain()]


def fired(state: AggregateState, start: int = 0) -> dict[Any, Any]:
    """By key, the rows of the window that begins there."""
    rows = [row for b in state.fired(EpochTimes(start + 999, start + 1000), np.arange(4)) for row in b.to_pylist()]
    return {row["k"]: row for row in rows}


def registers(words: Ints) -> Ints:
    """The registers of sketches, one by one: a second way to read them."""
    shifts = sketch.REGISTER_BITS * np.arange(sketch.PER_WORD)
    found: Ints = (words[..., np.newaxis] >> shifts & sketch.RANK_MAX).reshape(*words.shape[:-1], -1)
    assert not found[..., sketch.REGISTERS :].any()
    return found[..., : sketch.REGISTERS]


def random_hashes(count: int) -> Hashes:
    return np.random.default_rng(count).integers(0, 2**64, count, np.uint64)


# ---- how good it is


@pytest.mark.parametrize("distinct", [1, 2, 5, 20, 100, 400, 700, 1300, 2500, 10_000, 50_000])
def test_the_error_is_the_one_that_is_promised(distinct: int) -> None:
    """Also where a formula for small counts would give way to one for great ones. What is counted is rounded."""
    trials = 200 if distinct < 5000 else 60
    groups = Groups(np.full(sketch.WORDS, RANKS), False)
    for trial in range(trials):
        hashes = hashing.hash_ints(np.arange(distinct) + trial * 1_000_003)
        same = np.full(distinct, trial)
        cells = sketch.singles(hashes, np.ones(distinct, bool))
        groups.add(np.zeros(distinct, np.int64), hashing.hash_ints(same), same, NO_INTS, NO_BYTES, NO_INTS, cells)
    errors = sketch.counts(np.ascontiguousarray(groups.rows()[:, grouping.CELLS :])) / distinct - 1
    assert errors.size == trials
    assert math.sqrt(float(np.mean(errors**2))) < 1.15 * STANDARD_ERROR
    assert abs(float(np.mean(errors))) < 3.5 * STANDARD_ERROR / math.sqrt(trials) + 0.5 / distinct


@pytest.mark.parametrize(
    "values",
    [
        pa.array(range(3000)),
        pa.array(range(0, -3000 * 4096, -4096)),
        pa.array([i / 8 for i in range(3000)]),
        pa.array([f"user-{i}" for i in range(3000)]),
        pa.array([f"{i:060d}" for i in range(3000)]),
        pa.array([i.to_bytes(2, "big") for i in range(3000)]),
        pa.array(range(3000), pa.timestamp("us")),
    ],
    ids=["in a row", "far apart", "floats", "names", "long texts", "bytes", "times"],
)
def test_values_that_are_much_alike_are_told_from_each_other(values: pa.Array, tmp_path: Path) -> None:
    one = descriptor(DISTINCT)
    state = AggregateState(one, 4, tmp_path)
    state.apply(state.delta(fragments(one, values), EpochTimes(-(2**62), -(2**62)))[0])
    assert fired(state)[0]["d"] == pytest.approx(3000, rel=3 * STANDARD_ERROR)


def test_small_counts_are_nearly_exact_and_none_is_none() -> None:
    assert sketch.counts(np.zeros((1, sketch.WORDS), np.int64)).tolist() == [0]
    words = [sum(sketch.RANK_MAX << sketch.REGISTER_BITS * i for i in range(sketch.PER_WORD))] * (sketch.WORDS - 1)
    rest = sketch.REGISTERS - sketch.PER_WORD * len(words)
    full = [*words, sum(sketch.RANK_MAX << sketch.REGISTER_BITS * i for i in range(rest))]
    assert sketch.counts(np.array([full], np.int64)).tolist() == [sketch.COUNT_MAX]
    one_each = sketch.singles(random_hashes(1000), np.ones(1000, bool))
    assert (sketch.counts(one_each) == 1).all()
    assert (sketch.counts(sketch.singles(random_hashes(9), np.zeros(9, bool))) == 0).all()


def test_a_sketch_that_is_full_has_a_count() -> None:
    full = np.full((1, sketch.WORDS), (1 << 60) - 1)
    full[0, -1] = (1 << sketch.REGISTER_BITS * (sketch.REGISTERS % sketch.PER_WORD)) - 1
    assert (registers(full) == sketch.RANK_MAX).all()
    nearly = full.copy()
    nearly[0, 0] -= 1
    assert sketch.counts(nearly)[0] > 10**11


# ---- nothing but the values


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60))
def test_merged_sketches_have_the_greater_registers(seed: int, values: int) -> None:
    rng = np.random.default_rng(seed)
    sketches = sketch.singles(rng.integers(0, 2**64, values, np.uint64), rng.random(values) < 0.9)
    dense = rng.integers(0, 1 << 60, (2, sketch.WORDS))
    dense[:, -1] &= (1 << 5 * (sketch.REGISTERS % sketch.PER_WORD)) - 1
    cells = np.concatenate([sketches, dense])
    rows = cells.shape[0]
    groups, zeros = Groups(np.full(sketch.WORDS, RANKS), False), np.zeros(rows, np.int64)
    groups.add(zeros, zeros.view(np.uint64), zeros, NO_INTS, NO_BYTES, NO_INTS, cells)
    assert (registers(groups.rows()[0, grouping.CELLS :]) == registers(cells).max(axis=0)).all()


def by_reference(hashes: Hashes) -> Ints:
    """Registers of a set of hashes, in plain Python."""
    found = np.zeros(sketch.REGISTERS, np.int64)
    for h in hashes.tolist():
        register, rank = h >> 64 - 9, 1
        while rank < 31 and not h >> rank - 1 & 1:
            rank += 1
        found[register] = max(found[register], rank)
    return found


def test_the_registers_are_those_of_the_hashes() -> None:
    hashes = np.concatenate([random_hashes(5000), np.array([0, 2**63, 2**31, 2**30, 2**29, 2**64 - 1], np.uint64)])
    cells = sketch.singles(hashes, np.ones(hashes.size, bool))
    assert (registers(cells).max(axis=0) == by_reference(hashes)).all()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_neither_order_nor_division_changes_it(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """The state of one task in one epoch, and of several in several, by helpers and leaders that merge them."""
    values = data.draw(st.lists(st.none() | st.integers(-50, 2000), min_size=1, max_size=200))
    one = descriptor(DISTINCT, SUM)
    found = []
    for _ in range(2):
        mixed = data.draw(st.permutations(values))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(mixed)), max_size=4)))
        tasks = [mixed[a:b] for a, b in zip([0, *cuts], [*cuts, len(mixed)], strict=True) if a < b]
        state = AggregateState(one, 4, tmp_path_factory.mktemp("state"))
        for epoch in range(2):
            parts = [state.combine(fragments(one, pa.array(t, pa.int64()))) for t in tasks[epoch::2]]
            state.apply(state.delta(parts, EpochTimes(-(2**62), -(2**62)))[0])
        (kept,) = state.snapshot(np.arange(4))
        found.append((kept.to_pylist(), fired(state)))
    assert found[0] == found[1]
    assert found[0][1][0]["s"] == len(values)


def test_windows_are_the_union_of_their_panes_and_keys_are_apart(tmp_path: Path) -> None:
    one = descriptor(DISTINCT, key="string")
    state = AggregateState(one, 4, tmp_path)
    keys, times = pa.array(["a", "a", "b", "a", "b"]), pa.array([0, 600, 600, 700, 1200])
    state.apply(state.delta(fragments(one, pa.array([1, 1, 1, 2, 5]), keys, times), EpochTimes(-(2**62), -(2**62)))[0])
    assert {k: row["d"] for k, row in fired(state).items()} == {"a": 2, "b": 1}
    assert {k: row["d"] for k, row in fired(state, 500).items()} == {"a": 2, "b": 2}


# ---- moved, copied, sent


def test_state_survives_wire_snapshot_and_disk(tmp_path: Path) -> None:
    one = descriptor(SUM, DISTINCT, key="string")
    state = AggregateState(one, 4, tmp_path / "leader")
    keys = pa.array([f"key {i % 50}" for i in range(4000)])
    values = pa.array([f"v{i % 700}" for i in range(4000)])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schemas.partials_schema(one)) as writer:
        for part in fragments(one, values, keys):
            writer.write_batch(part)
    parts = pa.ipc.open_stream(sink.getvalue()).read_all().to_batches()
    delta, _ = state.delta(parts, EpochTimes(-(2**62), -(2**62)))
    state.apply(delta)
    expected = fired(state)
    assert len(expected) == 50 and {row["s"] for row in expected.values()} == {80}
    offsets = columns.split_by_vnode(delta, 4)
    learner = AggregateState(one, 4, tmp_path / "learner")
    for v in range(4):
        for chunk in state.snapshot(np.array([v]), 4096):
            learner.apply_absent(chunk)
        learner.apply(columns.take_vnodes(delta, offsets, np.array([v])))  # A slice of a batch, with its offset.
    assert fired(learner) == expected
    assert fired(AggregateState(one, 4, tmp_path / "learner")) == expected


# ---- values


@pytest.mark.parametrize(
    ("alike", "distinct"),
    [
        ([pa.array([5, -1], kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())], 2),
        ([pa.array([5, 200], kind) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.int64())], 2),
        ([pa.array([0.5, float("nan")], kind) for kind in (pa.float32(), pa.float64())], 2),
        ([pa.array([0.0, -0.0]), pa.array([0.0], pa.float32())], 1),
        ([pa.array(np.array([0x7FF8000000000000, -1, 0x7FF0000000000001], np.int64).view(np.float64))], 1),
        ([pa.array(["", "ä"], kind) for kind in (pa.string(), pa.large_string(), pa.string_view())], 2),
        ([pa.array(["a", "ä"]), pa.array(["ä", "a"]).dictionary_encode()], 2),
        ([pa.array([b"ab", b"cd"], kind) for kind in (pa.binary(), pa.large_binary(), pa.binary(2))], 2),
        ([pa.array([2**64 - 1, 2**63], pa.uint64())], 2),
        ([pa.array([True, False, None])], 2),
        ([pa.array([1, 2], pa.date32()), pa.array([2, 1], pa.date32())], 2),
    ],
    ids=lambda case: case[0].type if isinstance(case, list) else "",
)
def test_equal_values_are_one_whatever_their_column(alike: list[pa.Array], distinct: int) -> None:
    seen = {h for values in alike for h in columns.value_hashes(values.drop_null()).tolist()}
    assert len(seen) == distinct
    for values in alike:
        assert columns.hashable(values.type)
        doubled = pa.concat_arrays([values, values]).slice(1, len(values))
        assert set(columns.value_hashes(doubled.drop_null()).tolist()) <= seen


def test_the_hashes_of_values_are_fixed_for_ever() -> None:
    """State that is kept was made of them."""
    vectors = (pa.array([0, 1, -1]), pa.array([0.0, 1.5]), pa.array(["", "a", "a longer text"]))
    assert [columns.value_hashes(values).tolist() for values in vectors] == [
        [0xE220A8397B1DCDAF, 0xE4D971771B652C20, 0xDE0A564CBCD060C4],
        [0xE220A8397B1DCDAF, 0x88747B63583E67C7],
        [0xE220A8397B1DCDAF, 0x44C3EDBA9DAD217F, 0x9257555A8669BBE0],
    ]


def test_nulls_are_not_counted(tmp_path: Path) -> None:
    one = descriptor(DISTINCT)
    for number, values in enumerate(([None, 3, None, 3], [None, None])):
        state = AggregateState(one, 4, tmp_path / str(number))
        state.apply(state.delta(fragments(one, pa.array(values, pa.int64())), EpochTimes(-(2**62), -(2**62)))[0])
        assert fired(state)[0]["d"] == len({v for v in values if v is not None})


def test_a_null_of_a_dictionary_is_a_null(tmp_path: Path) -> None:
    one = descriptor(DISTINCT)
    values = pa.DictionaryArray.from_arrays(pa.array([0, 1, 1, 0], pa.int32()), pa.array(["a", None]))
    state = AggregateState(one, 4, tmp_path)
    state.apply(state.delta(fragments(one, values), EpochTimes(-(2**62), -(2**62)))[0])
    assert fired(state)[0]["d"] == 1


def test_what_has_no_hash_is_refused_by_the_task_as_well() -> None:
    for values in (pa.array([[1], [2]]), pa.array([1, 2]).cast(pa.decimal256(50, 1))):
        with pytest.raises(SpecRefused, match=f"column x is {re.escape(str(values.type))}, which has no hash"):
            fragments(descriptor(DISTINCT), values)


# ---- beside other functions


def test_flags_of_other_columns_stay_their_own(tmp_path: Path) -> None:
    """A sketch has many words, and flags count columns: overflow and nulls of what is declared after it are its own."""
    others = tuple(
        Aggregate(f"a{i}", name, "y")
        for i, name in enumerate(("sum", "count", "mean", "max", "last", "variance", "min", "first"))
    )
    mixed = (DISTINCT, *others[:3], Aggregate("e", "approx_count_distinct", "y"), *others[3:])
    assert [len(p.columns) for p in aggregates.places(descriptor(*mixed))] == [1, 1, 1, 2, 1, 1, 2, 3, 1, 2]
    rows = 300
    batch = pa.record_batch(
        {
            "k": np.arange(rows) % 7,
            "t": np.arange(rows) % 500,
            "x": pa.array([f"{i % 40}" for i in range(rows)]),
            "y": pa.array([None if i % 7 == 3 or i % 3 == 0 else i for i in range(rows)], pa.int64()),
        }
    )
    found = []
    for number, kept in enumerate((mixed, others, (DISTINCT,), (Aggregate("e", "approx_count_distinct", "y"),))):
        one = descriptor(*kept)
        state = AggregateState(one, 4, tmp_path / str(number))
        f = Fragmenter(one)
        f.add(batch, ["k"], "t")
        state.apply(state.delta([state.combine(f.drain())], EpochTimes(-(2**62), -(2**62)))[0])
        found.append(fired(state))
    together = {key: found[1][key] | found[2][key] | found[3][key] for key in range(7)}
    assert found[0] == together and found[0][3]["a0"] is None and found[0][3]["e"] == 0


def test_an_overflow_beside_it_is_refused(tmp_path: Path) -> None:
    one = descriptor(DISTINCT, SUM)
    f = Fragmenter(one)
    f.add(pa.record_batch({"k": [1, 1], "t": [0, 0], "x": [1, 2], "y": [2**63 - 1, 1]}), ["k"], "t")
    state = AggregateState(one, 4, tmp_path)
    state.apply(state.delta(f.drain(), EpochTimes(-(2**62), -(2**62)))[0])
    with pytest.raises(SpecRefused, match=r"s=sum\('y'\)"):
        fired(state)


def test_late_records_leave_nothing(tmp_path: Path) -> None:
    one = descriptor(DISTINCT)
    delta, late = AggregateState(one, 4, tmp_path).delta(fragments(one, pa.array(range(9))), EpochTimes(1000, 1000))
    assert (delta.num_rows, late) == (0, 9)


# ---- bounds


def test_a_task_makes_little_state_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are made state in pieces, and what is kept of them has a bound in bytes."""
    one = descriptor(DISTINCT)
    values, keys = pa.array(range(1000)), np.arange(1000) % 90
    (whole,) = fragments(one, values, keys)
    monkeypatch.setattr(contributions, "CELLS_BYTES_MAX", 8 * sketch.WORDS * 64)
    made: list[int] = []
    singles = sketch.singles
    monkeypatch.setattr(sketch, "singles", lambda h, counted: made.append(h.size) or singles(h, counted))
    assert fragments(one, values, keys) == [whole]
    assert max(made) == 64 and sum(made) == 1000
    monkeypatch.setattr(partial_aggregates, "GROUPS_BYTES_MAX", 8 * (grouping.CELLS + sketch.WORDS) * 20)
    parts = fragments(one, values, keys)
    assert len(parts) > 1 and max(part.num_rows for part in parts) == 20


def test_the_word_of_a_pipeline() -> None:
    made = ferry.approx_count_distinct("x")
    assert made == Aggregate("", "approx_count_distinct", "x") and "approx_count_distinct" in aggregates.__all__
    assert aggregates.result_type(made) == pa.int64()
    assert aggregates.hashes_values(made) and not aggregates.reads_values(made)
    assert not aggregates.hashes_values(ferry.count("x"))
