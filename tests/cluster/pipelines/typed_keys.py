"""Keys of many types, with nulls: as they are in the files, or through Spark's SQL before, between and behind two operators."""

from __future__ import annotations

from typing import Any

import ferry


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The files that are there when the job begins."""
    return {"sales": ferry.parquet_files(args["sales"], finite=True)}


def sold(rows: Any) -> Any:
    """No returns; of what an operator fired, all."""
    return rows.where("num > 0") if "num" in rows.columns else rows.where("cents > 0")


def direct(sales: Any, keys: list[str]) -> Any:
    """Sums by all keys."""
    keyed = sales.event_time("at", delay="5s").key_by(*keys).window(ferry.tumbling("10s"))
    return keyed.aggregate("sales", num=ferry.count(), total=ferry.sum("cents"))


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """By all keys; with `again` by the last one of these once more."""
    keys = args["keys"]
    if not args["again"]:
        return direct(streams["sales"], keys).sink(ferry.parquet("sales"))
    fired = direct(streams["sales"].transform(sold), keys).transform(sold)
    summed = fired.key_by(keys[-1]).window(ferry.tumbling("20s"))
    return (
        summed.aggregate("again", num=ferry.sum("num"), total=ferry.sum("total"))
        .transform(sold)
        .sink(ferry.parquet("sales"))
    )
