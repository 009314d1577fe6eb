"""Vanilla Spark over the same stream: counts for each key, behind the filter of a program.

SMQ has counts of each batch here, not of each record, which would need a processor of its own; NBQ5 has one pane in place of
sliding windows. Both are less work for Spark.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bench.parts.reprogram import programs
from bench.parts.reprogram.case import SMQ, share
from bench.shared import vanilla_spark
from bench.shared.spark_source import source_of

COLUMN = {"smq": "seq", "nbq5": "key"}


def query(spark: SparkSession, conf: dict[str, Any]) -> Any:
    """Start the query of `program`."""
    name, args = conf["query_name"], conf["arguments"]

    make = partial(numbers_of, args)
    spark.dataSource.register(source_of(make, [COLUMN[name]], conf["cores"]))
    numbers = spark.readStream.format("paced").load()
    every, column = share(conf["program"]), F.col(COLUMN[name])
    passing = numbers.where(column % every == 0) if every > 1 else numbers
    key = (column % programs.INSTANCES if name == SMQ else column).alias("group")
    counts = [F.count("*").alias("num")]
    if conf["program"].endswith("_columns"):
        counts.append(F.sum(F.length(column)).alias("total"))
    return vanilla_spark.started(passing.groupBy(key).agg(*counts), conf, "update", "noop", None)


def numbers_of(args: dict[str, Any]) -> Any:
    """The stream of Ferry's programs."""
    return programs.sources(None, args)["numbers"]
