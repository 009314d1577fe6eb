"""Graphs of operators that would give other rows than they say are refused, with what works today."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

import ferry
from ferry.contract.errors import SpecRefused
from ferry.spark.graph import refuse_but_chains
from ferry.spark.stream import Build, Input, Stream

ROWS = pa.schema([("ts", pa.int64()), ("k", pa.int64())])


def counted(stream: Stream, name: str, size: str = "10s") -> Stream:
    timed = stream if isinstance(stream.input.origin, int) else stream.event_time("ts")
    return timed.key_by("k").window(ferry.tumbling(size)).aggregate(name, n=ferry.count())


def joined(one: Stream, other: Stream, name: str = "j") -> Stream:
    one, other = (s if isinstance(s.input.origin, int) else s.event_time("ts") for s in (one, other))
    return one.key_by("k").window(ferry.tumbling("10s")).join(name, other.key_by("k"), {"l": "k"}, {"r": "k"})


Graph = Callable[[Stream, Stream], object]


def branch(a: Stream, b: Stream) -> object:
    minute = counted(a, "minute", "60s")
    counted(minute, "hour", "1h")
    return counted(minute, "day", "24h")


def diamond(a: Stream, b: Stream) -> object:
    minute = counted(a, "minute", "60s")
    return joined(minute, counted(minute, "hour", "1h"))


REFUSED: list[tuple[str, Graph, str]] = [
    ("beside each other", lambda a, b: (counted(a, "x"), counted(b, "y")), "operator 'y' reads source 'b', but it is not the first"),
    ("both, then joined", lambda a, b: joined(counted(a, "x"), counted(b, "y")), "operator 'y' reads source 'b'"),
    ("rows and a source", lambda a, b: joined(counted(a, "x"), b), "operator 'j' reads source 'b', but it is not the first"),
    ("the same source again", lambda a, b: (joined(a, b), counted(a, "x")), "operator 'x' reads source 'a'"),
    ("branch", branch, "operator 'day' reads operator 'minute', but the one before it is 'hour'"),
    ("diamond", diamond, "operator 'j' reads operator 'minute', but the one before it is 'hour'"),
    ("unread", lambda a, b: counted(a, "x"), "source 'b' is read by no operator"),
]  # fmt: skip


def judged(graph: Graph) -> None:
    build = Build(lambda function, schema, where: schema)
    a, b = (Stream(build, Input(name, (), ROWS, None, 0)) for name in ("a", "b"))
    graph(a, b)
    refuse_but_chains(("a", "b"), build.operators)


@pytest.mark.parametrize(("graph", "text"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_graphs_that_are_no_chain_are_refused(graph: Graph, text: str) -> None:
    with pytest.raises(SpecRefused) as refused:
        judged(graph)
    assert text in str(refused.value) and "Today a pipeline is a chain" in str(refused.value)


def test_chains_are_accepted_also_with_an_operator_joined_with_itself() -> None:
    def keyed(pairs: Stream) -> Stream:
        return pairs.map_batches(lambda batch: batch.rename_columns(["window_start", "window_end", "k", "r"]))

    def chain(a: Stream, b: Stream) -> object:
        rows = counted(keyed(joined(a, b)), "x")
        return counted(keyed(joined(rows, rows, "again")), "y")

    judged(chain)
