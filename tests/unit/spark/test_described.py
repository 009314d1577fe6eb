"""What `ferry explain` is told of operators that are processes of Ferry's, and of a user's."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import ferry
from ferry.spark.compile import CompiledPipeline
from ferry.spark.described import described
from ferry_operator.local.graph import lines
from tests.unit.process.test_distinct import streams
from tests.unit.streams import Latest


def told(*made: Any) -> list[dict[str, Any]]:
    plan = CompiledPipeline({}, tuple(made[0].build.operators), tuple(stream.sink(ferry.console()) for stream in made))
    operators: list[dict[str, Any]] = described(plan)["operators"]
    return operators


def test_words_that_are_processes_say_what_they_compute_in_which_windows() -> None:
    mine = streams(id=pa.int64(), at=pa.timestamp("us"), x=pa.float64())["orders"].event_time("at")
    once = mine.distinct("id", within="10m")
    keyed = once.key_by("id")
    sliding, hours = ferry.sliding("10m", "5m"), ferry.tumbling("1h")
    found = told(
        keyed.window(sliding).aggregate("sets", n=ferry.count_distinct("x"), best=ferry.arg_max("x", by="at")),
        keyed.window(ferry.session("10s")).aggregate("visits", n=ferry.count_distinct("x")),
        keyed.window(hours).top_n("top", 3, by="x", rank=None),
        keyed.window(hours).aggregate("plain", n=ferry.sum("x")),
        keyed.process("own", Latest("x"), columns=["x"]),
    )
    assert [(one["name"], one["computes"], one["window"]) for one in found] == [
        ("distinct_id", ["Distinct(within_ms=600000)"], None),
        (
            "sets", ["WindowAggregate", "n=count_distinct(x)", "best=arg_max(x, at)"],
            {"size_ms": 600_000, "slide_ms": 300_000},
        ),
        ("visits", ["SessionAggregate(gap_ms=10000)", "n=count_distinct(x)"], None),
        ("top", ["TopRows(n=3, by=['x'], descending=True)"], {"size_ms": 3_600_000, "slide_ms": 3_600_000}),
        ("plain", ["n=sum(x)"], {"size_ms": 3_600_000, "slide_ms": 3_600_000}),
        ("own", ["Latest"], None),
    ]  # fmt: skip
    assert found[1]["reads"][0]["time"] == "at"


def test_the_span_of_an_operators_windows_is_told() -> None:
    keyed = streams(id=pa.int64(), at=pa.timestamp("us"))["orders"].event_time("at").key_by("id")
    sliding = ferry.sliding("10m", "5m")
    first, then = (
        keyed.window(sliding, **{name: "1970-01-01T00:10Z"}).aggregate(name, n=ferry.count())  # type: ignore[arg-type]
        for name in ("until", "since")
    )
    found = told(first, then)
    assert [(one["name"], one.get("since"), one.get("until")) for one in found] == [
        ("until", None, 600_000),
        ("since", 600_000, None),
    ]
    assert " until 1970-01-01T00:10:00+00:00, each once" in next(
        text for label, text in lines(plan_of(found)) if "until" in label
    )


def plan_of(operators: list[dict[str, Any]]) -> dict[str, Any]:
    return {"sources": [], "operators": operators, "outputs": [], "planned": ""}
