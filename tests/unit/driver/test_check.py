"""A pipeline is built without anything being started: each mistake is told with the line of the user's file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ferry.driver import check, session

PROGRAM = """
import pyarrow as pa
import ferry

ORDERS = pa.schema([("shop", pa.string()), ("ts", pa.int64()), ("cents", pa.int64())])


def sources(spark, args):
    return {"orders": ferry.json_files(args["directory"], ORDERS)}


def pipeline(streams, args):
    orders = streams["orders"].event_time("ts", delay="3s")
    minutes = orders.key_by("shop").window(ferry.tumbling("10 seconds"))
    sales = minutes.aggregate("sales", n=ferry.count(), cents=ferry.sum("cents"))
    return sales.sink(ferry.parquet("sales"))
"""

MISTAKES = [
    ('"shop")', '"shopp")', "no column 'shopp'; there are shop, ts, cents", 14),
    ('key_by("shop")', 'group_by("shop")', "has no attribute 'group_by'", 14),
    ('.key_by("shop").window', ".window", "it is a step behind .key_by(...)", 14),
    ('"10 seconds"', '"ten"', "size: 'ten' is not a duration", 14),
    ('"10 seconds"', "10", 'size: 10 has no unit; write "10ms" or "10s"', 14),
    ('delay="3s"', "delay=3", 'delay: 3 has no unit; write "3ms" or "3s"', 13),
    ('delay="3s"', 'dely="3s"', "unexpected keyword argument 'dely'", 13),
    ('event_time("ts"', "event_time(ts", "name 'ts' is not defined", 13),
    ('event_time("ts"', 'event_time("shop"', "column 'shop' is string; int64 milliseconds or a timestamp", 13),
    ('.event_time("ts", delay="3s")', "", "no event time; call .event_time", 14),
    ("ferry.count()", "ferry.count", "is not an aggregate; use count()", 15),
    ("ferry.count()", '"count"', "n='count' is not an aggregate", 15),
    ('ferry.sum("cents")', 'ferry.summ("cents")', "did you mean 'sum'?", 15),
    ('ferry.sum("cents")', 'ferry.sum("cent")', "cents needs column 'cent'", 15),
    ('ferry.sum("cents")', 'ferry.sum("shop")', "column 'shop' is string, and sum takes integers", 15),
    ('"sales", n=', "n=", "missing 1 required positional argument: 'name'", 15),
    ('n=ferry.count(), cents=', 'shop=ferry.count(), cents=', "'shop' is already an output column", 15),
    (
        'minutes.aggregate("sales", n=ferry.count(), cents=ferry.sum("cents"))',
        'minutes.keyed.join("sales", minutes.keyed, ["shop"], {"n": "cents"}, how="left")',
        "operator 'sales': how='left' needs within=",
        15,
    ),
    ("minutes.aggregate", "minutes.agregate", "did you mean 'aggregate'?", 15),
    ("sales.sink(", "sales.write(", "here it is .sink(ferry.parquet(directory)), or another sink", 16),
    ('sales.sink(ferry.parquet("sales"))', "sales", "not <stream of operator 'sales': shop string", 12),
    ("return sales", "sales", "must return what .sink(...) returns (or a list of them), not None", 12),
    ('ferry.parquet("sales"))', "print)", "print is not a sink; use ferry.parquet", 16),
    ('ferry.parquet("sales"))', "lambda rows: None)", "is not a sink; use ferry.parquet", 16),
    ('streams["orders"]', 'streams["order"]', "no source 'order'; there are orders", 13),
    ('args["directory"]', 'args["dir"]', "spec.pipeline.args has no 'dir'; there are directory", 9),
    (", ORDERS)", ', "shop STRING")', "give a pyarrow.schema", 9),
    (", ORDERS)", ', {"shop": str})', "give a pyarrow.schema", 9),
    ("import ferry\n", "import ferry\nimport polarz\n", "No module named 'polarz'", 4),
    ("def pipeline(streams, args):", "def pipeline(streams, args)", "expected ':'", 12),
    ("def sources(spark, args)", "def sources(spark)", "write sources(spark, args): too many", 8),
    ("return sales", 'return sales.sink(ferry.parquet("sales")), sales', "both write to", 12),
    ("    minutes =", "    {}['x']\n    minutes =", "KeyError: 'x'", 14),
    ('event_time("ts", delay="3s")', 'event_time("ts").distinct("shop", within=5)', 'within: 5 has no unit; write "5ms"', 13),
    ('event_time("ts", delay="3s")', 'event_time("ts").distinct("shop")', "required keyword-only argument: 'within'", 13),
    ("orders.key_by", "orders.dropDuplicates", 'here it is .distinct("column", within="10 minutes")', 14),
    ('"10 seconds")', '"10 seconds"), bounds="us"', "bounds='us' cannot be the type of window_start and window_end", 14),
    ('aggregate("sales", n=ferry.count(), ', 'top_n("sales", 0, by="cents", ', "unexpected keyword argument 'cents'", 15),
    ('aggregate("sales", n=ferry.count(), cents=ferry.sum("cents"))', 'top_n("sales", 0, by="cents")', "n=0 is not a number of rows", 15),
    ('ferry.tumbling("10 seconds"))', 'ferry.session("9s")).top_n("top", 3, by="cents")', "here it is .top_n(name, 3", 14),
    ("ferry.count()", 'ferry.count_distinct("day")', "no column 'day'; there are shop, ts, cents", 15),
    ("ferry.count()", "ferry.countDistinct", "use ferry.count_distinct", 15),
    ("orders = streams", 'batches = lambda rows: rows.select(["centz"])\n    orders = streams', "", 0),
]  # fmt: skip
"""What is written for what, what is said of it, and in which line; no text: nothing is wrong."""


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(folder: str) -> Any:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(session, "tried", tried)


def built(folder: Path, text: str, spark: bool = True) -> dict[str, Any]:
    file = folder / "job.py"
    file.write_text(text)
    arguments = [{"directory": str(folder)}, None, None]
    return check.answer(json.dumps({"pipeline": [None, str(file), None], "arguments": arguments, "spark": spark}), "f")


@pytest.mark.parametrize(("right", "wrong", "said", "line"), MISTAKES, ids=[one[1][:30] for one in MISTAKES])
@pytest.mark.usefixtures("no_spark")
def test_a_mistake_is_told_with_its_line(tmp_path: Path, right: str, wrong: str, said: str, line: int) -> None:
    assert right in PROGRAM
    found = built(tmp_path, PROGRAM.replace(right, wrong, 1))
    if not said:
        assert "plan" in found, found
        return
    assert said in found["refused"], found
    assert f"job.py:{line}" in found["refused"] or (line == 8 and "job.py.sources" in found["refused"]), found


@pytest.mark.usefixtures("no_spark")
def test_the_plan_says_what_reads_what(tmp_path: Path) -> None:
    plan = built(tmp_path, PROGRAM)["plan"]
    (operator,), (output,) = plan["operators"], plan["outputs"]
    assert (operator["name"], operator["kind"], operator["key"]) == ("sales", "aggregate", ["shop"])
    assert [(read["from"], read["time"], read["delay_ms"]) for read in operator["reads"]] == [("orders", "ts", 3000)]
    assert output["reads"][0]["from"] == "sales" and re.fullmatch(r"parquet\('sales'\)", output["sink"])
    assert plan["planned"] == "" and operator["window"] == {"size_ms": 10_000, "slide_ms": 10_000}
    assert operator["computes"] == ["n=count()", "cents=sum(cents)"]


SOURCES = """
import pyarrow as pa
import ferry

ORDERS = pa.schema([("shop", pa.string()), ("ts", pa.int64())])


def page(state):
    return [], state


def sources(spark, args):
    return {
        "lines": ferry.csv_files(args["directory"], ORDERS, delimiter=";"),
        "rows": ferry.table("sqlite:///shop.db", "orders", ORDERS, "ts"),
        "pages": ferry.poll(page, ORDERS, args["directory"], every="1 minute"),
    }


def pipeline(streams, args):
    return [stream.sink(ferry.parquet(name)) for name, stream in streams.items()]
"""


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("", "", ""),
        ('";"', '";;"', "csv_files: delimiter=';;'; give one character of ASCII, such as ',', ';' or '\\t' (job.py:14"),
        ("sqlite:///", "oracle://", "table: 'oracle://shop.db' is not a database; give 'postgresql://"),
        ("1 minute", "soon", "poll: every: 'soon' is not a duration"),
        ("def page(state)", "def page()", "poll: page (job.py:8) is not a function of (state)"),
        ("    return [], state", "    return lock", ""),
        ("ferry.poll(page", "ferry.poll(lambda state, lock=__import__('threading').Lock(): None", "source 'pages' (job.py:16) cannot be sent"),
    ],
)  # fmt: skip
def test_sources_of_ferrys_own_are_known_and_may_have_sinks_straight_behind_them(
    tmp_path: Path, right: str, wrong: str, said: str
) -> None:
    found = built(tmp_path, SOURCES.replace(right, wrong, 1))
    if said:
        assert said in found["refused"], found
        return
    plan = found["plan"]
    kinds = [f"CsvSplits({str(tmp_path)!r}, finite=False)", "table('sqlite:///shop.db', 'orders')", "poll(page)"]
    assert [one["kind"] for one in plan["sources"]] == kinds and plan["planned"] == "" and plan["operators"] == []
    assert [one["reads"][0]["from"] for one in plan["outputs"]] == ["lines", "rows", "pages"]


@pytest.mark.usefixtures("no_spark")
def test_the_plan_says_what_is_there_without_a_partner(tmp_path: Path) -> None:
    join = 'minutes.keyed.join("sales", minutes.keyed, ["shop"], {"n": "cents"}, within="1m", how="left")'
    line = 'minutes.aggregate("sales", n=ferry.count(), cents=ferry.sum("cents"))'
    (operator,) = built(tmp_path, PROGRAM.replace(line, join, 1))["plan"]["operators"]
    assert operator["computes"] == ["OuterIntervalJoin(lower_ms=0, upper_ms=60000, how=left)"] and [
        *operator["columns"]
    ] == ["shop", "n"]


OF_SPARK = [
    'F.col("shop")', 'F.udf("int")(len)("shop")', "SparkSession.active()", "SparkSession.getActiveSession().version",
]  # fmt: skip


@pytest.mark.parametrize("expression", OF_SPARK)
def test_a_session_starts_for_functions_of_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expression: str
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(session, "tried", begun.append)
    program = PROGRAM.replace(
        "import ferry\n", "import ferry\nfrom pyspark.sql import SparkSession, functions as F\n", 1
    )
    program = program.replace("    minutes =", f"    {expression}\n    minutes =", 1)
    assert "refused" in built(tmp_path, program) and begun
    assert built(tmp_path, program, spark=False) == {} and len(begun) == 1


@pytest.mark.parametrize("use", ["spark.readStream", "spark.sql('select 1')"])
def test_nothing_is_said_of_a_program_that_uses_spark_before_there_is_any(tmp_path: Path, use: str) -> None:
    program = PROGRAM.replace(
        "    return {", f"    try:\n        {use}\n    except Exception:\n        pass\n    return {{", 1
    )
    assert built(tmp_path, program, spark=False) == {}
    assert "no column 'shopp'" in built(tmp_path, PROGRAM.replace('"shop")', '"shopp")'), spark=False)["refused"]


def test_a_session_starts_when_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import SparkSession

    begun: list[str] = []

    class Started:
        def __init__(self) -> None:
            self.version_of = "4"

    monkeypatch.setattr(session, "tried", lambda folder: begun.append(folder) or Started())
    late: Any = check.LateSession(lambda: session.tried("f"))
    assert isinstance(late, SparkSession) and not begun
    assert late.version_of == "4" and begun == ["f"]
    assert type(late) is SparkSession and late.version_of == "4" and begun == ["f"]
