"""What a pipeline may say, and how mistakes are refused: by name, with what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import ferry
from ferry.api.pipeline import Build, Input
from ferry.api.stream import Stream
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.durations import milliseconds
from ferry.contract.errors import SpecRefused
from ferry.kernels.aggregates import state_columns
from ferry.process.shapes import process_of
from tests.unit.streams import Latest

BIDS = pa.schema([("ts", pa.int64()), ("auction", pa.int64()), ("price", pa.int64()), ("channel", pa.string()), ("score", pa.float64())])  # fmt: skip
PEOPLE = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us")), ("name", pa.string()), ("tags", pa.list_(pa.string()))])  # fmt: skip


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
    kept = [column.number for column in state_columns(operator.descriptor)]
    assert kept == ["int", "float", "int", "float", "int", "int"]


def test_a_creation_time_is_said_of_a_source_before_any_step(bids: Stream, people: Stream, build: Build) -> None:
    assert bids.created_at("ts") is bids and people.created_at("at") is people
    assert build.created == {"bid": "ts", "person": "at"}
    fired = bids.event_time("ts").key_by("auction").window(ferry.tumbling("1s")).aggregate("n", n=ferry.count())
    for stream, column, why in (
        (bids, "when", "no column 'when'"),
        (bids, "channel", "column 'channel' is string"),
        (bids.map_batches(lambda batch: batch), "ts", "on the source itself"),
        (fired, "window_end", "on the source itself"),
        (people.union(people.map_batches(lambda batch: batch)), "at", "on the source itself"),
    ):
        with pytest.raises(SpecRefused, match=f"created_at.*{why}"):
            stream.created_at(column)
    assert build.created == {"bid": "ts", "person": "at"}


def test_a_timeout_of_silent_flows_goes_with_the_input(bids: Stream, build: Build) -> None:
    assert bids.event_time("ts").input.idle_ms is None
    assert bids.event_time("ts", delay="3s", idle="30s").input.idle_ms == 30_000
    assert bids.event_time("ts", flow="channel").input.flow == "channel" and bids.event_time("ts").input.flow is None


def test_keys_of_many_types_are_declared_and_fired_as_they_were(build: Build) -> None:
    of = {
        "i": (pa.int16(), "int", pa.int64()), "t": (pa.large_string(), "string", pa.string()),
        "b": (pa.bool_(), "bool", pa.bool_()), "d": (pa.date32(), "date", pa.date32()),
        "raw": (pa.binary(16), "binary", pa.binary()), "m": (pa.decimal128(12, 2), "decimal128(12, 2)", pa.decimal128(12, 2)),
        "at": (pa.timestamp("ns", "Europe/Berlin"), "timestamp[ns, tz=Europe/Berlin]", pa.timestamp("ns", "Europe/Berlin")),
        "f": (pa.float32(), "float32", pa.float32()), "g": (pa.float64(), "float", pa.float64()),
    }  # fmt: skip
    schema = pa.schema([(name, kind[0]) for name, kind in of.items()] + [("ts", pa.int64())])
    stream = Stream(build, Input("of", (), schema, None, 0)).event_time("ts")
    fired = stream.key_by(*of).window(ferry.tumbling("1s")).aggregate("counts", n=ferry.count())
    assert build.operators[0].descriptor.key == tuple((name, kind[1]) for name, kind in of.items())
    assert fired.input.schema.types[: len(of)] == [kind[2] for kind in of.values()]
    assert OperatorDescriptor.from_wire(build.operators[0].descriptor.to_wire()) == build.operators[0].descriptor


def test_an_aggregate_without_a_window_needs_no_time_and_has_no_window_columns(bids: Stream, build: Build) -> None:
    totals = bids.key_by("auction").aggregate("totals", n=ferry.count(), window_end=ferry.max("price"))
    assert totals.input.schema.names == ["auction", "n", "window_end"]
    again = totals.key_by("n").aggregate("again", emit=ferry.changes(), last=ferry.max("auction"))
    assert again.input.schema.names == ["n", "last"]
    bids.event_time("ts").key_by("auction").aggregate("latest", emit=ferry.at_end(), price=ferry.last("price"))
    bids.event_time("ts").key_by("auction").aggregate("recent", emit=ferry.changes(), ttl="1h", n=ferry.count("price"))
    shapes = [(o.descriptor.emit, len(state_columns(o.descriptor))) for o in build.operators]
    assert shapes == [("final", 2), ("changes", 3), ("final", 3), ("changes", 3)]
    assert [o.descriptor.ttl_ms for o in build.operators] == [None, None, None, 3_600_000]
    for operator in build.operators:
        assert (
            OperatorDescriptor.from_wire(json.loads(json.dumps(operator.descriptor.to_wire()))) == operator.descriptor
        )


def test_streams_that_are_united_are_inputs_of_one_side(bids: Stream, build: Build) -> None:
    late = bids.event_time("ts", delay="3s")
    both = bids.event_time("ts").union(late).map_batches(lambda rows: rows).key_by("auction")
    both.window(ferry.tumbling("1s")).join("j", late.union(late).key_by("price"), ["price"], {"other": "price"})
    (operator,) = build.operators
    assert [(one.side, one.delay_ms, one.key, len(one.steps)) for one in operator.inputs] == [
        (0, 0, ("auction",), 1),
        (0, 3000, ("auction",), 1),
        (1, 3000, ("price",), 0),
        (1, 3000, ("price",), 0),
    ]


def test_a_process_sees_what_it_was_given_and_is_an_operator_as_any_other(
    bids: Stream, people: Stream, build: Build
) -> None:
    made = bids.event_time("ts").key_by("auction").process("latest", Latest("price"), order="ts", columns=["price"])
    assert made.input.schema.names == ["value"]
    other = people.event_time("at").key_by("id")
    bids.event_time("ts").key_by("auction").process("both", Latest("price"), other=other)
    made.key_by("value").process("untimed", Latest("value"))
    shapes = [(o.descriptor.shape.columns, o.descriptor.windowed) for o in build.operators]
    every, all_people = (tuple(schema.names) for schema in (BIDS, PEOPLE))
    assert shapes == [((("price", "ts"),), True), ((every, all_people), True), ((("value",),), False)]
    for operator in build.operators:
        wire = json.loads(json.dumps(operator.descriptor.to_wire()))
        assert OperatorDescriptor.from_wire(wire) == operator.descriptor
        assert (
            process_of(operator.descriptor) == Latest(operator.descriptor.shape.columns[0][0])
            or operator.descriptor.name == "both"
        )


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

intervals = lambda rows: rows.append_column("u", pa.nulls(rows.num_rows, pa.month_day_nano_interval()))  # noqa: E731

keyed = lambda s: s.event_time("ts").key_by("auction")  # noqa: E731


def rolled(bids: Stream, window: Callable[[Stream], Any]) -> Stream:
    """Totals of windows, by what an earlier operator has called the begin of its own."""
    totals = windowed(bids).aggregate("totals", n=ferry.count())
    if window is windowed:
        return totals.key_by("window_start").window(ferry.tumbling("1h")).aggregate("top", n=ferry.max("n"))
    return window(totals).aggregate("top", n=ferry.max("n"))  # type: ignore[no-any-return]


REFUSED: list[tuple[str, Callable[[Stream, Stream], object], str]] = [
    ("no process", lambda b, p: keyed(b).process("p", Latest), "is not a process; give an instance of a subclass"),
    ("odd order", lambda b, p: keyed(b).process("p", Latest("price"), order="channel"), "operator 'p': order='channel' is string; an integer or a timestamp"),
    ("no order", lambda b, p: keyed(b).process("p", Latest("price"), order="seq"), "operator 'p': no column 'seq' to order by; there are ts"),
    ("no column", lambda b, p: keyed(b).process("p", Latest("price"), columns=["cost"]), "operator 'p': no column 'cost'; there are ts"),
    ("unkeyed", lambda b, p: keyed(b).process("p", Latest("price"), other=p), "process 'p': the other stream needs .key_by(...)"),
    ("keys apart", lambda b, p: keyed(b).process("p", Latest("price"), other=p.event_time("at").key_by("name")), "operator 'p': keys differ in type: {'auction': 'int'} and {'name': 'string'}"),
    ("half timed", lambda b, p: keyed(b).process("p", Latest("price"), other=p.key_by("id")), "operator 'p' on source 'person': no event time"),
    ("process name", lambda b, p: keyed(b).process("My P", Latest("price")), "operator name 'My P': use lower-case letters"),
    ("no such time", lambda b, p: b.event_time("when"), "event_time on source 'bid': no column 'when'; there are ts, auction"),
    ("time of text", lambda b, p: b.event_time("channel"), "column 'channel' is string; int64 milliseconds or a timestamp"),
    ("idle at once", lambda b, p: b.event_time("ts", idle=0), "event_time on source 'bid': idle=0 must be positive"),
    ("flow of rows", lambda b, p: windowed(b).aggregate("a", n=ferry.count()).event_time("window_end", flow="n"), "event_time on operator 'a': fired rows have the operator's watermark; give flow= to its inputs"),
    ("no flow", lambda b, p: b.event_time("ts", flow="chanel"), "event_time on source 'bid': no column 'chanel'"),
    ("flow of lists", lambda b, p: p.event_time("at", flow="tags"), "column 'tags' is list<item: string>, which cannot name a flow"),
    ("flow is gone", lambda b, p: b.event_time("ts", flow="channel").map_batches(lambda r: r.select(["ts", "auction"])).key_by("auction").aggregate("a", n=ferry.count()), "operator 'a': column 'channel', which names the flow, is gone; there are ts, auction"),
    ("idle rows", lambda b, p: windowed(b).aggregate("a", n=ferry.count()).event_time("window_end", idle="1s"), "event_time on operator 'a': fired rows have the operator's watermark; give idle= to its inputs"),
    ("negative delay", lambda b, p: b.event_time("ts", delay=timedelta(days=-1)), "delay: -1 day, 0:00:00 is negative"),
    ("odd delay", lambda b, p: b.event_time("ts", delay="soon"), "delay: 'soon' is not a duration"),
    ("delay without a unit", lambda b, p: b.event_time("ts", delay=10), 'delay: 10 has no unit; write "10ms" or "10s"'),
    ("window without a unit", lambda b, p: ferry.tumbling(60_000), "size: 60000 has no unit"),
    ("no such key", lambda b, p: b.key_by("actuion"), "key_by on source 'bid': no column 'actuion'"),
    ("no key", lambda b, p: b.key_by(), "name at least one column"),
    ("list key", lambda b, p: p.key_by("id", "tags"), "key column 'tags' is list<item: string>; integers, strings, booleans"),
    ("no time", lambda b, p: b.key_by("auction").window(ferry.tumbling("1s")), "no event time; call .event_time"),
    ("not a window", lambda b, p: b.event_time("ts").key_by("auction").window("10s"), "'10s' is not a window"),
    ("slide", lambda b, p: ferry.sliding("60s", "7s"), "slide '7s' does not divide size '60s'"),
    ("empty window", lambda b, p: ferry.tumbling(0), "must be positive"),
    ("not to be emitted", lambda b, p: b.key_by("auction").aggregate("x", "always", n=ferry.count()), "emit='always' is not possible; use ferry.at_end() or ferry.changes()"),
    ("last of no time", lambda b, p: b.key_by("auction").aggregate("x", p=ferry.last("price")), "p=last('price') needs event times; call .event_time(column)"),
    ("ttl of no time", lambda b, p: b.key_by("auction").aggregate("x", ttl="1h", n=ferry.count()), "aggregate 'x' with ttl= on source 'bid': no event time; call .event_time(column"),
    ("ttl of texts", lambda b, p: keyed(b).aggregate("x", ttl="1h", n=ferry.count(), c=ferry.last("channel")), "aggregate 'x': ttl= works with Ferry's aggregate functions, emitted at_end() or as changes(), but not with strings"),
    ("last of half a time", lambda b, p: b.event_time("ts").union(b).key_by("auction").aggregate("x", p=ferry.last("price")), "p=last('price') needs event times; call .event_time(column)"),
    ("half a bound", lambda b, p: keyed(b).join("j", p.event_time("at").key_by("id"), ["price"], ["name"], within=(None, "1h")), "within=(None, '1h'): both bounds are needed"),
    ("late of no type", lambda b, p: windowed(b.map_batches(intervals)).aggregate("x", late=ferry.parquet("late"), n=ferry.count()), "operator 'x': late=: column 'u' is month_day_nano_interval, which Spark has not; cast it"),
    ("ttl at once", lambda b, p: keyed(b).aggregate("x", ttl=0, n=ferry.count()), "aggregate 'x': ttl=0 is not a positive time to keep a key for"),
    ("endless ttl", lambda b, p: keyed(b).aggregate("x", ttl="9223372036854775808ms", n=ferry.count()), "is not a positive time to keep a key for"),
    ("odd ttl", lambda b, p: keyed(b).aggregate("x", ttl=ferry.count()), "aggregate 'x': ttl: Aggregate(name='', function='count'"),
    ("ttl of records", lambda b, p: keyed(b).aggregate("x", ferry.records("ts"), ttl="1h", n=ferry.count()), "aggregate 'x': ttl= works with Ferry's aggregate functions, emitted at_end() or as changes()"),
    ("key twice", lambda b, p: b.key_by("auction", "channel", "auction"), "key_by on source 'bid': column 'auction' is named twice"),
    ("key of a bound", lambda b, p: rolled(b, windowed), "operator 'top': the key column 'window_start' and another output column would both be named 'window_start'; rename it before key_by, in .map_batches(ferry.select(..., other=pc.field('window_start')))"),
    ("key of a session's bound", lambda b, p: rolled(b, lambda s: s.key_by("window_end").window(ferry.session("1h"))), "'window_end'"),
    ("capitals", lambda b, p: windowed(b).aggregate("x", n=ferry.count(), N=ferry.max("price")), "operator 'x': output columns ['n', 'N'] would have the same name (case does not count); rename one of them"),
    ("capitals of a key", lambda b, p: windowed(b).aggregate("x", Auction=ferry.count()), "the key column 'auction' and another output column would both be named 'Auction'"),
    ("capitals of a join", lambda b, p: windowed(b).join("j", keyed(b), {"A": "price"}, {"a": "price"}), "operator 'j': output columns ['A', 'a']"),
    ("no name", lambda b, p: windowed(b).aggregate("x", {"": ferry.count()}), "aggregate 'x': '' is not a name of an output column"),
    ("name in both", lambda b, p: windowed(b).aggregate("x", {"n": ferry.count()}, n=ferry.count()), "aggregate 'x': 'n' is not a name of an output column, or names two columns"),
    ("output late", lambda b, p: windowed(b).aggregate("x", late=ferry.max("price"), n=ferry.count()), 'aggregator={"late": ferry.max("column")}'),
    ("two of one name", lambda b, p: b.map_batches(lambda rows: rows.append_column("ts", rows.column(0))), "gives several columns named 'ts'; give each a name of its own"),
    ("no aggregate", lambda b, p: windowed(b).aggregate("x"), "aggregate 'x': name at least one"),
    ("not an aggregate", lambda b, p: windowed(b).aggregate("x", n="count"), "n='count' is not an aggregate"),
    ("no such column", lambda b, p: windowed(b).aggregate("x", s=ferry.sum("prize")), "s needs column 'prize'"),
    ("text column", lambda b, p: windowed(b).aggregate("x", s=ferry.sum("channel")), "column 'channel' is string"),
    ("taken name", lambda b, p: windowed(b).aggregate("x", auction=ferry.count()), "'auction' is already an output column"),
    ("too many", lambda b, p: windowed(b).aggregate("x", **{f"m{i}": ferry.mean("price") for i in range(16)}), "16 aggregates need 33 columns of state, 31 are possible"),
    ("too large", lambda b, p: windowed(b).aggregate("x", **{f"d{i}": ferry.approx_count_distinct("channel") for i in range(3)}), "3 aggregates need 1032 bytes of state for each key, 1024 are possible; declare less (d0 344, d1 344,"),
    ("distinct lists", lambda b, p: p.event_time("at").key_by("id").window(ferry.tumbling("1s")).aggregate("x", d=ferry.approx_count_distinct("tags")), "column 'tags' is list<item: string>; integers, floats, booleans, strings, bytes, dates and timestamps"),
    ("operator name", lambda b, p: windowed(b).aggregate("Hot Items", n=ferry.count()), "operator name 'Hot Items'"),
    ("negative limit", lambda b, p: ferry.console(limit=-1), "console: limit -1; it is the number of printed rows"),
    ("no function", lambda b, p: ferry.foreach_epoch("store"), "foreach_epoch: 'store' is not a function of (epoch, generation"),
    ("other columns", lambda b, p: b.union(p), "union of source 'bid' and source 'person': the columns differ"),
    ("sink of several", lambda b, p: b.union(b).sink(ferry.console()), "a union: give each of its streams"),
    ("time of one", lambda b, p: b.event_time("ts").union(b).key_by("auction").window(ferry.tumbling("1s")), "no event time"),
    ("no other key", lambda b, p: windowed(b).join("j", p, [], []), "the other stream needs .key_by"),
    ("key zones", lambda b, p: p.event_time("at").key_by("at").window(ferry.tumbling("1s")).join("j", b.event_time("ts").key_by("ts"), [], []), "keys differ in type: {'at': 'timestamp[us]'} and {'ts': 'int'}"),
    ("key types", lambda b, p: windowed(b).join("j", p.event_time("at").key_by("name"), [], []), "keys differ in type"),
    ("join column", lambda b, p: windowed(b).join("j", p.event_time("at").key_by("id"), ["x"], []), "join 'j': no column 'x'"),
    ("join names turned", lambda b, p: windowed(b).join("j", p.event_time("at").key_by("id"), {"price": "paid"}, []), "write {output: column}, such as {'paid': 'price'}"),
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
    ("text", "value"),
    [
        (0, 0),
        ("250ms", 250),
        ("1.5s", 1500),
        ("2m", 120_000),
        ("12h", 43_200_000),
        ("10 seconds", 10_000),
        (" 1 Hour ", 3_600_000),
        (timedelta(minutes=2), 120_000),
        ("1 day", 86_400_000),
    ],
)
def test_durations(text: Any, value: int) -> None:
    assert milliseconds(text, "x") == value


def test_columns_of_any_type_can_be_counted(bids: Stream, build: Build) -> None:
    windowed(bids).aggregate("x", n=ferry.count(), named=ferry.count("channel"))
    assert [column.number for column in state_columns(build.operators[0].descriptor)] == ["int"]
    with pytest.raises(SpecRefused, match="'y': n needs column 'chanel'"):
        windowed(bids).aggregate("y", n=ferry.count("chanel"))


WORDS = [
    "name",
    "emit",
    "ttl",
    "late",
    "aggregator",
    "self",
    "columns",
    "order",
    "number",
    "aggregates",
    "class",
    "a b",
    "_1",
]


@pytest.mark.parametrize("word", WORDS)
def test_an_output_column_may_have_any_name(bids: Stream, word: str) -> None:
    """Also that of a parameter: name and self as they are, the others in a dict."""
    given = {word: ferry.max("price")}
    streams = {
        "w": windowed(bids).aggregate("w", given, n=ferry.count()),
        "s": keyed(bids).window(ferry.session("1s")).aggregate("s", given, n=ferry.count()),
        "r": keyed(bids).window(ferry.rows(3)).aggregate("r", ["ts"], given, n=ferry.count()),
        "k": keyed(bids).aggregate("k", aggregator=given, n=ferry.count()),
        "e": keyed(bids).aggregate("e", ferry.records("ts"), given, n=ferry.count()),
        "t": keyed(bids).aggregate("t", aggregator={word: ferry.max("channel")}, n=ferry.count()),
    }
    if word in ("name", "self"):
        streams["plain"] = windowed(bids).aggregate("plain", **given)
        streams["rows"] = keyed(bids).window(ferry.rows(3)).aggregate("rows", ["ts"], **given)
        streams["keys"] = keyed(bids).aggregate("keys", **given)
    for stream in streams.values():
        assert word in stream.columns and stream.columns.count(word) == 1


def test_a_column_of_a_union_may_be_null_where_it_may_be_in_one_of_its_streams(bids: Stream) -> None:
    strict = bids.map_batches(lambda rows: rows.cast(pa.schema([one.with_nullable(False) for one in rows.schema])))
    assert not any(field.nullable for field in strict.input.schema) and bids.input.schema.field("price").nullable
    for united in (strict.union(bids), bids.union(strict), strict.union(strict).union(bids)):
        assert all(one.schema == bids.input.schema for one in (united.input, *united.more))
    assert not any(field.nullable for field in strict.union(strict).input.schema)
