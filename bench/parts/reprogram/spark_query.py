"""Vanilla Spark over the same stream: counts for each key, behind the filter of a program, or a join of two streams.

SMQ has counts of each batch here, not of each record, which would need a processor of its own; NBQ5 has one pane in place of
sliding windows. Both are less work for Spark. NBQ8 reads the stream twice, once for each side of the join.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.parts.reprogram import programs
from bench.parts.reprogram.case import NBQ8, SMQ, share
from bench.shared import vanilla_spark
from bench.shared.paced_keys import CREATED, NUMBER
from bench.shared.spark_source import source_of

COLUMNS = {"smq": ["seq"], "nbq5": ["key"], "nbq8": ["key", NUMBER, CREATED]}


def query(spark: SparkSession, conf: dict[str, Any]) -> Any:
    """Start the query of `program`."""
    name, args = conf["query_name"], conf["arguments"]

    make = partial(numbers_of, args)
    spark.dataSource.register(source_of(make, COLUMNS[name], conf["cores"]))
    numbers = spark.readStream.format("paced").load()
    if name == NBQ8:
        return vanilla_spark.started(pairs(spark, conf), conf, "append", "noop", None)
    every, column = share(conf["program"]), F.col(COLUMNS[name][0])
    passing = numbers.where(column % every == 0) if every > 1 else numbers
    key = (column % programs.INSTANCES if name == SMQ else column).alias("group")
    counts = [F.count("*").alias("num")]
    if conf["program"].endswith("_columns"):
        counts.append(F.sum(F.length(column)).alias("total"))
    return vanilla_spark.started(passing.groupBy(key).agg(*counts), conf, "update", "noop", None)


def pairs(spark: SparkSession, conf: dict[str, Any]) -> DataFrame:
    """People and their auctions. The name of a person has 224 characters, as Ferry's have."""
    read = spark.readStream.format("paced")
    keys = F.lit(conf["arguments"]["keys"])
    name = F.concat(*(F.sha2((F.col("key") * 2 + i).cast("string"), 512) for i in (0, 1))).substr(F.lit(1), F.lit(224))
    people = read.load().where(F.col(NUMBER) < keys).select(F.col("key").alias("person"), name.alias("name"))
    columns = [F.col("key").alias("seller"), F.col(NUMBER).alias("auction")]
    if conf["program"].endswith("_columns"):
        columns.append(F.col(CREATED))
    auctions = read.load().where(F.col(NUMBER) >= keys).select(*columns)
    return people.join(auctions, F.col("person") == F.col("seller"))


def numbers_of(args: dict[str, Any]) -> Any:
    """The stream of Ferry's programs."""
    return programs.sources(None, args)["numbers"]
