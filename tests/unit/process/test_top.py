"""The greatest rows of each window against a loop that sorts all rows of it, with late records, ties and nulls."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ferry
from ferry.contract.errors import SpecRefused
from ferry.contract.limits import WATERMARK_END, WATERMARK_NONE
from ferry.process.harness import ProcessHarness
from ferry.process.top import ROWS, TopRows, ranks
from tests.unit.process.queries import rows_of
from tests.unit.process.test_distinct import streams

RECORDS = pa.schema([("k", pa.string()), ("ts", pa.int64()), ("x", pa.float64()), ("t", pa.string())])

record = st.tuples(
    st.sampled_from("ab"), st.integers(-20, 60), st.none() | st.sampled_from([0.0, -0.0, 1.5, -3.0, math.nan, math.inf]),
    st.none() | st.sampled_from(["", "a", "é"]),
)  # fmt: skip
epochs = st.lists(st.tuples(st.lists(record, max_size=8), st.integers(0, 25)), max_size=6)


def place_of(value: float) -> float:
    return 1e300 * 1e10 if math.isnan(value) else 1e300 if math.isinf(value) else value


def shown(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """NaN equals nothing."""
    return tuple("nan" if value != value else value for value in row)


@settings(max_examples=80, deadline=None)
@given(epochs, st.sampled_from([(10, 10), (20, 5), (15, 10)]), st.integers(1, 3), st.booleans(), st.booleans())
def test_rows_are_those_of_a_loop(
    given_: Any, window: tuple[int, int], n: int, descending: bool, by_text: bool
) -> None:
    (size, slide), sign = window, -1 if descending else 1
    process = TopRows(size, slide, n, ["x", "t"] if by_text else ["x"], {"x": "x", "text": "t"}, descending)
    rig = ProcessHarness(process, RECORDS, "k")
    windows: dict[tuple[str, int], list[Any]] = {}
    low, late = WATERMARK_NONE, 0
    for records, ahead in [*given_, ([], None)]:
        high = WATERMARK_END if ahead is None else ahead if low == WATERMARK_NONE else low + ahead
        for k, ts, x, t in records:
            last = ts // slide * slide
            ends = [start + size for start in range(last, ts - size, -slide)]
            late += all(end <= low for end in ends)
            for end in ends:
                if end > low and x is not None and (t is not None or not by_text):
                    windows.setdefault((k, end), []).append((ts, x, t))
        expected: Counter[Any] = Counter()
        for k, end in [at for at in windows if at[1] <= high]:

            def order(row: Any) -> Any:
                ts, x, t = row
                word = -1 if t is None else ["", "a", "é"].index(t)
                text = [sign * word] if by_text else []
                return [sign * place_of(x), *text, ts, 3 if word < 0 else word]

            some = sorted(windows.pop((k, end)), key=order)[:n]
            expected.update((k, end - size, end, place, *shown((x, t))) for place, (_, x, t) in enumerate(some, 1))
        rows = [dict(zip(("k", "ts", "x", "t"), one, strict=True)) for one in records]
        found = rig.epoch(rows, watermark=high)
        assert Counter(shown(row) for row in rows_of([found]).elements()) == expected
        assert rig.late == late and len(rig.rows(ROWS)) <= 2 * n * 30
        low = high
    assert not rig.rows(ROWS) and not rig.timers()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([3, None, 1, 3]), pa.array(["b", None, "a", "b"]), pa.array([0.0, None, -1.0, -0.0]),
        pa.array([math.nan, None, math.inf, math.nan]), pa.array([None, None, None, None], pa.int64()),
        pa.array([True, None, False, True]), pa.array([b"b", None, b"", b"b"], pa.large_binary()),
    ],
    ids=lambda column: str(column.type),
)  # fmt: skip
def test_places_of_values(column: pa.Array) -> None:
    expected = [0, 0, 0, 0] if column.null_count == 4 else [1, 2, 0, 1]
    assert ranks(column).tolist() == expected


def test_a_record_beyond_n_is_not_kept() -> None:
    rig = ProcessHarness(TopRows(10, 10, 2, ["x"], {"x": "x"}), RECORDS, "k")
    for begin in range(0, 100, 10):
        rig.epoch([{"k": "a", "ts": 1, "x": float(i), "t": ""} for i in range(begin, begin + 10)], watermark=0)
        assert len(rig.rows(ROWS)) == 2
    assert rig.end().to_pylist() == [
        {"k": "a", "window_start": 0, "window_end": 10, "rank": place, "x": x} for place, x in ((1, 99.0), (2, 98.0))
    ]


def test_in_a_pipeline() -> None:
    def pipeline(given_: Any, args: Any) -> Any:
        keyed = given_["orders"].event_time("at", delay="1s").key_by("id")
        least = keyed.window(ferry.tumbling("10s")).top_n("least", 2, by="x", descending=False, rank="place")
        again = (
            least.key_by("place")
            .window(ferry.tumbling("1m"))
            .top_n("again", 1, "x", {"who": "id", "x": "x"}, rank=None)
        )
        return [least.sink(ferry.parquet("least")), again.sink(ferry.parquet("again"))]

    times = pa.array([1000, 2000, 3000, 11_000, 4000], pa.timestamp("ms", "UTC"))
    made = ferry.test(
        pipeline, {"orders": pa.table({"id": list("aaaab"), "at": times, "x": [5, 3, 4, 9, 1]})}, epochs=2
    )
    assert made["least"].schema.names == ["id", "window_start", "window_end", "place", "at", "x"]
    assert made["least"].schema.field("window_end").type == pa.timestamp("ms", "UTC")
    found = [(row["id"], row["place"], row["x"]) for row in made["least"].to_pylist()]
    assert sorted(found) == [("a", 1, 3), ("a", 1, 9), ("a", 2, 4), ("b", 1, 1)]
    assert sorted((row["place"], row["who"], row["x"]) for row in made["again"].to_pylist()) == [
        (1, "a", 9),
        (2, "a", 4),
    ]


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"n": 0}, "top_n 'top': n=0 is not a number of rows; give a number from 1 to 1000"),
        ({"n": True}, "n=True is not a number of rows"),
        ({"by": []}, r"by=\[\] has to be the column that orders rows"),
        ({"by": 7}, "by=.* has to be the column"),
        ({"by": "price"}, "no column 'price'"),
        ({"columns": ["no"]}, "no column 'no'"),
        ({"columns": []}, "columns= is empty"),
        ({"columns": {"window_end": "x"}}, "would appear twice"),
        ({"columns": ["tags"]}, "column 'tags' cannot be list"),
        ({"rank": "x"}, r"output columns \['x'\] would appear twice"),
        ({"late": "late"}, "late='late' is not a sink"),
    ],
)
def test_what_cannot_be_is_refused(given_: dict[str, Any], message: str) -> None:
    mine = streams(id=pa.int64(), at=pa.timestamp("us"), x=pa.float64(), tags=pa.list_(pa.string()))["orders"]
    window = mine.event_time("at").key_by("id").window(ferry.tumbling("1s"))
    with pytest.raises(SpecRefused, match=message):
        window.top_n("top", **{"n": 3, "by": "x", "columns": ["x"], **given_})
