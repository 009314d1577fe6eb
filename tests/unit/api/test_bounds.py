"""Bounds of windows in the type of the event time, or in the one that is asked for."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import ferry
from ferry.api.bounds import WindowBounds
from ferry.api.pipeline import Build, Input
from ferry.api.stream import Stream
from ferry.contract.errors import DataRefused, SpecRefused
from ferry.spark.compile import CompiledPipeline
from ferry.spark.described import described

BERLIN = pa.timestamp("us", "Europe/Berlin")
KINDS = {
    pa.int64(): pa.int64(), pa.int32(): pa.int64(), BERLIN: BERLIN, pa.timestamp("ms"): pa.timestamp("ms"),
    pa.timestamp("s", "UTC"): pa.timestamp("ms", "UTC"), pa.timestamp("ns", "UTC"): pa.timestamp("us", "UTC"),
}  # fmt: skip
"""Of event times, and of bounds."""


def instants(kind: pa.DataType, *ms: int) -> pa.Array:
    if not pa.types.is_timestamp(kind):
        return pa.array(ms, kind)
    return pa.array(ms, pa.timestamp("ms")).cast(pa.timestamp(kind.unit)).view(kind)


def millis(column: pa.ChunkedArray) -> list[int]:
    return [
        value // {"us": 1000}.get(getattr(column.type, "unit", ""), 1) for value in column.cast(pa.int64()).to_pylist()
    ]


def everything(streams: Any, args: Any, **choice: Any) -> Any:
    """Windows, sessions and joins of all kinds, and an operator behind one that goes by the ends of its windows."""
    keyed = streams["rows"].event_time("at", delay="1s").key_by("k")
    windows, sessions = keyed.window(ferry.tumbling("10s"), **choice), keyed.window(ferry.session("5s"), **choice)
    counts = windows.aggregate("counts", n=ferry.count())
    later = counts.key_by("k").window(ferry.sliding("20s", "10s"))
    found = {
        "counts": counts, "texts": windows.aggregate("texts", n=ferry.min("k")),
        "visits": sessions.aggregate("visits", n=ferry.count()),
        "pairs": windows.join("pairs", keyed, {"n": "v"}, {"m": "v"}),
        "either": windows.join("either", keyed, {"n": "v"}, {"m": "v"}, "full"),
        "together": sessions.join("together", keyed, {"n": "v"}, {"m": "v"}),
        "later": later.aggregate("later", n=ferry.sum("n")),
    }  # fmt: skip
    return [stream.sink(ferry.parquet(name)) for name, stream in found.items()]


def rows(kind: pa.DataType) -> pa.Table:
    return pa.table({"k": ["a"] * 4, "at": instants(kind, -7000, -5000, 1000, 21_000), "v": [1, 2, 3, 4]})


EXPECTED = {
    "counts": [(-10_000, 0), (0, 10_000), (20_000, 30_000)],
    "visits": [(-7000, 0), (1000, 6000), (21_000, 26_000)],
    "pairs": [*[(-10_000, 0)] * 4, (0, 10_000), (20_000, 30_000)],
    "together": [*[(-7000, 0)] * 4, (1000, 6000), (21_000, 26_000)],
    "later": [(-20_000, 0), (-10_000, 10_000), (0, 20_000), (10_000, 30_000), (20_000, 40_000)],
}
EXPECTED |= {"texts": EXPECTED["counts"], "either": EXPECTED["pairs"]}


CHOICES = [*((kind, None) for kind in KINDS), (BERLIN, pa.int64()), (BERLIN, pa.timestamp("ms", "Asia/Kolkata"))]


@pytest.mark.parametrize(("kind", "wanted"), CHOICES, ids=str)
def test_bounds_have_the_type_of_the_event_time_or_of_the_users_choice(kind: Any, wanted: Any) -> None:
    choice = {} if wanted is None else {"bounds": wanted}
    made = ferry.test(lambda streams, args: everything(streams, args, **choice), {"rows": rows(kind)}, epochs=2)
    for name, pairs in EXPECTED.items():
        start, end = (made[name].column(bound) for bound in ("window_start", "window_end"))
        assert start.type == end.type == (wanted or KINDS[kind]), name
        assert sorted(zip(millis(start), millis(end), strict=True)) == pairs, name


def stream(**columns: pa.DataType) -> Stream:
    schema = pa.schema(columns)
    return Stream(Build(lambda function, schema, where: schema), Input("rows", (), schema, None, 0))


def test_state_knows_milliseconds_only_and_a_description_has_what_the_rows_have() -> None:
    one = stream(k=pa.string(), at=BERLIN)
    keyed = one.event_time("at").key_by("k")
    fired = keyed.window(ferry.tumbling("1m")).aggregate("n", n=ferry.count())
    again = (
        stream(k=pa.string(), at=BERLIN).event_time("at").key_by("k").window(ferry.tumbling("1m"), bounds=pa.int64())
    )
    again.aggregate("n", n=ferry.count())
    assert one.build.operators[0].descriptor == again.keyed.stream.build.operators[0].descriptor
    outputs = (fired.sink(ferry.console()),)
    told = described(CompiledPipeline({}, tuple(one.build.operators), outputs))
    assert told["operators"][0]["columns"]["window_end"] == str(BERLIN)
    assert told["outputs"][0]["reads"][0]["steps"] == [], "it is no step of the user's"


def test_a_bound_beyond_its_type_is_told() -> None:
    step = WindowBounds("n", pa.timestamp("ns"))
    batch = pa.record_batch({"window_start": [0], "window_end": [2**53]})
    with pytest.raises(
        DataRefused, match=r"operator 'n': window_end 9007199254740992 .* beyond timestamp\[ns\]; write"
    ):
        step(batch)


def test_what_cannot_be_a_type_of_bounds_is_refused() -> None:
    keyed = stream(k=pa.string(), at=BERLIN).event_time("at").key_by("k")
    for wrong in ("us", pa.timestamp("s"), pa.date32(), pa.int32()):
        with pytest.raises(
            SpecRefused, match=r"cannot be the type of window_start and window_end; give pyarrow\.int64"
        ):
            keyed.window(ferry.tumbling("1m"), bounds=wrong)  # type: ignore[arg-type]
    with pytest.raises(SpecRefused, match=r"is a window of rows, without window_start; leave bounds= out"):
        keyed.window(ferry.rows(3), bounds=pa.int64())  # type: ignore[call-overload]
    two = stream(k=pa.string(), at=BERLIN, ts=pa.int64())
    both = two.event_time("at").union(two.event_time("ts")).key_by("k")
    with pytest.raises(
        SpecRefused,
        match=r"different types, int64 and timestamp\[us, tz=Europe/Berlin\]; choose the type of window_start and window_end with bounds=",
    ):
        both.window(ferry.tumbling("1m"))
    assert both.window(ferry.tumbling("1m"), bounds=pa.int64()).bounds == pa.int64()
