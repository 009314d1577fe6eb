"""Whatever goes wrong while a program is built is a refusal that names the user's file and line, never a crash."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any, cast

import pytest

from ferry.contract.errors import InputAway, SpecRefused
from ferry.spark.compile import CompiledPipeline, build, load

HEAD = """
import pyarrow as pa
import ferry

ROWS = pa.schema([("ts", pa.int64()), ("k", pa.int64())])

def sources(spark, args):
    return {"a": ferry.parquet_files(DIRECTORY, schema=ROWS)}

def pipeline(streams, args):
    rows = streams["a"].event_time("ts")
    counts = rows.key_by("k").aggregate("n", n=ferry.count(), emit=ferry.at_end())
    return counts.sink(ferry.console())
"""


def compiled(folder: Path, *changes: tuple[str, str]) -> CompiledPipeline:
    text = HEAD.replace("DIRECTORY", repr(str(folder)))
    for old, new in changes:
        assert old in text
        text = text.replace(old, textwrap.dedent(new))
    file = folder / "job.py"
    file.write_text(text)
    return build(cast(Any, None), load(None, str(file)), {})


def refused(folder: Path, *changes: tuple[str, str]) -> str:
    with pytest.raises(SpecRefused) as error:
        compiled(folder, *changes)
    return str(error.value)


SINK = "ferry.console()"


def test_a_system_that_is_away_while_the_program_is_built_is_waited_for_by_a_job_that_has_begun(tmp_path: Path) -> None:
    kinds = {"ConnectionError('no registry')": InputAway, "ValueError('no registry')": SpecRefused}
    for error, kind in kinds.items():
        file = tmp_path / "job.py"
        file.write_text(f"def sources(spark, args):\n    raise {error}\n")
        with pytest.raises(SpecRefused, match=r"job\.py\.sources failed: \w+: no registry \(job\.py:2 in") as refused:
            build(cast(Any, None), load(None, str(file)), {})
        assert type(refused.value) is kind


LAST = "return counts.sink(ferry.console())"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (SINK, "print", 'sink on operator \'n\': print is not a sink; use ferry.parquet(...), ferry.console()'),
        (SINK, "ferry.Sink", "Sink is not a sink"),
        (SINK, "'out'", "str is not a sink"),
        (LAST, "return counts.sink(ferry.console(), 3)", "job.py.pipeline failed: TypeError"),
        (LAST, "return {}['nothing']", "job.py.pipeline failed: KeyError: 'nothing' (job.py:13 in pipeline"),
        (LAST, "return undefined", "job.py.pipeline failed: NameError: name 'undefined' is not defined (job.py:13"),
        (LAST, 'raise BaseException("all")', "job.py.pipeline failed: BaseException: all (job.py:13"),
        ("import ferry", "import ferry; raise BaseException('all')", "cannot be imported: BaseException: all (job.py:3"),
        (LAST, "raise SystemExit(1)", "job.py.pipeline failed: SystemExit: 1 (job.py:13"),
        (LAST, "raise KeyboardInterrupt", "job.py.pipeline failed: KeyboardInterrupt (job.py:13"),
        (LAST, "raise ValueError('a\\x1b[2J\\nb') from KeyError('k')", "ValueError: a\\x1b[2J b (from KeyError: 'k') (job.py:13"),
        ('rows = streams["a"]', 'lock = __import__("threading").Lock()\n    rows = streams["a"].map_batches(lambda b: lock and b)',
         "map_batches on source 'a' (job.py:12) cannot be sent to tasks: TypeError: cannot pickle '_thread.lock' object"),
        ('import ferry', 'import ferry\nclass Interrupts(KeyboardInterrupt): pass\nraise Interrupts', "cannot be imported: Interrupts (job.py:5"),
        ("import ferry", "import ferry, sys; sys.exit('no')", "cannot be imported: SystemExit: no (job.py:3"),
        ("import ferry", "import ferry; 1 / 0", "cannot be imported: ZeroDivisionError: division by zero (job.py:3"),
        ("import ferry", "import ferry, polarz", "cannot be imported: ModuleNotFoundError: No module named 'polarz' (job.py:3"),
        ("def pipeline", "def pipeline pipeline", "cannot be imported: SyntaxError"),
        ('key_by("k")', 'key_by("kk")', "no column 'kk'; there are ts, k (job.py:12 in pipeline"),
        ("rows.key_by", "rows.map_batches(7).key_by", "map_batches on source 'a': int is not a function (job.py:12"),
        ("rows.key_by", "rows.transform(7).key_by", "transform on source 'a': int is not a function (job.py:12"),
        ("rows.key_by", "rows.map_batches(lambda b: None).key_by", "<lambda> (job.py:12) must return a RecordBatch or a Table"),
        ("rows.key_by", "rows.map_batches(lambda b: b.nothing).key_by", "AttributeError: 'pyarrow.lib.RecordBatch' object"),
        ('ferry.parquet_files', 'ferry.nothing', "job.py.sources failed: AttributeError"),
        ("ferry.count()", "ferry.coumt()", "no attribute 'coumt'; did you mean 'count'? (job.py:12"),
        ("ferry.count()", 'ferry.avg("k")', "no attribute 'avg'; use ferry.mean (job.py:12"),
        ("n=ferry.count(), emit=ferry.at_end()", "ferry.count(), n=ferry.count()", "aggregate 'n': count has no name; write n="),
        ("n=ferry.count()", "aggregator=ferry.count()", "aggregate 'n': count has no name; write n=ferry.count(...) (job.py:12"),
        ("ferry.count()", "ferry.count", "n=the function count is not an aggregate; use count(), sum(column), ... (job.py:12"),
        ('.key_by("k")', '.group_by("k")', 'no attribute \'group_by\' (job.py:12 in pipeline: "counts = rows.group_by'),
        ('.key_by("k")', '.group_by("k")', '; here it is .key_by("column", ...)'),
        ('.key_by("k")', "", "; it is a step behind .key_by(...)"),
        ("rows.key_by", 'rows[rows["k"] > 0].key_by', "; a stream has no columns in brackets: .map_batches(ferry.filter("),
        ('rows.key_by("k")', 'rows.key_by("k")["ts"]', "'KeyedStream' object is not subscriptable (job.py:12"),
        ("ferry.count()", 'ferry.count().alias("n")', "; an aggregate has the name of its column from .aggregate(name, column=ferry.count"),
        ("ferry.count()", 'ferry.count("*")', "there are ts, k; count() without a column counts records (job.py:12"),
        ("rows.key_by", 'rows.map_batches(ferry.select(["k", "ts"])).key_by', 'list is not a column name; write select("a", "b") (job.py:12'),
        ('.key_by("k")', '.key_by("k").map_batches(len)', "; it is a step before .key_by(...)"),
        ('.key_by("k")', '.key_by(["k", "ts"])', 'list is not a column name; write key_by("a", "b") (job.py:12'),
        ('streams["a"]', "streams.a", '; streams stand in a dict by the names of their sources: streams["a"]'),
        (LAST, "return counts", "(or a list of them), not <stream of operator 'n': k int64, n int64> (job.py:10)"),
        (LAST, "pass", "(or a list of them), not None (job.py:10)"),
        ("(streams, args)", "(streams)", "job.py: write pipeline(streams, args): too many"),
        ("def pipeline", "def pipe", "job.py has no function pipeline(streams, args)"),
        ("def pipeline", "typo X = int\n\ndef pipeline pipeline", 'SyntaxError: invalid syntax (job.py:10: "typo X = int"); this is P'),
        ('("k", pa.int64())', '("k", "long")', 'ValueError: No type alias for long (job.py:5: "ROWS = pa.schema'),
        ("rows.key_by", "rows.map_batches(lambda b: (yield b)).key_by", "it returned generator; collect the records, and `return`"),
        ("rows.key_by", "rows.map_batches(lambda b: b.to_pylist()).key_by", "it returned list; pyarrow.Table.from_pylist(rows"),
        ("rows.key_by", "rows.map_batches(lambda b, lock=__import__('threading').Lock(): b).key_by", "cannot be sent to tasks: TypeError: cannot pickle"),
        (SINK, "ferry.foreach_epoch(lambda rows: rows)", "<lambda> (job.py:13) is not a function of (epoch, generation, rows): too many"),
    ],
    ids=lambda one: one[:40],
)  # fmt: skip
def test_a_mistake_is_refused_with_its_line(old: str, new: str, words: str, tmp_path: Path) -> None:
    text = refused(tmp_path, (old, new))
    assert words in text and "job.py" in text and "ferry_pipeline_" not in text, text


MINE = """class Mine:
    def __init__(self, of=None): pass
    def schema(self): return WHAT
    def start(self): return 0
    def latest(self, start, max_rows): return 0
    def ended(self, position): return True
    def plan(self, start, stop, tasks): return []
    def read(self, split, columns): return iter(())

def sources"""


@pytest.mark.parametrize(
    ("what", "words"),
    [("{}['columns']", "source 'a': schema() failed: KeyError: 'columns' (job.py:9 in schema"),
     ("{'k': 'int'}", "source 'a' (job.py:7): its schema is dict; it has to be a pyarrow.Schema")],
)  # fmt: skip
def test_a_source_of_the_users_that_has_no_schema_is_refused(what: str, words: str, tmp_path: Path) -> None:
    source = f"ferry.parquet_files({str(tmp_path)!r}, schema=ROWS)"
    text = refused(tmp_path, ("def sources", MINE.replace("WHAT", what)), (source, "Mine()"))
    assert words in text, text


def test_a_sink_of_the_users_that_fails_while_the_program_is_built_is_refused(tmp_path: Path) -> None:
    sink = "class Mine(ferry.Sink):\n    def write(self, *given): pass\n    def place(self, base): return base.nothing\n\ndef sources"
    text = refused(tmp_path, ("def sources", sink), (SINK, "Mine()"))
    assert (
        "the pipeline cannot be built: AttributeError: 'NoneType' object has no attribute 'nothing' (job.py:9 in place"
        in text
    )


def test_sql_behind_a_source_of_flows_needs_a_column_that_says_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ferry.spark.compile.schema_after", lambda spark, function, schema, where: schema)
    sql = ('event_time("ts")', 'transform(\n        lambda frame: frame).event_time("ts")')
    flows = (
        f"parquet_files({str(tmp_path)!r}, schema=ROWS)",
        f'json_files({str(tmp_path)!r}, ROWS, flow="{{flow}}/*")',
    )
    text = refused(tmp_path, flows, sql)
    assert text.startswith("transform on source 'a': the flow of a record would not be known behind it; name a column")
    assert text.endswith("or make the source one flow (job.py:12)")
    compiled(tmp_path, flows, (sql[0], sql[1].replace('"ts")', '"ts", flow="k")')))
    assert "remove one of both" in refused(tmp_path, flows, ('event_time("ts")', 'event_time("ts", flow="k")'))


def test_a_sink_and_sql_may_be_straight_behind_records_that_may_be_malformed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ferry.spark.compile.schema_after", lambda spark, function, schema, where: schema)
    straight = (
        LAST,
        'return [counts.sink(ferry.console()), streams["a"].transform(lambda rows: rows).sink(ferry.parquet("a"))]',
    )
    for source in (f"json_files({str(tmp_path)!r}, ROWS)", 'kafka("broker:9092", "topic", ROWS)'):
        plan = compiled(tmp_path, (f"parquet_files({str(tmp_path)!r}, schema=ROWS)", source), straight)
        assert [one.input.origin for one in plan.outputs] == [0, "a"]
