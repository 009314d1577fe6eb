"""Steps of pipelines that are processes: which one they make, what it reads, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import ferry
from ferry.api.pipeline import Build, Input
from ferry.api.stream import Stream
from ferry.contract.differences import differences
from ferry.contract.errors import SpecRefused
from ferry.kernels.schemas import from_text, process_inputs
from ferry.process.aggregator import Functions
from ferry.process.interval import IntervalJoin, OuterIntervalJoin
from ferry.process.row_windows import RowWindows
from ferry.process.running import RunningAggregate
from ferry.process.sessions import SessionAggregate, SessionJoin
from ferry.process.shapes import process_of
from ferry.process.window_join import WindowJoin
from ferry.process.windowed import KeyAggregate, WindowAggregate
from ferry.spark.tasks.fragment import Fragmenter
from tests.unit.process.test_aggregator import Joined
from tests.unit.streams import sources

N = {"n": ferry.count()}
S = {"s": ferry.sum("price")}
TEXT = {"t": ferry.arg_max("ts", by="name"), "n": ferry.count()}
MINUTE = ferry.tumbling("60s")
SIDES: tuple[Any, Any] = (["name"], {"auction": "id"})


def declared(step: Callable[[Any, Any, Any], Any]) -> tuple[Any, ferry.Stream]:
    """The operator that a step makes of bids by auction, people by id and auctions by seller."""
    streams = sources()
    bids, people, auctions = (
        streams[name].event_time("ts").key_by(key)
        for name, key in (("bids", "auction"), ("people", "id"), ("auctions", "seller"))
    )
    made = step(bids, people, auctions)
    return made.build.operators[-1].descriptor, made


STEPS: list[tuple[Callable[[Any, Any, Any], Any], Any, list[tuple[str, ...]]]] = [
    (
        lambda b, p, a: b.window(ferry.session("10s")).aggregate("x", **N),
        SessionAggregate(10_000, Functions(N)),
        [("auction",)],
    ),
    (
        lambda b, p, a: b.window(ferry.session("10ms")).aggregate("x", **S),
        SessionAggregate(10, Functions(S)),
        [("price",)],
    ),
    (
        lambda b, p, a: p.window(ferry.session("1m")).join("x", a, *SIDES, how="left"),
        SessionJoin(60_000, {"name": "name"}, {"auction": "id"}, "left"),
        [("name",), ("id",)],
    ),
    (
        lambda b, p, a: p.window(MINUTE).join("x", a, *SIDES, how="full"),
        WindowJoin(60_000, 60_000, {"name": "name"}, {"auction": "id"}, "full"),
        [("name",), ("id",)],
    ),
    (
        lambda b, p, a: p.join("x", a, *SIDES, within="12h"),
        IntervalJoin({"name": "name"}, {"auction": "id"}, 0, 43_200_000),
        [("name",), ("id",)],
    ),
    (
        lambda b, p, a: p.join("x", a, {"p": "id"}, ["id", "ts"], within=("-10s", "500ms"), where=[("p", "<", "id")]),
        IntervalJoin({"p": "id"}, {"id": "id", "ts": "ts"}, -10_000, 500, [["p", "<", "id"]]),
        [("id",), ("id", "ts")],
    ),
    (
        lambda b, p, a: p.join("x", a, *SIDES, within="12h", how="left"),
        OuterIntervalJoin({"name": "name"}, {"auction": "id"}, 0, 43_200_000, [], "left"),
        [("name",), ("id",)],
    ),
    (
        lambda b, p, a: p.join("x", a, *SIDES),
        IntervalJoin({"name": "name"}, {"auction": "id"}),
        [("name",), ("id",)],
    ),
    (
        lambda b, p, a: b.window(ferry.rows(5, 2)).aggregate("x", ["seq"], order="ts", number="row", **S),
        RowWindows(5, Functions(S), {"seq": "seq"}, 2, ["ts"], "row"),
        [("price", "seq", "ts")],
    ),
    (
        lambda b, p, a: b.aggregate("x", **N, emit=ferry.records("seq", "auction", order="seq")),
        RunningAggregate(Functions(N), {"seq": "seq", "auction": "auction"}, ["seq"]),
        [("seq", "auction")],
    ),
    (
        lambda b, p, a: p.window(ferry.sliding("20ms", "10ms")).aggregate("x", Joined("name")),
        WindowAggregate(20, 10, Joined("name")),
        [("id", "ts", "name")],
    ),
    (
        lambda b, p, a: p.window(ferry.sliding("20ms", "10ms")).aggregate("x", **TEXT),
        WindowAggregate(20, 10, Functions(TEXT)),
        [("ts", "name")],
    ),
    (
        lambda b, p, a: p.aggregate("x", **TEXT, emit=ferry.changes()),
        KeyAggregate(Functions(TEXT), "changes"),
        [("ts", "name")],
    ),
    (
        lambda b, p, a: p.aggregate("x", **TEXT),
        KeyAggregate(Functions(TEXT), "end"),
        [("ts", "name")],
    ),
    (
        lambda b, p, a: p.aggregate("x", aggregator=Joined("name"), emit=ferry.changes()),
        KeyAggregate(Joined("name"), "changes"),
        [("id", "ts", "name")],
    ),
    (
        lambda b, p, a: p.aggregate("x", aggregator=Joined("name")),
        KeyAggregate(Joined("name"), "end"),
        [("id", "ts", "name")],
    ),
]


@pytest.mark.parametrize(("step", "process", "columns"), STEPS, ids=lambda s: type(s).__name__ if s else "")
def test_a_step_makes_its_process(step: Any, process: Any, columns: Any) -> None:
    descriptor, stream = declared(step)
    made = process_of(descriptor)
    assert made == process and [*descriptor.shape.columns] == columns
    assert stream.columns == made.output.names


REFUSED: list[tuple[Callable[[Any, Any, Any], Any], str]] = [
    (lambda b, p, a: b.window(ferry.session(0)), "a session's gap of 0 must be positive"),
    (lambda b, p, a: b.window(ferry.rows(0)), "rows(0, 1) needs positive numbers of rows"),
    (lambda b, p, a: b.window("10s"), "use tumbling(size), sliding(size, slide), session(gap) or rows(size)"),
    (lambda b, p, a: b.window(ferry.session("5ms")).aggregate("x"), "name at least one"),
    (lambda b, p, a: b.window(ferry.session("5ms")).aggregate("x", Joined("ts"), **N), "not both"),
    (lambda b, p, a: b.window(ferry.session("5ms")).aggregate("x", n=5), "n=5 is not an aggregate"),
    (lambda b, p, a: b.window(ferry.session("5ms")).aggregate("x", "sum"), "'sum' is not a ferry.Aggregator"),
    (
        lambda b, p, a: p.window(ferry.session("5ms")).aggregate("x", v=ferry.variance("name")),
        "operator 'x': v: column 'name' is string",
    ),
    (lambda b, p, a: b.window(ferry.session("5ms")).aggregate("x", v=ferry.max("prize")), "no column 'prize'"),
    (lambda b, p, a: p.window(ferry.session("5ms")).join("x", sources()["bids"], *SIDES), "needs .key_by(...)"),
    (lambda b, p, a: p.window(MINUTE).join("x", a, *SIDES, how="outer"), "how='outer'"),
    (lambda b, p, a: p.join("x", a, *SIDES, within="1h", how="outer"), "how='outer': a join is one of inner, left"),
    (lambda b, p, a: p.join("x", a, *SIDES, how="left"), "operator 'x': how='left' needs within="),
    (lambda b, p, a: p.join("x", a, ["name"], ["nome"]), "no column 'nome'"),
    (
        lambda b, p, a: p.join("x", a, {"name": "who"}, [], within="1h"),
        "join 'x': no column 'who'; there are id, ts, name; write {output: column}, such as {'who': 'name'}",
    ),
    (lambda b, p, a: p.join("x", a, *SIDES, within=("5ms", "5ms")), "nothing would match"),
    (lambda b, p, a: p.join("x", a, *SIDES, within="soon"), "within: 'soon' is not a duration"),
    (lambda b, p, a: p.join("x", a, ["id"], ["id"]), "['id'] would appear twice"),
]


@pytest.mark.parametrize(("step", "text"), REFUSED, ids=lambda s: s if isinstance(s, str) else "")
def test_mistakes_are_refused(step: Any, text: str) -> None:
    with pytest.raises(SpecRefused) as refused:
        declared(step)
    assert text in str(refused.value)


def test_state_of_an_inner_join_is_taken_over_by_no_outer_one_and_from_before_there_were_any() -> None:
    """Rows of a checkpoint of it have no marks, and nobody could say which of them have had a partner."""
    inner, left, full = (
        declared(lambda b, p, a, how=how: p.join("x", a, *SIDES, within="12h", how=how))[0]
        for how in ("inner", "left", "full")
    )
    assert inner.shape.made_of == "ferry.process.interval:IntervalJoin"
    assert inner.shape.arguments == (
        '{"left": {"name": "name"}, "right": {"auction": "id"}, "lower_ms": 0, "upper_ms": 43200000, "where": []}'
    )
    kept = [pa.schema([("_time", pa.int64()), column]) for column in (("name", pa.string()), ("auction", pa.int64()))]
    assert [from_text(text) for _, text, _ in inner.shape.tables] == kept
    (changed_class, *_) = differences([inner], [left])
    assert changed_class.endswith("IntervalJoin, and is OuterIntervalJoin")
    assert 'how was "left", and is "full"' in differences([left], [full])[0]
    assert not differences([left], [left])


def test_a_step_needs_an_event_time() -> None:
    bids = sources()["bids"].key_by("auction")
    with pytest.raises(SpecRefused, match="no event time"):
        bids.window(ferry.rows(5))
    with pytest.raises(SpecRefused, match="no event time"):
        bids.aggregate("x", emit=ferry.records(), n=ferry.count())
    _, named = declared(lambda b, p, a: p.join("x", a, {"window_end": "name"}, {"auction": "id"}, within="1s"))
    with pytest.raises(SpecRefused, match="no event time"):
        named.key_by("auction").window(MINUTE)
    with pytest.raises(SpecRefused, match="ttl= works with Ferry's aggregate functions"):
        bids.aggregate("x", aggregator=Joined("name"), ttl="1h")
    assert pa.types.is_int64(sources()["bids"].input.schema.field("price").type)


def test_texts_alone_make_an_aggregate_a_process() -> None:
    """What is counted of them needs no value."""
    counted = {"n": ferry.count("name"), "d": ferry.approx_count_distinct("name"), "last": ferry.last("ts")}
    for step in (lambda p: p.window(MINUTE).aggregate("x", **counted), lambda p: p.aggregate("x", **counted)):
        assert declared(lambda b, p, a, step=step: step(p))[0].kind == "aggregate"
    windows, table = (
        declared(lambda b, p, a, some=some: p.window(MINUTE).aggregate("x", **some))[1].input.schema
        for some in (counted | {"a": ferry.min("name")}, counted)
    )
    assert windows.remove(windows.get_field_index("a")) == table


def test_a_process_sees_no_dictionaries() -> None:
    """Each task would have its own, and no table keeps them."""
    schema = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("x", pa.dictionary(pa.int32(), pa.string()))])
    stream = Stream(Build(lambda function, schema, where: schema), Input("in", (), schema, None, 0)).event_time("t")
    lows = stream.key_by("k").window(MINUTE).aggregate("x", low=ferry.min("x"))
    descriptor = lows.build.operators[0].descriptor
    assert process_inputs(descriptor)[0] == pa.schema([("x", pa.string())])
    fragmenter = Fragmenter(descriptor)
    texts = pa.array(["b", None]).dictionary_encode()
    fragmenter.add(pa.record_batch([pa.array([1, 1]), pa.array([5, 6]), texts], schema=schema), ["k"], "t")
    assert fragmenter.drain()[0].column("0_x").to_pylist() == ["b", None]


def test_without_a_window_texts_need_no_event_time_unless_a_function_goes_by_it() -> None:
    people = sources()["people"].key_by("id")
    people.aggregate("x", a=ferry.min("name"), emit=ferry.changes())
    assert not people.stream.build.operators[0].descriptor.windowed
    with pytest.raises(SpecRefused, match=r"aggregate 'y': a=last\('name'\) needs event times"):
        people.aggregate("y", a=ferry.last("name"))


def test_of_the_columns_that_a_process_sees_each_input_gives_those_that_it_has() -> None:
    join = IntervalJoin({"name": "name"}, {"auction": "id", "seller": "seller"})
    descriptor, _ = declared(lambda b, p, a: p.process("x", join, a, columns=["name", "id", "seller", "id"]))
    assert [*descriptor.shape.columns] == [("name", "id"), ("id", "seller")]
    with pytest.raises(SpecRefused, match="operator 'x': no column 'nam'; there are id, ts, name, seller, reserve"):
        declared(lambda b, p, a: p.process("x", join, a, columns=["nam", "id", "seller"]))


def test_a_process_sees_texts_for_views_of_texts() -> None:
    views = sources()["bids"].map_batches(
        lambda rows: rows.append_column("w", pa.nulls(rows.num_rows, pa.string_view()))
    )
    made = views.event_time("ts").key_by("auction").window(ferry.session("10s")).aggregate("x", m=ferry.max("w"))
    (seen,) = process_inputs(made.build.operators[-1].descriptor)
    assert seen.names[0] and pa.string() in seen.types and pa.string_view() not in seen.types
