"""Clicks from JSON files and views from Parquet files; what comes too late for an operator goes to a sink of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import ferry

SCHEMA = pa.schema([("user", pa.string()), ("ts", pa.int64()), ("amount", pa.int64())])


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The files that are there when the job begins."""
    return {
        "clicks": ferry.json_files(args["clicks"], SCHEMA, finite=True),
        "views": ferry.parquet_files(args["views"], finite=True),
    }


def paid(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Those that brought something, with one column more."""
    batch = batch.filter(pc.greater_equal(batch.column("amount"), 0))
    return batch.append_column("cents", pc.multiply(batch.column("amount"), 100))


class Echo(StatefulProcessor):
    """Gives what it is given."""

    def init(self, handle: Any) -> None:
        """Nothing is kept."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        yield from (Row(user=key[0], ts=row.ts) for row in rows)


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Operators of every kind that leaves late records out; one source, a join, united streams, and one behind another."""
    clicks, views = streams["clicks"].event_time("ts"), streams["views"]
    per_user = clicks.key_by("user")
    minutes = per_user.window(ferry.tumbling("10s"))
    sums = minutes.aggregate("sums", num=ferry.count(), total=ferry.sum("amount"), late=ferry.parquet("late_sums"))
    sessions = clicks.map_batches(paid).event_time("ts").key_by("user").window(ferry.session("3s"))
    visits = sessions.aggregate("visits", num=ferry.count(), late=ferry.parquet("late_visits"))
    short = views.transform(lambda rows: rows.where("amount < 90")).event_time("ts", delay="2s").key_by("user")
    both = per_user.window(ferry.sliding("10s", "5s")).join(
        "both",
        short,
        {"user": "user", "click": "ts"},
        {"view": "ts"},
        late=(ferry.parquet("late_clicks"), ferry.parquet("late_views")),
    )
    either = streams["clicks"].union(views.transform(lambda rows: rows)).event_time("ts", delay="1s").key_by("user")
    seen = either.window(ferry.sliding("10s", "5s")).aggregate(
        "seen", num=ferry.count(), late=ferry.parquet("late_seen")
    )
    pairs = per_user.window(ferry.rows(2)).aggregate("pairs", ["user", "ts"], order="ts", most=ferry.max("amount"))
    again = pairs.event_time("ts").key_by("user").window(ferry.tumbling("4s"))
    tops = again.aggregate("tops", num=ferry.count(), late=ferry.parquet("late_tops"))
    near = per_user.join(
        "near",
        views.event_time("ts").key_by("user"),
        {"user": "user", "click": "ts"},
        {"view": "ts"},
        within=("-2s", "3s"),
        late=(ferry.parquet("late_near_clicks"), ferry.parquet("late_near_views")),
    )
    echo = per_user.transform_with_state("echo", Echo(), "user STRING, ts LONG", late=ferry.parquet("late_echo"))
    fired = {"sums": sums, "visits": visits, "both": both, "seen": seen, "tops": tops, "near": near, "echo": echo}
    return [stream.sink(ferry.parquet(name)) for name, stream in fired.items()]
