"""Sales that Spark's own source reads: a column says of which flow they are; beside them what shops have begun with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import ferry

SALES = "seq LONG, shop STRING, ts LONG, amount LONG, partition INT"


class Opening(StatefulProcessor):
    """Tells with each sale what its shop has begun with."""

    def init(self, handle: Any) -> None:
        self.begun = handle.getListState("begun", "amount LONG")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.begun.appendValue((initialState.amount,))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        begun = sum(amount for (amount,) in self.begun.get())
        yield from (Row(seq=row.seq, begun=begun) for row in rows)


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """A streaming DataFrame that takes two files at a time, and a source that ends."""
    sales = spark.readStream.schema(SALES).option("maxFilesPerTrigger", 2).parquet(args["sales"])
    return {"sales": sales, "opening": ferry.parquet_files(args["opening"], finite=True)}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Sums by shop and window, and each sale with what its shop has begun with."""
    sales = streams["sales"].event_time("ts", delay="1s", flow="partition").key_by("shop")
    sums = sales.window(ferry.tumbling("10s")).aggregate("sums", total=ferry.sum("amount"))
    begun = sales.transform_with_state(
        "begun", Opening(), "seq LONG, begun LONG", initial_state=streams["opening"].key_by("shop")
    )
    return [sums.sink(ferry.parquet("sums")), begun.sink(ferry.parquet("begun"))]
