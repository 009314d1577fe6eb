"""What a pipeline may say, and how mistakes are refused: by name, with what to do."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

import ferry
from ferry.contract.errors import SpecRefused
from ferry.kernels.aggregates import state_types
from ferry.spark.stream import Build, Input, Stream
from ferry.spark.words import milliseconds

BIDS = pa.schema([("ts", pa.int64()), ("auction", pa.int64()), ("price", pa.int64()), ("channel", pa.string()), ("score", pa.float64())])  # fmt: skip
PEOPLE = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us")), ("name", pa.string())])


@pytest.fixture
def build() -> Build:
    return Build(lambda function, schema, where: schema)


@pytest.fixture
def bids(build: Build) -> Stream:
    return Stream(build, Input("bid", (), BIDS, None, 0))


@pytest.fixture
def people(build: Build) -> Stream:
    return Stream(build, Input("person", (), PEOPLE, None, 0))


def test_an_aggregate_declares_its_operator_and_its_output(bids: Stream, build: Build) -> None:
    fired = (
        bids.event_time("ts", delay="3s")
        .key_by("auction", "channel")
        .window(ferry.sliding("60s", "10s"))
        .aggregate("hot", n=ferry.count(), top=ferry.max("price"), mean=ferry.mean("score"), who=ferry.arg_max("price", by="score"))
    )  # fmt: skip
    assert fired.input.schema.names == ["auction", "channel", "window_start", "window_end", "n", "top", "mean", "who"]
    (operator,) = build.operators
    assert operator.inputs[0].delay_ms == 3000
    assert operator.descriptor.key == (("auction", "int"), ("channel", "string"))
    assert state_types(operator.descriptor) == ("int", "float", "int", "float", "int", "int")


def test_a_fired_stream_is_keyed_again_by_its_window_end(bids: Stream, build: Build) -> None:
    counts = bids.event_time("ts").key_by("auction").window(ferry.tumbling("10s")).aggregate("a", n=ferry.count())
    counts.key_by("n").window(ferry.tumbling("60s")).aggregate("b", m=ferry.count())
    assert [o.inputs[0].origin for o in build.operators] == ["bid", 0]


def test_a_join_renames_and_keeps_types(bids: Stream, people: Stream) -> None:
    left = people.event_time("at").key_by("id").window(ferry.tumbling("12h"))
    pairs = left.join(
        "pairs", bids.event_time("ts").key_by("auction"), left={"person": "id", "name": "name"}, right=["price"]
    )
    assert pairs.input.schema.names == ["window_start", "window_end", "person", "name", "price"]
    assert pairs.input.schema.field("name").type == pa.string()


windowed = lambda s: s.event_time("ts").key_by("auction").window(ferry.tumbling("10s"))  # noqa: E731

REFUSED: list[tuple[str, Callable[[Stream, Stream], object], str]] = [
    ("no such time", lambda b, p: b.event_time("when"), "event_time on source 'bid': no column 'when'; there are ts, auction"),
    ("time of text", lambda b, p: b.event_time("channel"), "column 'channel' is string; int64 milliseconds or a timestamp"),
    ("negative delay", lambda b, p: b.event_time("ts", delay=-1), "delay: -1 is negative"),
    ("odd delay", lambda b, p: b.event_time("ts", delay="soon"), "delay: 'soon' is not a duration"),
    ("no such key", lambda b, p: b.key_by("actuion"), "key_by on source 'bid': no column 'actuion'"),
    ("no key", lambda b, p: b.key_by(), "name at least one column"),
    ("float key", lambda b, p: b.key_by("score"), "key column 'score' is double; integers and strings"),
    ("no time", lambda b, p: b.key_by("auction").window(ferry.tumbling("1s")), "no event time; call .event_time"),
    ("not a window", lambda b, p: b.event_time("ts").key_by("auction").window("10s"), "'10s' is not a window"),
    ("slide", lambda b, p: ferry.sliding("60s", "7s"), "slide '7s' does not divide size '60s'"),
    ("empty window", lambda b, p: ferry.tumbling(0), "must be positive"),
    ("no aggregate", lambda b, p: windowed(b).aggregate("x"), "aggregate 'x': name at least one"),
    ("not an aggregate", lambda b, p: windowed(b).aggregate("x", n="count"), "n='count' is not an aggregate"),
    ("no such column", lambda b, p: windowed(b).aggregate("x", s=ferry.sum("prize")), "s needs column 'prize'"),
    ("text column", lambda b, p: windowed(b).aggregate("x", s=ferry.sum("channel")), "column 'channel' is string"),
    ("taken name", lambda b, p: windowed(b).aggregate("x", auction=ferry.count()), "'auction' is already an output column"),
    ("too many", lambda b, p: windowed(b).aggregate("x", **{f"m{i}": ferry.mean("price") for i in range(16)}), "16 aggregates need 33 columns of state, 31 are possible"),
    ("operator name", lambda b, p: windowed(b).aggregate("Hot Items", n=ferry.count()), "operator name 'Hot Items'"),
    ("no operator", lambda b, p: b.sink(ferry.console()), "a pipeline without a stateful operator"),
    ("no other key", lambda b, p: windowed(b).join("j", p, [], []), "the other stream needs .key_by"),
    ("key types", lambda b, p: windowed(b).join("j", p.event_time("at").key_by("name"), [], []), "keys differ in type"),
    ("join column", lambda b, p: windowed(b).join("j", p.event_time("at").key_by("id"), ["x"], []), "join 'j': no column 'x'"),
    ("twice", lambda b, p: windowed(b).join("j", b.event_time("ts").key_by("auction"), ["price"], ["price"]), "would appear twice"),
    ("bad function", lambda b, p: b.map_batches(lambda batch: batch.column("x")), "map_batches on source 'bid'"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "text"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_mistakes_are_refused_by_name(
    bids: Stream, people: Stream, call: Callable[[Stream, Stream], object], text: str
) -> None:
    with pytest.raises(SpecRefused) as refused:
        call(bids, people)
    assert text in str(refused.value)


def test_two_operators_of_one_name_are_refused(bids: Stream) -> None:
    windowed(bids).aggregate("x", n=ferry.count())
    with pytest.raises(SpecRefused, match="two operators are named 'x'"):
        windowed(bids).aggregate("x", n=ferry.count())


@pytest.mark.parametrize(
    ("text", "value"), [(5, 5), ("250ms", 250), ("1.5s", 1500), ("2m", 120_000), ("12h", 43_200_000)]
)
def test_durations(text: int | str, value: int) -> None:
    assert milliseconds(text, "x") == value


def test_columns_of_any_type_can_be_counted(bids: Stream, build: Build) -> None:
    windowed(bids).aggregate("x", n=ferry.count(), named=ferry.count("channel"))
    assert state_types(build.operators[0].descriptor) == ("int",)
    with pytest.raises(SpecRefused, match="'y': n needs column 'chanel'"):
        windowed(bids).aggregate("y", n=ferry.count("chanel"))
