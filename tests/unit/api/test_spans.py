"""`since=` and `until=` of a window: the windows of one operator follow the windows of another one."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ferry
from ferry.contract.descriptors import Span, Window
from ferry.contract.errors import SpecRefused

CUT = 24_000
SIZES = [((2000, 2000), (6000, 6000)), ((4000, 2000), (6000, 3000)), ((6000, 1000), (8000, 8000))]


def windows(times: np.ndarray[Any, Any], size: int, slide: int) -> Counter[int]:
    """Number of records by the start of each window."""
    return Counter(
        start for t in times.tolist() for start in range(t // slide * slide - size + slide, t + 1, slide) if start <= t
    )


@pytest.mark.parametrize(("old", "new"), SIZES)
def test_windows_follow_each_other_at_a_time_and_none_is_partial(old: tuple[int, int], new: tuple[int, int]) -> None:
    def pipeline(streams: Any, args: Any) -> Any:
        keyed = streams["s"].event_time("ts", delay="1s").key_by("k")
        before = keyed.window(ferry.sliding(*(f"{ms}ms" for ms in old)), until=CUT).aggregate("before", n=ferry.count())
        after = keyed.window(ferry.sliding(*(f"{ms}ms" for ms in new)), since=CUT).aggregate("after", n=ferry.count())
        return [before.sink(ferry.parquet("before")), after.sink(ferry.parquet("after"))]

    times = np.random.default_rng(5).integers(0, 60_000, 3000)
    results = ferry.test(pipeline, {"s": pa.table({"k": np.zeros(3000, np.int64), "ts": np.sort(times)})}, epochs=7)
    for name, size, low, high in (("before", old, -old[0], CUT), ("after", new, CUT, 99_999)):
        expected = {start: n for start, n in windows(times, *size).items() if low <= start < high}
        assert {r["window_start"]: r["n"] for r in results[name].to_pylist()} == expected
        assert results[name].num_rows == len(expected) > 3


def test_records_after_the_end_of_a_span_let_its_windows_fire_and_late_records_are_of_one_operator() -> None:
    def pipeline(streams: Any, args: Any) -> Any:
        keyed = streams["s"].event_time("ts").key_by("k")
        first = keyed.window(ferry.tumbling("1s"), until=2000)
        then = keyed.window(ferry.tumbling("2s"), since=2000)
        return [
            first.aggregate("first", late=ferry.parquet("late"), n=ferry.count()).sink(ferry.parquet("a")),
            then.aggregate("then", late=ferry.parquet("later"), n=ferry.count()).sink(ferry.parquet("b")),
        ]

    epochs = [[{"k": 1, "ts": t} for t in each] for each in ([500, 1500], [2500, 5000], [700, 2600, 6000])]
    results = ferry.test(pipeline, {"s": [pa.Table.from_pylist(each) for each in epochs]})
    assert [(r["window_start"], r["n"]) for r in results["a"].to_pylist()] == [(0, 1), (1000, 1)]
    assert [(r["window_start"], r["n"]) for r in results["b"].to_pylist()] == [(2000, 1), (4000, 1), (6000, 1)]
    assert [r["ts"] for r in results["late"].to_pylist()] == [700]
    assert [r["ts"] for r in results["later"].to_pylist()] == [2600]


def test_both_sides_of_a_join_and_rows_of_an_operator_have_the_span() -> None:
    def pipeline(streams: Any, args: Any) -> Any:
        left, right = (streams[name].event_time("ts").key_by("k") for name in ("l", "r"))
        joined = left.window(ferry.tumbling("1s"), since=1000).join("both", right, ["k"], {"at": "ts"})
        sums = right.window(ferry.tumbling("1s")).aggregate("n", n=ferry.count()).key_by("k")
        again = sums.window(ferry.tumbling("2s"), until=2000).aggregate("again", n=ferry.sum("n"))
        return [joined.sink(ferry.parquet("joined")), again.sink(ferry.parquet("again"))]

    rows = [{"k": 1, "ts": t} for t in (200, 1200, 2200, 3200)]
    results = ferry.test(pipeline, {"l": rows, "r": rows})
    assert results["joined"].column("at").to_pylist() == [1200, 2200, 3200]
    assert [(r["window_start"], r["n"]) for r in results["again"].to_pylist()] == [(0, 2)]


@pytest.mark.parametrize("at", [CUT, "24000", "1970-01-01T00:00:24Z", datetime(1970, 1, 1, 0, 0, 24, tzinfo=UTC)])
def test_a_time_is_a_text_a_datetime_or_milliseconds(at: Any) -> None:
    from ferry.api.spans import span_of

    span = span_of(Window(4000, 2000), None, at)
    assert span is not None and (span.until, span.high) == (CUT, CUT + 2000)
    assert span_of(Window(4000, 2000), at, None) == Span(CUT, 2**61 + 2000, 2**61)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"until": 25_001}, "until=25001 is not the start of a window.* multiples of 2000 ms .* are 24000 and 26000"),
        ({"since": "2026-12-01T00:00"}, "window: since= 2026-12-01T00:00: add the time zone: 2026-12-01T00:00Z,"),
        ({"since": "2026-12-01"}, "window: since= 2026-12-01: add the time zone: 2026-12-01T00:00Z,"),
        ({"since": "soon"}, "window: since= soon: a time is 2026-11-22T10:00Z"),
        ({"since": 4000, "until": 4000}, "since=4000 is not before until=4000"),
        ({"until": 2**62}, "is beyond all event times"),
        ({"until": True}, "a time is"),
    ],
)
def test_a_span_without_sense_is_refused(options: dict[str, Any], words: str) -> None:
    def pipeline(streams: Any, args: Any) -> Any:
        keyed = streams["s"].event_time("ts").key_by("k").window(ferry.sliding("4s", "2s"), **options)
        return keyed.aggregate("n", n=ferry.count()).sink(ferry.parquet("n"))

    with pytest.raises(SpecRefused, match=words):
        ferry.test(pipeline, {"s": [{"k": 1, "ts": 1}]})


@pytest.mark.parametrize("window", [ferry.session("1s"), ferry.rows(3)])
def test_only_windows_of_a_fixed_place_have_a_span(window: Any) -> None:
    def pipeline(streams: Any, args: Any) -> Any:
        return streams["s"].event_time("ts").key_by("k").window(window, since=0)

    with pytest.raises(SpecRefused, match="since= and until= are for tumbling and sliding windows, not for"):
        ferry.test(pipeline, {"s": [{"k": 1, "ts": 1}]})
