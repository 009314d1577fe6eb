"""What only Spark can see is refused when the pipeline is built, by name and with what to do. One local session."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import ferry
from ferry.contract.errors import SpecRefused
from ferry.spark import compile

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    session = (
        builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("bids")
    pq.write_table(pa.table({"ts": [1, 2], "auction": [3, 4], "price": [5, 6]}), directory / "a.parquet")
    return str(directory)


def module(sources: Callable[..., Any], pipeline: Callable[..., Any]) -> ModuleType:
    made = ModuleType("job")
    made.sources, made.pipeline = sources, pipeline  # type: ignore[attr-defined]
    return made


def splits(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    return {"bid": ferry.parquet_files(args["files"])}


def json_lines(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    return {"bid": ferry.json_files(args["files"], pa.schema([("ts", pa.int64()), ("auction", pa.int64())]))}


def counted(stream: Any, name: str = "counts") -> Any:
    return stream.event_time("ts").key_by("auction").window(ferry.tumbling("1s")).aggregate(name, n=ferry.count())


def plain(streams: Any, args: dict[str, Any]) -> Any:
    return counted(streams["bid"]).sink(ferry.console())


def streaming(spark: Any, args: dict[str, Any], change: Callable[[Any], Any] = lambda frame: frame) -> dict[str, Any]:
    schema = spark.read.parquet(args["files"]).schema
    return {"bid": change(spark.readStream.schema(schema).parquet(args["files"]))}


def transformed(function: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda streams, args: counted(streams["bid"].transform(function)).sink(ferry.console())


REFUSED: list[tuple[str, Callable[..., Any], Callable[..., Any], str]] = [
    ("aggregate upstream", splits, transformed(lambda f: f.groupBy("auction", "ts").count()), "Spark's Aggregate is stateful"),
    ("distinct upstream", splits, transformed(lambda f: f.distinct()), "transform on source 'bid': Spark's Deduplicate is stateful"),
    ("limit upstream", splits, transformed(lambda f: f.limit(3)), "Limit is stateful"),
    ("no DataFrame", splits, transformed(lambda f: 3), "must return a DataFrame, it returned 3"),
    ("fails", splits, transformed(lambda f: f.select("actuion")), "transform on source 'bid':"),
    ("loses the time", splits, transformed(lambda f: f.select("auction")), "event_time on source 'bid': no column 'ts'"),
    ("stateful source", lambda s, a: streaming(s, a, lambda f: f.dropDuplicates(["ts"])), plain, "source 'bid': Spark's Deduplicate"),
    ("malformed behind SQL", json_lines, transformed(lambda f: f.where("ts > 0")), "transform on source 'bid': malformed records"),
    ("batch source", lambda s, a: {"bid": s.read.parquet(a["files"])}, plain, "source 'bid': a batch DataFrame"),
    ("odd source", lambda s, a: {"bid": 3}, plain, "source 'bid': int is neither a streaming DataFrame nor"),
    ("no sources", lambda s, a: {}, plain, "must return a dict of named sources"),
    ("unknown source", splits, lambda st, a: counted(st["bids"]), "pipeline: no source 'bids'; there are bid"),
    ("no sink", splits, lambda st, a: counted(st["bid"]), "must return what .sink(...) returns"),
    ("too few arguments", splits, lambda st: None, "job.pipeline must take 2 arguments: too many positional arguments"),
    ("an error of the user's", splits, lambda st, a: 1 // 0, "job.pipeline failed: ZeroDivisionError"),
]  # fmt: skip


@pytest.mark.parametrize(("sources", "pipeline", "text"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_mistakes_are_refused(
    spark: SparkSession, files: str, sources: Callable[..., Any], pipeline: Callable[..., Any], text: str
) -> None:
    with pytest.raises(SpecRefused) as refused:
        compile.build(spark, module(sources, pipeline), {"files": files})
    assert text in str(refused.value)


def test_a_sink_in_the_middle_is_refused(spark: SparkSession, files: str) -> None:
    def pipeline(streams: Any, args: dict[str, Any]) -> Any:
        first = counted(streams["bid"])
        return [
            first.sink(ferry.console()),
            first.key_by("n").window(ferry.tumbling("9s")).aggregate("b", m=ferry.count()).sink(ferry.console()),
        ]

    with pytest.raises(SpecRefused, match="a sink reads operator 'counts'; only the last operator"):
        compile.build(spark, module(splits, pipeline), {"files": files})


def test_what_is_right_is_built(spark: SparkSession, files: str) -> None:
    def pipeline(streams: Any, args: dict[str, Any]) -> Any:
        kept = streams["bid"].transform(lambda f: f.where("price > 5").withColumn("day", F.lit("mon")))
        fired = counted(kept).transform(lambda f: f.groupBy("window_start").agg(F.max("n").alias("top")))
        return fired.sink(ferry.console())

    plan = compile.build(spark, module(streaming, pipeline), {"files": files})
    assert [o.shape.name for o in plan.operators] == ["counts"]
    assert plan.outputs[0].input.schema.names == ["window_start", "top"]


def test_a_missing_module_and_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(SpecRefused, match=r"spec.pipeline: no_such_module cannot be imported"):
        compile.load("no_such_module", None)
    with pytest.raises(SpecRefused, match=r"spec.pipeline.file: no file"):
        compile.load(None, str(tmp_path / "x.py"))
