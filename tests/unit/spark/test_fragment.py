"""Fragments of a task against a plain count, and the records that it refuses."""

from collections import Counter
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Side, Window
from ferry.contract.errors import SpecRefused
from ferry.contract.limits import WATERMARK_NONE
from ferry.kernels import columns, row_codec, schemas
from ferry.spark.tasks.fragment import Fragmenter

COUNT = OperatorDescriptor("c", 0, "aggregate", (("k", "int"),), Window(30, 10), (Aggregate("n", "count"),))
WORDS = OperatorDescriptor(
    "w", 0, "aggregate", (("word", "string"), ("k", "int")), Window(10, 10),
    (
        Aggregate("total", "sum", "x"),
        Aggregate("top", "arg_max", "x", "y", "int", "float"),
        Aggregate("m", "mean", "y", None, "float"),
    ),
)  # fmt: skip
JOIN = OperatorDescriptor(
    "j", 0, "join", (("k", "int"),), Window(10, 10), (),
    Side((("a", "a", "int64"),)), Side((("b", "b_source", "string"),)),
)  # fmt: skip


def merged(batches: list[pa.RecordBatch]) -> Counter:
    total: Counter = Counter()
    for b in batches:
        for s, k, n in zip(b["slice"].to_pylist(), b["key"].to_pylist(), b["n"].to_pylist(), strict=True):
            total[s, k] += n
    return total


def taken(f: Fragmenter) -> int:
    """How many records are in what is left."""
    return sum(sum(b["n"].to_pylist()) for b in f.drain())


@pytest.mark.parametrize("groups_max", [1, 7, 100_000])
def test_count_equals_counter_whatever_the_bound(groups_max: int) -> None:
    rng = np.random.default_rng(5)
    keys, times = rng.integers(-50, 50, 3000), rng.integers(-100, 500, 3000)
    f = Fragmenter(COUNT, groups_max=groups_max)
    out = []
    for at in range(0, 3000, 1000):
        greatest = f.add(pa.record_batch({"k": keys[at : at + 1000], "t": times[at : at + 1000]}), ["k"], "t")
        assert greatest == times[at : at + 1000].max()
        out += f.take_full()
    out += f.drain()
    assert all(b.schema == schemas.partials_schema(COUNT) and b.num_rows <= groups_max for b in out)
    assert merged(out) == Counter((t // 10 * 10, k) for k, t in zip(keys.tolist(), times.tolist(), strict=True))
    assert f.drain() == [] and not f.malformed()


def test_values_and_encoded_keys() -> None:
    f = Fragmenter(WORDS)
    batch = {
        "word": ["a", "b", "a", "a"],
        "k": pa.array([1, 1, 1, 2], pa.int32()),
        "t": [3, 4, 5, 6],
        "x": [5, 6, 7, 8],
        "y": [1.5, 2.0, 1.5, 0.0],
    }
    f.add(pa.record_batch(batch), ["word", "k"], "t")
    (out,) = f.drain()
    words, ks = row_codec.decode_rows(*columns.binary(out["key"]), ["string", "int"])
    values = zip(*(out[c].to_pylist() for c in ("n", "s0", "s1", "s2", "s3", "s4")))
    rows = dict(zip(zip(words.to_pylist(), ks.to_pylist()), values))
    assert out["s5"].to_pylist() == [0b1011] * 3
    assert rows == {
        ("a", 1): (2, 12, 1.5, 7, 3.0, 2),
        ("b", 1): (1, 6, 2.0, 6, 2.0, 1),
        ("a", 2): (1, 8, 0.0, 8, 0.0, 1),
    }


def test_malformed_records_are_returned_as_they_came() -> None:
    batch = pa.record_batch(
        {
            "word": ["ok", None, "time", "absurd"],  # A null is a key as any other.
            "k": [1, 1, 1, 1],
            "t": [1, 2, None, 2**62],
            "x": [None, 1, 1, 1],
            "y": [1.0, 1.0, 1.0, 1.0],
            "other": [None, "kept", None, None],
        }
    )
    f = Fragmenter(WORDS)
    greatest = f.add(batch, ["word", "k"], "t")
    (null, _), (beyond, _) = f.malformed()
    assert [*null.to_pylist(), *beyond.to_pylist()] == batch.slice(2).to_pylist()
    assert greatest == 2 and Fragmenter(WORDS).add(batch.slice(2), ["word", "k"], "t") == WATERMARK_NONE
    assert taken(f) == 2 and not f.malformed()


@pytest.mark.parametrize(("unit", "per_ms"), [("s", 0.001), ("ms", 1), ("us", 1000), ("ns", 1_000_000)])
def test_timestamps_become_milliseconds_rounded_down(unit: str, per_ms: float) -> None:
    raw = [int(-40_000 * per_ms) - (per_ms > 1), int(50_000 * per_ms), None]
    f = Fragmenter(COUNT)
    greatest = f.add(pa.record_batch({"k": [1, 2, 3], "t": pa.array(raw, pa.timestamp(unit, "UTC"))}), ["k"], "t")
    (out,) = f.drain()
    assert out["slice"].to_pylist() == [-40_010 if per_ms > 1 else -40_000, 50_000]
    ((refused, reason),) = f.malformed()
    assert refused.num_rows == 1 and reason == "event time 't' is null" and greatest == 50_000


def test_join_rows_of_both_sides_have_one_schema() -> None:
    left, right = Fragmenter(JOIN, 0), Fragmenter(JOIN, 1)
    left.add(pa.record_batch({"k": [1, None], "t": [11, 1], "a": [7, 8]}), ["k"], "t")
    right.add(pa.record_batch({"k": [1], "t": [19], "b_source": [None]}), ["k"], "t")
    (a,), (b,) = left.drain(), right.drain()
    assert a.schema == b.schema == schemas.rows_schema(JOIN)
    assert [a.to_pylist()[0][c] for c in ("slice", "side", "l_a", "r_b")] == [10, 0, 7, None]
    assert [b.to_pylist()[0][c] for c in ("slice", "side", "l_a", "r_b")] == [10, 1, None, None]
    assert a["hash"] == b["hash"] and not left.malformed()


def test_columns_that_do_not_fit_are_refused() -> None:
    f = Fragmenter(WORDS)
    good = {"word": ["a"], "k": [1], "t": [3], "x": [5], "y": [1.5]}
    for change, keys, message in (
        ({"word": [1]}, ["word", "k"], "a string is needed"),
        ({"k": ["x"]}, ["word", "k"], "column k"),
        ({"x": [1.5]}, ["word", "k"], "declare the aggregate as float"),
        ({"t": ["noon"]}, ["word", "k"], "column t"),
        ({}, ["word"], "2 elements"),
        ({}, ["word", "z"], "no column"),
    ):
        with pytest.raises(SpecRefused, match=message):
            f.add(pa.record_batch({**good, **change}), keys, "t")
    assert f.drain() == []


def test_key_columns_that_are_other_values_are_refused() -> None:
    kinds = {"date": pa.date32(), "timestamp[us, tz=UTC]": pa.timestamp("us", "UTC"), "decimal128(6, 2)": pa.decimal128(6, 2),
             "float": pa.float64(), "bool": pa.bool_()}  # fmt: skip
    for kind, arrow in kinds.items():
        f = Fragmenter(OperatorDescriptor("c", 0, "aggregate", (("k", kind),), Window(10, 10), COUNT.aggregates))
        for other in (pa.int64(), pa.string(), pa.timestamp("us"), *(k for k in kinds.values() if k != arrow)):
            with pytest.raises(SpecRefused, match="operator c: key column k is"):
                f.add(pa.record_batch({"k": pa.nulls(1, other), "t": [1]}), ["k"], "t")
        f.add(pa.record_batch({"k": pa.nulls(1), "t": [1]}), ["k"], "t")
        assert taken(f) == 1
    f = Fragmenter(
        OperatorDescriptor("c", 0, "aggregate", (("k", "decimal128(6, 2)"),), Window(10, 10), COUNT.aggregates)
    )
    f.add(pa.record_batch({"k": pa.array([Decimal("1.5")], pa.decimal128(20, 1)), "t": [1]}), ["k"], "t")
    with pytest.raises(SpecRefused, match="column k is decimal128"):
        f.add(pa.record_batch({"k": pa.array([Decimal("1.555")], pa.decimal128(6, 3)), "t": [1]}), ["k"], "t")


@pytest.mark.parametrize("column", ["k", "t", "x"])
def test_unsigned_integers_beyond_63_bits_are_malformed(column: str) -> None:
    descriptor = OperatorDescriptor("s", 0, "aggregate", (("k", "int"),), Window(10, 10), (Aggregate("s", "sum", "x"),))
    data = {name: pa.array([1, 2, 3], pa.uint64()) for name in ("k", "t", "x")}
    data[column] = pa.array([1, 2**63, None], pa.uint64())
    f = Fragmenter(descriptor)
    f.add(pa.record_batch(data), ["k"], "t")
    refused = f.malformed()
    assert refused[0][0][column].to_pylist() == [2**63] and repr(column) in refused[0][1]
    # A null is a key and no value, but a record without a time belongs nowhere.
    assert len(refused) == (2 if column == "t" else 1)
    assert taken(f) == 3 - len(refused)


def test_event_times_ahead_of_what_may_be_do_not_move_the_watermark() -> None:
    batch = pa.record_batch({"k": [1, 2, 3], "t": [100, 101, 1_700_000_000_000_000]})
    f = Fragmenter(COUNT)
    greatest = f.add(batch, ["k"], "t", 100)
    ((refused, reason),) = f.malformed()
    assert refused["k"].to_pylist() == [2, 3] and "later than 100" in reason
    assert (taken(f), greatest) == (1, 100)
