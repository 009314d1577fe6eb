"""The first record of each key within some time, against a loop over records that forgets nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ferry
from ferry.api.pipeline import Build, Input
from ferry.api.stream import Stream
from ferry.contract.errors import SpecRefused
from ferry.contract.limits import WATERMARK_END, WATERMARK_NONE
from ferry.process.distinct import REMOVALS, WENT, Distinct
from ferry.process.harness import ProcessHarness
from tests.unit.process.queries import rows_of

RECORDS = pa.schema([("k", pa.string()), ("ts", pa.int64()), ("n", pa.int64())])

record = st.tuples(st.sampled_from(["a", "b", None]), st.integers(-20, 120))
epochs = st.lists(st.tuples(st.lists(record, max_size=10), st.integers(0, 40)), max_size=8)


@settings(max_examples=150, deadline=None)
@given(epochs, st.sampled_from([1, 2, 5, 17, 40]))
def test_what_goes_on_is_that_of_a_loop(given_: Any, within: int) -> None:
    rig = ProcessHarness(Distinct(within), RECORDS, "k", order="n")
    went: dict[str | None, list[int]] = {}
    low, late, number = WATERMARK_NONE, 0, 0
    for records, ahead in [*given_, ([], None)]:
        high = WATERMARK_END if ahead is None else ahead if low == WATERMARK_NONE else low + ahead
        rows = [{"k": k, "ts": ts, "n": number + i} for i, (k, ts) in enumerate(records)]
        number += len(rows)
        expected = []
        for row in sorted(rows, key=lambda row: (row["ts"], row["n"])):
            if row["ts"] + within <= low:
                late += 1
            elif all(abs(row["ts"] - ts) >= within for ts in went.setdefault(row["k"], [])):
                went[row["k"]].append(row["ts"])
                expected.append(tuple(row.values()))
        assert rows_of([rig.epoch(rows, watermark=high)]) == Counter(expected)
        assert rig.late == late
        # An eighth of `within` may pass before what is too old is removed.
        step = max(1, within // REMOVALS)
        assert all(ts + 2 * within - 1 + step > high for _, ts in rig.rows(WENT))
        low = high
    assert not rig.rows(WENT) and not rig.timers()


def orders(streams: Any, within: str = "10s", **more: Any) -> Stream:
    found: Stream = streams["orders"].event_time("at", delay="1s").distinct("id", within=within, **more)
    return found


def rows(*records: tuple[str, int]) -> pa.Table:
    ids, times = zip(*records, strict=True)
    return pa.table({"id": ids, "at": pa.array(times, pa.timestamp("ms", "UTC"))})


@pytest.mark.parametrize("epochs", [1, 3, 7])
def test_what_goes_on_has_its_event_time_and_late_records_go_to_their_sink(epochs: int) -> None:
    def pipeline(streams: Any, args: Any) -> Any:
        once = orders(streams, late=ferry.parquet("late"))
        counts = once.key_by("id").window(ferry.tumbling("10s")).aggregate("counts", n=ferry.count())
        return [once.sink(ferry.parquet("once")), counts.sink(ferry.parquet("counts"))]

    given_ = [("a", 1000), ("a", 1000), ("b", 9999), ("a", 10_999), ("a", 11_000), ("b", 50_000), ("c", 38_000)]
    made = ferry.test(pipeline, {"orders": rows(*given_)}, epochs)
    went = [("a", 1000), ("b", 9999), ("a", 11_000), ("b", 50_000)]
    missed = [("c", 38_000)] if epochs > 3 else []  # the watermark was 49 s before the epoch of the last record
    assert rows_of([made["once"]]) == rows_of([rows(*went, *([] if missed else [("c", 38_000)]))])
    assert [row["id"] for row in made["late"].to_pylist()] == [one for one, _ in missed]
    assert made.late["distinct_id"] == len(missed)
    assert sum(made["counts"].column("n").to_pylist()) == made["once"].num_rows and not made.late["counts"]


def streams(**columns: pa.DataType) -> dict[str, Stream]:
    build = Build(lambda function, schema, where: schema)
    return {"orders": Stream(build, Input("orders", (), pa.schema(columns), None, 0))}


def timed(stream: Stream) -> Stream:
    return stream.event_time("at").map_batches(lambda rows: rows.select(["id", "at"]))


def test_its_name_and_key_are_those_of_its_columns() -> None:
    mine = streams(id=pa.int64(), Shop=pa.string(), at=pa.timestamp("us"))
    timed = mine["orders"].event_time("at")
    timed.key_by("Shop").distinct("id", within="1 minute")
    timed.key_by("Shop").distinct(within="1 minute", name="shops")
    first, second = (one.descriptor for one in timed.build.operators)
    assert (first.name, [name for name, _ in first.key]) == ("distinct_shop_id", ["Shop", "id"])
    assert (second.name, [name for name, _ in second.key]) == ("shops", ["Shop"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: timed(s).distinct(within="1s"), "name at least one column"),
        (lambda s: timed(s).distinct("no", within="1s"), "no column 'no'"),
        (lambda s: timed(s).distinct("id", within="0s"), "distinct 'distinct_id': within='0s' is not a span in which"),
        (lambda s: timed(s).distinct("id", within=5), 'within: 5 has no unit; write "5ms" or "5s"'),
        (lambda s: timed(s).distinct("id", within="1s", order="id8"), "no column 'id8' to order by"),
        (lambda s: timed(s).distinct("id", within="1s", name="Mine"), "operator name 'Mine': use lower-case letters"),
        (lambda s: timed(s).distinct("id", within="1s", late="late"), "late='late' is not a sink"),
        (lambda s: s.event_time("at").distinct("id", within="1s"), "output: column 'tags' cannot be list"),
        (lambda s: s.distinct("id", within="1s"), r"no event time; call \.event_time"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(SpecRefused, match=message):
        make(streams(id=pa.int64(), at=pa.timestamp("us"), tags=pa.list_(pa.string()))["orders"])
