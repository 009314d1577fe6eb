"""Aggregates of columns of many types: as they are in the files, or through Spark's SQL before, between and behind two operators."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import ferry


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The files that are there when the job begins."""
    return {"sales": ferry.parquet_files(args["sales"], finite=True)}


def all_of(rows: Any) -> Any:
    """Spark sees them."""
    return rows.where("1 = 1")


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """By shop and 10 s; with `again` all shops together by 20 s."""
    again = all_of if args["again"] else None
    sales = streams["sales"].transform(all_of) if again else streams["sales"]
    keyed = sales.event_time("at", delay="5s").key_by("shop").window(ferry.tumbling("10s"), bounds=pa.int64())
    fired = keyed.aggregate(
        "sales", total=ferry.sum("price"), usual=ferry.mean("price"), low=ferry.min("price"), high=ferry.max("price"),
        since=ferry.min("at"), until=ferry.max("at"), day=ferry.last("day"), member=ferry.max("member"),
        took=ferry.sum("took"), dearest=ferry.arg_max("opened", by="price"), great=ferry.sum("great"),
        prices=ferry.approx_count_distinct("price"),
    )  # fmt: skip
    if not again:
        return [fired.sink(ferry.parquet("sales")), *texts_of(sales)]
    together = fired.transform(all_of).map_batches(one_key).key_by("one").window(ferry.tumbling("20s"))
    summed = together.aggregate(
        "again", total=ferry.sum("total"), low=ferry.min("low"), high=ferry.max("high"), since=ferry.min("since"),
        until=ferry.max("until"), member=ferry.min("member"), took=ferry.sum("took"), great=ferry.sum("great"),
        dearest=ferry.arg_max("dearest", by="high"),
    )  # fmt: skip
    return summed.transform(all_of).sink(ferry.parquet("sales"))


def texts_of(sales: Any) -> list[Any]:
    """Strings in windows of time, sessions and windows of rows, and without a window and event time."""
    shops = sales.event_time("at", delay="10s").key_by("shop")
    words = {
        "low": ferry.min("note"), "high": ferry.max("note"), "a": ferry.first("note"), "z": ferry.last("note"),
        "dearest": ferry.arg_max("note", by="price"), "greatest": ferry.arg_max("price", by="note"), "total": ferry.sum("price"),
        "usual": ferry.mean("price"), "spread": ferry.stddev("price"), "notes": ferry.count("note"),
    }  # fmt: skip
    windows = shops.window(ferry.sliding("10s", "5s")).aggregate("windows", **words)
    sessions = shops.window(ferry.session("300ms")).aggregate(
        "sessions", **words, prices=ferry.approx_count_distinct("price")
    )
    rows = shops.window(ferry.rows(5)).aggregate("rows", ["shop", "at"], order="at", **words)
    timeless = {name: word for name, word in words.items() if name not in ("a", "z")}
    ever = sales.key_by("shop").aggregate("ever", emit=ferry.at_end(), **timeless)
    named = {"windows": windows, "sessions": sessions, "rows": rows, "ever": ever}
    return [stream.sink(ferry.parquet(name)) for name, stream in named.items()]


def one_key(rows: Any) -> Any:
    """The same for all."""
    return pa.table(rows).append_column("one", pa.array([0] * rows.num_rows, pa.int64()))
