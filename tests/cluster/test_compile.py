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
import pyspark
import pytest
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

import ferry
from ferry.contract.errors import SpecRefused
from ferry.spark import compile, private, transforms
from tests.unit.streams import RunningCount

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.core,
    pytest.mark.timeout(120),
    pytest.mark.xdist_group("one session of Spark"),
]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    session = (
        builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate()
    )
    yield session
    session.stop()


def test_private_parts_of_spark_are_there_or_named(spark: SparkSession) -> None:
    assert pyspark.__version__ == private.TRIED, "the parts of this version are those that the next line looks for"
    private.check(spark, tried="")
    for lacking, words in (
        ({"org.apache.spark.Gone": ()}, "lacks org.apache.spark.Gone, which Ferry needs; install PySpark 4.3"),
        ({"org.apache.spark.SparkContext": ("gone",)}, "lacks org.apache.spark.SparkContext.gone, which"),
    ):
        with pytest.raises(SpecRefused, match=words):
            private.check(spark, lacking, tried="")


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


def flows(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    return {"bid": ferry.parquet_files(args["files"], flow="{flow}.parquet")}


def counted(stream: Any, name: str = "counts") -> Any:
    return stream.event_time("ts").key_by("auction").window(ferry.tumbling("1s")).aggregate(name, n=ferry.count())


def plain(streams: Any, args: dict[str, Any]) -> Any:
    return counted(streams["bid"]).sink(ferry.console())


def streaming(spark: Any, args: dict[str, Any], change: Callable[[Any], Any] = lambda frame: frame) -> dict[str, Any]:
    schema = spark.read.parquet(args["files"]).schema
    return {"bid": change(spark.readStream.schema(schema).parquet(args["files"]))}


def begun(streams: Any, args: dict[str, Any]) -> Any:
    keyed, old = (streams[name].key_by("auction") for name in ("bid", "old"))
    made = keyed.transform_with_state("counts", RunningCount(), "auction LONG, n LONG", "None", initial_state=old)
    return made.sink(ferry.console())


def transformed(function: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda streams, args: counted(streams["bid"].transform(function)).sink(ferry.console())


def table(frame: Any) -> Any:
    """A table of its own, beside the stream."""
    return frame.sparkSession.createDataFrame([(3, 1, 5), (3, 2, 6)], "auction long, ts long, price long")


def pairs(frame: Any) -> Any:
    return frame.groupBy("auction").cogroup(frame.groupBy("auction"))


def query(frame: Any, text: str) -> Any:
    """Spark SQL on the views `bids` and `beside`."""
    frame.createOrReplaceTempView("bids")
    table(frame).createOrReplaceTempView("beside")
    return frame.sparkSession.sql(text)


BIDS = "ts long, auction long, price long"

STATEFUL: dict[str, Callable[[Any], Any]] = {
    "Aggregate": lambda f: f.groupBy("auction", "ts").count(),
    "Deduplicate": lambda f: f.distinct(),
    "Distinct": lambda f: query(f, "WITH dear AS (SELECT * FROM bids WHERE price > 5) SELECT DISTINCT * FROM dear"),
    "Except": lambda f: f.exceptAll(table(f)),
    "FlatMapCoGroupsInArrow": lambda f: pairs(f).applyInArrow(lambda a, b: a, BIDS),
    "FlatMapCoGroupsInPandas": lambda f: pairs(f).applyInPandas(lambda a, b: a, BIDS),
    "FlatMapGroupsInArrow": lambda f: f.groupBy("auction").applyInArrow(lambda a: a, BIDS),
    "FlatMapGroupsInPandas": lambda f: f.groupBy("auction").applyInPandas(lambda a: a, BIDS),
    "LocalLimit": lambda f: f.limit(3),
    "Intersect": lambda f: f.intersect(table(f).select(*f.columns)),
    "Join of two streams": lambda f: f.join(f.select("auction"), "auction"),
    "Filter of two streams": lambda f: f.where(f.ts.isin(3) | f.select("ts").where("ts > 3").exists()),
    "Offset": lambda f: f.offset(1),
    "Window": lambda f: f.withColumn("n", F.count("*").over(Window.partitionBy("auction"))),
}
"""By the plan node that is named: what a transform upstream must not do."""

REPEATED: dict[str, Callable[[Any], Any]] = {
    "Join that keeps the table": lambda f: table(f).join(f.select("auction"), "auction", "left"),
    "Join that keeps both": lambda f: f.join(table(f).select("auction"), "auction", "full"),
    "Join that keeps what is not found": lambda f: table(f).join(f.select("auction"), "auction", "anti"),
    "Union with the table": lambda f: f.unionByName(table(f)),
    "Filter of the table": lambda f: query(f, "SELECT * FROM beside WHERE auction NOT IN (SELECT auction FROM bids)"),
}


REFUSED: list[tuple[str, Callable[..., Any], Callable[..., Any], str]] = [
    *((n, splits, transformed(f), f"transform on source 'bid': Spark's {n} is stateful") for n, f in STATEFUL.items()),
    *((n, splits, transformed(f), f"Spark's {n.split()[0]} would return rows of the table") for n, f in REPEATED.items()),
    ("no DataFrame", splits, transformed(lambda f: 3), "must return a DataFrame, it returned 3"),
    ("fails", splits, transformed(lambda f: f.select("actuion")), "transform on source 'bid':"),
    ("loses the time", splits, transformed(lambda f: f.select("auction")), "event_time on source 'bid': no column 'ts'"),
    ("stateful source", lambda s, a: streaming(s, a, lambda f: f.dropDuplicates(["ts"])), plain, "source 'bid': Spark's Deduplicate"),
    ("joined source", lambda s, a: streaming(s, a, lambda f: f.join(f.select("ts"), "ts")), plain, "'bid': Spark's Join of two"),
    ("flows behind SQL", flows, transformed(lambda f: f.where("ts > 0")), "transform on source 'bid': the flow of a record would not be known"),
    ("flows twice", flows, lambda st, a: st["bid"].event_time("ts", flow="price").key_by("auction").aggregate("a", n=ferry.count()).sink(ferry.console()), "flow='price', but the source names its flows already"),
    ("endless initial state", lambda s, a: {**splits(s, a), "old": streaming(s, a)["bid"]}, begun, "initial_state comes from source 'old', which has no end"),
    ("batch source", lambda s, a: {"bid": s.read.parquet(a["files"])}, plain, "source 'bid': a batch DataFrame"),
    ("odd source", lambda s, a: {"bid": 3}, plain, "source 'bid': int is no source; use ferry.json_files("),
    ("unread source", lambda s, a: {**splits(s, a), "other": splits(s, a)["bid"]}, plain, "source 'other' is read by no operator"),
    ("no sources", lambda s, a: {}, plain, "must return a dict of named sources, not {} (test_compile.py:"),
    ("unknown source", splits, lambda st, a: counted(st["bids"]), "pipeline: no source 'bids'; there are bid"),
    ("no sink", splits, lambda st, a: counted(st["bid"]), "must return what .sink(...) returns"),
    ("too few arguments", splits, lambda st: None, "job: write pipeline(streams, args): "),
    ("an error of the user's", splits, lambda st, a: 1 // 0, "job.pipeline failed: ZeroDivisionError"),
]  # fmt: skip


@pytest.mark.parametrize(("sources", "pipeline", "text"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_mistakes_are_refused(
    spark: SparkSession, files: str, sources: Callable[..., Any], pipeline: Callable[..., Any], text: str
) -> None:
    with pytest.raises(SpecRefused) as refused:
        compile.build(spark, module(sources, pipeline), {"files": files})
    assert text in str(refused.value)


def test_sinks_may_be_at_every_stage(spark: SparkSession, files: str) -> None:
    def pipeline(streams: Any, args: dict[str, Any]) -> Any:
        first = counted(streams["bid"])
        return [
            first.sink(ferry.console()),
            first.key_by("n").window(ferry.tumbling("9s")).aggregate("b", m=ferry.count()).sink(ferry.console()),
        ]

    plan = compile.build(spark, module(splits, pipeline), {"files": files})
    assert [output.input.origin for output in plan.outputs] == [0, 1]


def test_what_is_right_is_built(spark: SparkSession, files: str) -> None:
    def pipeline(streams: Any, args: dict[str, Any]) -> Any:
        kept = streams["bid"].transform(lambda f: f.where("price > 5").withColumn("day", F.lit("mon")))
        fired = counted(kept).transform(lambda f: f.groupBy("window_start").agg(F.max("n").alias("top")))
        return fired.sink(ferry.console())

    plan = compile.build(spark, module(streaming, pipeline), {"files": files})
    assert [o.descriptor.name for o in plan.operators] == ["counts"]
    assert plan.outputs[0].input.schema.names == ["window_start", "top"]


@pytest.mark.parametrize("made", [splits, streaming])
def test_timestamps_are_event_times_and_keys_behind_spark(spark: SparkSession, files: str, made: Any) -> None:
    def dated(frame: Any) -> Any:
        return frame.withColumn("at", F.timestamp_seconds("ts")).withColumn("day", F.to_date("at"))

    def pipeline(streams: Any, args: dict[str, Any]) -> Any:
        keyed = streams["bid"].transform(dated).event_time("at").key_by("day", "at")
        fired = (
            keyed.window(ferry.tumbling("1s"))
            .aggregate("counts", n=ferry.count())
            .transform(lambda f: f.where("n > 0"))
        )
        return fired.sink(ferry.console())

    def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
        return streaming(spark, args, dated) if made is streaming else splits(spark, args)

    plan = compile.build(spark, module(sources, pipeline), {"files": files})
    assert plan.operators[0].descriptor.key == (("day", "date"), ("at", "timestamp[us, tz=UTC]"))
    assert plan.outputs[0].input.schema.types[:2] == [pa.date32(), pa.timestamp("us", "UTC")]


BESIDE: dict[str, Callable[[Any], Any]] = {
    "join": lambda f: f.join(table(f).select("auction"), "auction", "left"),
    "join from the other side": lambda f: table(f).select("auction").join(f, "auction", "right"),
    "join for its own columns": lambda f: f.join(table(f), "auction", "semi"),
    "join with what is aggregated": lambda f: f.join(table(f).groupBy("auction").count(), "auction"),
    "greater than an aggregate": lambda f: f.where(f.price > table(f).agg(F.max("price")).scalar()),
    "join in SQL": lambda f: query(
        f,
        "WITH top AS (SELECT auction, max(ts) FROM beside GROUP BY 1) SELECT bids.* FROM bids JOIN top USING (auction)",
    ),
    "union": lambda f: f.where("price > 5").unionByName(f.where("price < 5")),
}


@pytest.mark.parametrize("function", BESIDE.values(), ids=BESIDE)
@pytest.mark.parametrize("upstream", [True, False], ids=["transform", "source"])
def test_a_table_beside_the_stream_may_be_anything(
    spark: SparkSession, files: str, function: Callable[[Any], Any], upstream: bool
) -> None:
    if upstream:
        compile.build(spark, module(splits, transformed(function)), {"files": files})
    else:
        compile.build(spark, module(lambda s, a: streaming(s, a, function), plain), {"files": files})


def test_after_an_operator_a_transform_may_be_anything(spark: SparkSession, files: str) -> None:
    def pipeline(streams: Any, args: dict[str, Any]) -> Any:
        fired = counted(streams["bid"]).transform(lambda f: f.join(f.agg(F.max("n").alias("top"))).offset(1))
        again = fired.transform(lambda f: f.groupBy("auction").applyInPandas(lambda rows: rows, f.schema))
        last = again.key_by("auction").window(ferry.tumbling("9s")).aggregate("last", m=ferry.max("n"))
        return last.transform(lambda f: f.distinct()).sink(ferry.console())

    assert len(compile.build(spark, module(splits, pipeline), {"files": files}).operators) == 2


@pytest.mark.parametrize("name", [*transforms.STATEFUL, *transforms.UNIONS])
def test_spark_has_a_plan_node_of_this_name(spark: SparkSession, name: str) -> None:
    spark._jvm.java.lang.Class.forName(f"org.apache.spark.sql.catalyst.plans.logical.{name}")


def test_a_missing_module_and_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(SpecRefused, match=r"spec.pipeline: no_such_module cannot be imported"):
        compile.load("no_such_module", None)
    with pytest.raises(SpecRefused, match=r"spec.pipeline.file: no file"):
        compile.load(None, str(tmp_path / "x.py"))
