"""The streams that examples speak of: the real classes, without Spark. A transform is not tried, and keeps all columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import ferry
from ferry.api.pipeline import Build, Input
from ferry.api.stream import Stream

COLUMNS = {
    "bids": ("seq", "ts", "auction", "bidder", "price"),
    "auctions": ("id", "ts", "seller", "reserve"),
    "people": ("id", "ts", "name"),
}


@dataclass
class Latest(ferry.Process):
    """The last value of a column, by key."""

    column: str
    tables = {"latest": ferry.StateTable(pa.schema([("value", pa.int64())]))}
    output = pa.schema([("value", pa.int64())])

    def process(self, work: ferry.Work) -> None:
        value = work.rows().column(self.column).take(pa.array(work.spans()[1:] - 1))
        work.put("latest", np.arange(work.count), {"value": value})
        work.emit(np.arange(work.count), {"value": value})


class RunningCount(StatefulProcessor):
    """How many rows each key has had, as it would be written for Spark."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n LONG")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        before = self.count.get()
        n = (before[0] if before else 0) + sum(1 for _ in rows)
        self.count.update((n,))
        yield Row(auction=key[0], n=n)


def sources() -> dict[str, Stream]:
    """Streams of one pipeline; all columns are integers, but for names."""
    build = Build(lambda function, schema, where: schema)
    schemas = {
        name: pa.schema([(column, pa.string() if column == "name" else pa.int64()) for column in columns])
        for name, columns in COLUMNS.items()
    }
    return {name: Stream(build, Input(name, (), schema, None, 0)) for name, schema in schemas.items()}


def keyed(streams: dict[str, Stream]) -> Any:
    """The bids of each auction in windows of a minute."""
    return streams["bids"].event_time("ts").key_by("auction").window(ferry.tumbling("60s"))


def named() -> dict[str, Any]:
    """What an example may use: `ferry`, and the streams that the head of `ferry` names."""
    streams = sources()
    counts = keyed(sources()).aggregate("counts", num=ferry.count())
    return {
        "ferry": ferry,
        "Latest": Latest,
        "RunningCount": RunningCount,
        "per_auction": keyed(streams),
        "counts": counts,
        **streams,
    }
