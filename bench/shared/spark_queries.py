"""The queries that vanilla Spark runs, each as somebody who knows Spark would write it. It imports nothing of Ferry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

Conf = dict[str, Any]
Streams = dict[str, DataFrame]


def rows_of(spark: SparkSession, conf: Conf) -> DataFrame:
    """The result of the query that `query` names, over directories of Parquet files."""
    streams = {}
    for name, schema in conf["streams"].items():
        reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", conf["files_per_batch"])
        streams[name] = reader.parquet(f"{conf['input']}/{name}")
    return QUERIES[conf["query"]].rows(streams, conf)


def nbq5(streams: Streams, conf: Conf) -> DataFrame:
    """Bids per auction in sliding windows."""
    return _counts(streams["bid"], conf, "auction", F.window("t", "60 seconds", "10 seconds"))


def ysb(streams: Streams, conf: Conf) -> DataFrame:
    """Views per campaign in tumbling windows."""
    campaign = F.expr(f"ad_id div {conf['ads_per_campaign']}").alias("campaign_id")
    views = streams["ysb"].where("event_type = 'view'").select("ts", campaign)
    return _counts(views, conf, "campaign_id", F.window("t", f"{conf['window_ms']} milliseconds"))


def q11(streams: Streams, conf: Conf) -> DataFrame:
    """Bids per bidder in sessions."""
    return _counts(streams["bid"], conf, "bidder", F.session_window("t", "10 seconds").alias("window"))


def cm(streams: Streams, conf: Conf) -> DataFrame:
    """What the tasks of a job ask of processors, in tumbling windows."""
    made = [F.count("*").alias("num"), F.sum("cpu").alias("total_cpu"), F.avg("cpu").alias("avg_cpu")]
    return _aggregates(streams["cm"], conf, "job_id", F.window("t", "2 seconds"), made)


def counts_of_keys(streams: Streams, conf: Conf) -> DataFrame:
    """How often each key occurs; never over."""
    return streams["keys"].groupBy("key").count()


def q3(streams: Streams, conf: Conf) -> DataFrame:
    """Auctions of a category by sellers of three states; without a watermark, as nothing is ever forgotten."""
    people = streams["person"].where("state in ('OR', 'ID', 'CA')").select(F.col("id").alias("who"), *PERSON)
    auctions = streams["auction"].where("category = 10").select("seller", F.col("id").alias("auction"))
    return people.join(auctions, F.expr("who = seller")).select(*PERSON, "auction")


def q7(streams: Streams, conf: Conf) -> DataFrame:
    """The highest price of each window, joined with the bids that have it; two stateful operators in one query.

    A batch passes on no bid that another of it exceeds, as Ferry's does: else Spark would keep all bids of a window.
    """
    bids = streams["bid"]
    timed = _timed(bids.mapInArrow(_highest, bids.schema), conf).withColumn("window", F.window("t", "60 seconds"))
    top = timed.groupBy("window").agg(F.max("price").alias("price"))
    return timed.join(top, ["window", "price"]).select(*_bounds(), "auction", "bidder", "price", "ts", "seq")


class Query(NamedTuple):
    """How a query is run."""

    rows: Callable[[Streams, Conf], DataFrame]
    mode: str = "append"


QUERIES = {
    "nbq5": Query(nbq5),
    "ysb": Query(ysb),
    "ysb-100": Query(ysb),
    "cm": Query(cm),
    "ro": Query(counts_of_keys, "update"),
    "hash_count": Query(counts_of_keys, "update"),
    "q7": Query(q7),
    "q11": Query(q11),
    "q3": Query(q3),
}

PERSON = ("name", "city", "state")


def _timed(events: DataFrame, conf: Conf) -> DataFrame:
    timed = events.withColumn("t", F.timestamp_millis("ts"))
    return timed.withWatermark("t", f"{conf['delay_ms']} milliseconds")


def _counts(events: DataFrame, conf: Conf, key: str, window: Column) -> DataFrame:
    return _aggregates(events, conf, key, window, [F.count("*").alias("num")])


def _aggregates(events: DataFrame, conf: Conf, key: str, window: Column, made: list[Column]) -> DataFrame:
    grouped = _timed(events, conf).groupBy(window, key).agg(*made)
    return grouped.select(key, *_bounds(), *(name for name in grouped.columns if name not in ("window", key)))


def _bounds() -> list[Column]:
    return [F.expr(f"unix_millis(window.{end})").alias(f"window_{end}") for end in ("start", "end")]


def _highest(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of each batch, the bids that reach its highest price in their window."""
    for batch in batches:
        windows, window = np.unique(batch.column("ts").to_numpy() // 60_000, return_inverse=True)
        price = batch.column("price").to_numpy()
        top = np.zeros(windows.size, np.int64)
        np.maximum.at(top, window, price)
        yield batch.filter(pa.array(price == top[window]))
