"""A table of all types goes through Spark to a sink, and is what vanilla Spark reads and computes of the same files."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import ferry
from ferry.driver import session
from ferry.spark import compile, emit, feeds, frames
from tests.unit import every_type as every

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.turns,
    pytest.mark.timeout(280),
    pytest.mark.xdist_group("one session of Spark"),
]

WITHIN = 2**63 // 10**6 - 1
"""Seconds of timestamps that Spark has."""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[1]")
    for key, value in session.OURS.items():
        if key.startswith("spark.sql.") or key in ("spark.ui.enabled", "spark.driver.host", "spark.driver.bindAddress"):
            builder = builder.config(key, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()


def columns() -> dict[str, pa.Array]:
    """All that Parquet and Spark can hold, alone and inside of others, and all of one length."""
    made: dict[str, pa.Array] = {}
    for column in every.COLUMNS.values():
        kind = column.type
        if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
            raw, most = column.cast(pa.int64()), WITHIN * every.SECONDS[kind.unit]
            column = pc.if_else(pc.less(pc.abs_checked(raw), min(most, 2**63 - 1)), raw, None).cast(kind)
        for array in (column, *every.nested(column).values()):
            try:
                frames.require_types(pa.schema([("x", array.type)]), "test")
                pq.write_table(pa.table({"x": array}), pa.BufferOutputStream())
            except (ferry.SpecRefused, pa.ArrowInvalid, pa.ArrowNotImplementedError):
                continue
            made[f"c{len(made)}"] = array
    longest = max(map(len, made.values()))
    return {name: pa.concat_arrays([one, pa.nulls(longest - len(one), one.type)]) for name, one in made.items()}


def vanilla(spark: SparkSession, directory: Path, names: list[str]) -> dict[str, str]:
    """The columns that Spark reads from these files as its own types, and these."""
    found = {}
    for name in names:
        try:
            kind = spark.read.parquet(str(directory / name)).schema[name].dataType.simpleString()
        except Exception as missing:
            assert "PARQUET_TYPE_ILLEGAL" in str(missing), name  # half floats, nanoseconds, times in milliseconds
            continue
        found[name] = kind
    return found


def texts(frame: DataFrame, name: str) -> Counter[str]:
    """Values as Spark writes them."""
    rows = frame.select(F.to_json(F.struct(F.col(name).alias("x")))).collect()
    return Counter(row[0] for row in rows)


def test_all_types_are_what_vanilla_spark_reads(spark: SparkSession, tmp_path: Path) -> None:
    given = columns()
    files = tmp_path / "in"
    files.mkdir()
    pq.write_table(pa.table(given), files / "all.parquet")
    for name, array in given.items():
        pq.write_table(pa.table({name: array}), tmp_path / name)

    def same(rows: Any) -> Any:
        return rows

    module = ModuleType("job")
    module.sources = lambda spark, args: {"all": ferry.parquet_files(files, finite=True)}  # type: ignore[attr-defined]
    module.pipeline = lambda streams, args: [  # type: ignore[attr-defined]
        streams["all"].sink(ferry.parquet("plain")),
        streams["all"].map_batches(same).transform(same).map_batches(same).sink(ferry.parquet("through")),
    ]
    plan = compile.build(spark, module, {}, str(tmp_path / "out"))
    source: Any = plan.sources["all"]
    (share,) = source.plan(source.start(), source.latest(source.start(), 10**6), 1)
    batch = spark.createDataFrame([("all", json.dumps(share))], "source string, split string")
    read = vanilla(spark, tmp_path, list(given))
    assert len(read) > 0.6 * len(given)
    for output in plan.outputs:
        frame = partial(feeds.records_frame, spark, batch, plan, output.input)
        output.sink.open(-1)
        output.sink.write(0, 1, emit.result(spark, output, None, frame))
        (folder,) = (tmp_path / "out").glob(f"{output.sink.declared}/epoch=0")  # type: ignore[attr-defined]
        written = pa.concat_tables([pq.read_table(part, partitioning=None) for part in sorted(folder.glob("part-*"))])
        frame_written = spark.read.parquet(str(folder))
        for name, array in given.items():
            back = pq.read_table(tmp_path / name, partitioning=None)
            wanted = frames.for_spark(back)
            assert every.seen(written[name]) == every.seen(wanted[name]), (name, array.type)
            if (
                name in read
                and "interval" not in str(frames.spark_schema(back.schema).simpleString())
                and back[name].type != pa.null()
            ):
                assert frame_written.schema[name].dataType.simpleString() == read[name], (name, array.type)


def test_aggregates_of_all_types_are_what_vanilla_spark_computes(spark: SparkSession, tmp_path: Path) -> None:
    compared = 0
    for number, (name, column) in enumerate(every.COLUMNS.items()):
        kind = column.type
        if pa.types.is_timestamp(kind) and kind.unit != "us":
            continue
        path = tmp_path / f"{number}.parquet"
        try:
            pq.write_table(pa.table({"x": column}), path)
            frame = spark.read.parquet(str(path))
            own = frame.schema["x"].dataType.simpleString()
        except Exception:
            continue
        if own != frames.spark_schema(pa.schema([("x", kind)]))["x"].dataType.simpleString() or kind == pa.uint64():
            continue
        functions = {"n": ferry.count("x"), "low": ferry.min("x"), "high": ferry.max("x")}
        theirs = [F.count("x").alias("n"), F.min("x").alias("low"), F.max("x").alias("high")]
        if pa.types.is_floating(kind):
            functions |= {"mean": ferry.mean("x"), "spread": ferry.stddev("x")}
            theirs += [F.avg("x").alias("mean"), F.stddev_samp("x").alias("spread")]
        build, stream, batch = every.stream_of(column)
        try:
            keyed = stream.event_time("t").key_by("k").window(ferry.tumbling("1h"))
            keyed.aggregate("op", aggregator=functions)
        except ferry.SpecRefused:
            continue
        if build.operators[-1].descriptor.kind == "process":
            continue
        rows = every.fired_of(build, batch, "k", tmp_path / f"state{number}")[0].select([*functions])
        made = frames.frame_of(spark, pa.Table.from_batches([rows]))
        expected = frame.agg(*theirs).select([F.col(f.name).cast(f.dataType) for f in made.schema])
        (found,), (wanted,) = (one.select(F.to_json(F.struct("*"))).collect() for one in (made, expected))
        assert found == wanted, name
        compared += 1
    nanoseconds = [1_710_037_800_000_000_000 + i for i in range(100)]
    build, stream, batch = every.stream_of(pa.array(nanoseconds))
    stream.event_time("t").key_by("k").window(ferry.tumbling("1h")).aggregate("op", m=ferry.mean("x"))
    rows = every.fired_of(build, batch, "k", tmp_path / "mean")[0]
    (theirs_,) = spark.createDataFrame([(n,) for n in nanoseconds], "x long").agg(F.avg("x")).first() or (None,)
    assert rows.column("m")[0].as_py() == pytest.approx(theirs_, rel=1e-15)
    assert compared >= 20
