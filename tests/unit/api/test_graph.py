"""Operators read sources and each other in any acyclic graph; what nobody reads is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import ferry
from ferry.api.graph import first_readers, offsets_only, refuse_initial, refuse_unread
from ferry.api.pipeline import Build, Input
from ferry.api.stream import Stream
from ferry.contract.errors import SpecRefused
from ferry.spark.compile import CompiledPipeline
from tests.unit.streams import RunningCount

ROWS = pa.schema([("ts", pa.int64()), ("k", pa.int64())])


def counted(stream: Stream, name: str, size: str = "10s") -> Stream:
    timed = stream if isinstance(stream.input.origin, int) else stream.event_time("ts")
    return timed.key_by("k").window(ferry.tumbling(size)).aggregate(name, n=ferry.count())


def joined(one: Stream, other: Stream, name: str = "j") -> Stream:
    one, other = (s if isinstance(s.input.origin, int) else s.event_time("ts") for s in (one, other))
    return one.key_by("k").window(ferry.tumbling("10s")).join(name, other.key_by("k"), {"l": "k"}, {"r": "k"})


Graph = Callable[[Stream, Stream], list[Stream]]


def branch(a: Stream, b: Stream) -> list[Stream]:
    minute = counted(a, "minute", "60s")
    return [counted(minute, "hour", "1h"), counted(minute, "day", "24h"), b]


def diamond(a: Stream, b: Stream) -> list[Stream]:
    minute = counted(a, "minute", "60s")
    return [joined(minute, counted(minute, "hour", "1h")), b]


ACCEPTED: list[tuple[str, Graph]] = [
    ("beside each other", lambda a, b: [counted(a, "x"), counted(b, "y")]),
    ("both, then joined", lambda a, b: [joined(counted(a, "x"), counted(b, "y"))]),
    ("rows and a source", lambda a, b: [joined(counted(a, "x"), b)]),
    ("the same source again", lambda a, b: [joined(a, b), counted(a, "x")]),
    ("branch", branch),
    ("diamond", diamond),
    ("with itself", lambda a, b: [joined(r := counted(a, "x"), r), b]),
    ("sinks only", lambda a, b: [a, b]),
    ("a sink at every stage", lambda a, b: [a, b, r := counted(a, "x"), joined(r, b)]),
]

REFUSED: list[tuple[str, Graph, str]] = [
    ("source", lambda a, b: [counted(a, "x")], "source 'b' is read by no operator and no sink"),
    ("operator", lambda a, b: (counted(a, "x"), [b])[1], "operator 'x' is read by no operator and no sink"),
    ("first of two", lambda a, b: (counted(a, "x"), [counted(b, "y")])[1], "operator 'x' is read by no operator"),
]  # fmt: skip


def judged(graph: Graph) -> Build:
    build = Build(lambda function, schema, where: schema)
    a, b = (Stream(build, Input(name, (), ROWS, None, 0)) for name in ("a", "b"))
    refuse_unread(("a", "b"), build.operators, [end.sink(ferry.console()) for end in graph(a, b)])
    return build


@pytest.mark.parametrize("graph", [g for _, g in ACCEPTED], ids=[name for name, _ in ACCEPTED])
def test_operators_read_sources_and_operators_before_them_in_any_graph(graph: Graph) -> None:
    for index, operator in enumerate(judged(graph).operators):
        assert operator.descriptor.index == index
        assert all(isinstance(one.origin, str) or one.origin < index for one in operator.inputs)


@pytest.mark.parametrize(("graph", "text"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_what_nobody_reads_is_refused_by_name(graph: Graph, text: str) -> None:
    with pytest.raises(SpecRefused) as refused:
        judged(graph)
    assert text in str(refused.value)


def test_records_of_a_source_are_counted_once() -> None:
    operators = judged(lambda a, b: [counted(a, "x"), joined(a, b), b]).operators
    assert first_readers(("a", "b", "c"), operators) == {"a": 0, "b": 1, "c": 0}
    assert first_readers(("a", "b", "c"), operators, {0}) == {"a": 1, "b": 1, "c": 1}, "its step may be left out"


def test_a_pipeline_without_operators_has_one_that_keeps_nothing() -> None:
    assert offsets_only().inputs == () and offsets_only().descriptor.inputs == 1


def begun(a: Stream, b: Stream) -> Stream:
    keyed = a.event_time("ts").key_by("k")
    output = "auction LONG, n LONG"
    return keyed.transform_with_state("t", RunningCount(), output, initial_state=b.key_by("k"))


INITIAL: list[tuple[str, Graph, str]] = [
    ("no end", lambda a, b: [begun(b, a)], "operator 't': initial_state comes from source 'a', which has no end"),
    ("twice", lambda a, b: [begun(a, b), counted(b, "x")], "source 'b', which has another reader, too"),
    ("itself", lambda a, b: [begun(b, b), a], "source 'b', which has another reader, too"),
    ("a sink", lambda a, b: [begun(a, b), b], "source 'b', which has another reader, too"),
    ("fired", lambda a, b: [begun(a, counted(b, "x"))], "initial_state comes from operator 'x'"),
    ("united", lambda a, b: [begun(a, u(b, counted(b, "x")))], "initial_state comes from operator 'x'"),
    ("no key", lambda a, b: [a.key_by("k").transform_with_state("t", RunningCount(), "n LONG", initial_state=b)],  # type: ignore[arg-type]
     "transform_with_state 't': initial_state: the other stream needs .key_by(...)"),
]  # fmt: skip


def u(b: Stream, fired: Stream) -> Stream:
    return b.union(fired.map_batches(lambda rows: rows.select(["k", "n"]).rename_columns(["ts", "k"])))


def judged_initial(graph: Graph, tmp_path: Path) -> Build:
    build = Build(lambda function, schema, where: schema)
    files = {name: ferry.parquet_files(tmp_path, ROWS, finite=name == "b") for name in ("a", "b")}
    a, b = (Stream(build, Input(name, (), ROWS, None, 0)) for name in files)
    refuse_initial(files, build.operators, [end.sink(ferry.console()) for end in graph(a, b)])
    return build


@pytest.mark.parametrize(("graph", "text"), [r[1:] for r in INITIAL], ids=[r[0] for r in INITIAL])
def test_what_a_state_cannot_begin_from_is_refused(graph: Graph, text: str, tmp_path: Path) -> None:
    with pytest.raises(SpecRefused) as refused:
        judged_initial(graph, tmp_path)
    assert text in str(refused.value)


def test_a_state_begins_from_sources_that_need_no_event_time(tmp_path: Path) -> None:
    build = judged_initial(lambda a, b: [begun(a, b.event_time("ts", idle="1s").union(b))], tmp_path)
    main, *initial = build.operators[0].inputs
    assert [(one.origin, one.side, one.initial, one.time, one.idle_ms) for one in initial] == [
        ("b", 1, True, None, None)
    ] * 2
    assert (main.initial, main.time) == (False, "ts") and build.operators[0].descriptor.windowed
    assert CompiledPipeline({}, tuple(build.operators), ()).first == ["b"]
    again = judged_initial(lambda a, b: [counted(begun(a, b).event_time("n").map_batches(renamed), "x")], tmp_path)
    assert len(again.operators) == 2, "an operator behind it has a watermark"


def renamed(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.rename_columns(["k", "ts"])
