"""The parts of Kafka's source and sink that need no broker: positions, shares, what values say, what options may be."""

from __future__ import annotations

import io
import json
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import Mock

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st

import ferry
from ferry.connectors import sink as sinks
from ferry.connectors.formats.json_lines import parse_each
from ferry.connectors.kafka import client as kafka_client
from ferry.connectors.kafka import readers as kafka_readers
from ferry.connectors.kafka import schemas as kafka_schemas
from ferry.connectors.kafka import sink as kafka_sink
from ferry.connectors.kafka import source as kafka
from ferry.connectors.kafka.client import NotAllowed, NoTopic, TopicEnds
from ferry.connectors.kafka.place import KafkaPlace
from ferry.connectors.kafka.readers import RangeReader
from ferry.connectors.kafka.records import Decoder, Encoder, Marker
from ferry.connectors.kafka.registry import SchemaRegistry
from ferry.connectors.kafka.source import KafkaSplits, rounds, shared, spread
from ferry.connectors.kafka.writers import PlainWriter
from ferry.connectors.splits import FlowSplits, LagSplits, Malformed, Splits, has_flows
from ferry.contract.errors import Final, RowsGone, SpecRefused, Unreachable
from ferry.driver.failures import refuse_final

COLUMNS = pa.schema([("user", pa.string()), ("ts", pa.int64())])
OFFSETS = st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 60_000), st.integers(0, 60_000)), max_size=6)


class Brokers:
    """Stands in for a topic's: partitions with the offsets that they begin and end at."""

    def __init__(self, **ends: tuple[int, int]) -> None:
        self.id = "one"
        self.ends = {int(name[1:]): pair for name, pair in ends.items()}
        self.asked = 0

    def partitions(self) -> tuple[str, list[int]]:
        if not self.ends:
            raise NoTopic("unknown")
        return self.id, sorted(self.ends)

    def earliest(self, partitions: Any) -> dict[int, int]:
        return {one: self.ends[one][0] for one in partitions}

    def latest(self, partitions: Any) -> dict[int, int]:
        self.asked += 1
        return {one: self.ends[one][1] for one in partitions}


def source(brokers: Brokers, monkeypatch: pytest.MonkeyPatch, **more: Any) -> KafkaSplits:
    monkeypatch.setattr(kafka, "PARTITIONS_SECONDS", 0.0)
    monkeypatch.setattr(kafka, "ENDS_SECONDS", 0.0)
    monkeypatch.setattr(kafka, "MISSING_SECONDS", 0.0)
    made = ferry.kafka("nowhere:1", "clicks", COLUMNS, **more)
    made._topic_ends = brokers  # type: ignore[assignment]
    return made


def pieces(splits: list[Any]) -> list[Any]:
    return [split["pieces"] for split in splits]


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 50)), st.integers(0, 120))
def test_what_waits_is_taken_evenly_and_never_more_than_may_be(waiting: dict[int, int], most: int) -> None:
    taken = spread(waiting, most)
    assert sum(taken.values()) == min(most, sum(waiting.values()))
    assert all(0 < many <= waiting[one] for one, many in taken.items())
    unfilled = [taken.get(one, 0) for one, many in waiting.items() if taken.get(one, 0) < many]
    assert max(unfilled, default=0) - min(unfilled, default=0) <= 1
    assert max(taken.values(), default=0) <= min(unfilled, default=0) + 1 or not unfilled


@settings(deadline=None)
@given(OFFSETS, st.integers(1, 5))
def test_shares_hold_every_offset_once(ranges: dict[int, tuple[int, int]], tasks: int) -> None:
    pieces = [(one, start, start + many) for one, (start, many) in sorted(ranges.items()) if many]
    shares = shared(pieces, tasks)
    assert len(shares) <= tasks and all(shares)
    found = sorted((p, o) for share in shares for p, a, b in share for o in range(a, b))
    assert found == [(p, o) for p, a, b in pieces for o in range(a, b)]
    total = len(found)
    assert max((sum(b - a for _, a, b in s) for s in shares), default=0) <= max(20_000, 1.5 * total / tasks + 1)


@settings(deadline=None)
@given(OFFSETS, st.integers(1, 70_000))
def test_rounds_read_every_piece_in_order(ranges: dict[int, tuple[int, int]], rows: int) -> None:
    rows = max(rows, 700)
    pieces = [[one, start, start + many] for one, (start, many) in ranges.items() if many]
    at = {one: start for one, start, _ in pieces}
    for some in rounds(pieces, rows):
        assert sum(b - a for a, b in some.values()) <= max(rows, len(some))
        for one, (a, b) in some.items():
            assert a == at[one] < b
            at[one] = b
    assert at == {one: stop for one, _, stop in pieces}


def test_offsets_are_divided_down_to_single_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = source(Brokers(p0=(0, 100)), monkeypatch)
    left, found = [{"pieces": [[0, 17, 90]]}], []
    while left:
        one = left.pop()
        if not (smaller := mine.divided(one)):
            found.append(one["pieces"][0][1])
            assert mine.place(one) == f"topic clicks, partition 0, offset {found[-1]}"
        left += smaller
    assert sorted(found) == list(range(17, 90))


def test_a_position_goes_on_by_at_most_an_epochs_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    one = source(Brokers(p0=(5, 25), p1=(0, 3), p2=(0, 0)), monkeypatch)
    assert isinstance(one, Splits) and has_flows(one) and isinstance(one, LagSplits)
    start = one.start()
    assert start == {"topic": "one", "first": (low := {"0": 5, "1": 0, "2": 0}), "offsets": low}
    first = one.latest(start, 10)
    assert first["offsets"] == {"0": 12, "1": 3, "2": 0} and not one.ended(first)
    assert one.lag(first) == 13 and one.flows(first) == {"0": True, "1": False, "2": False}
    assert pieces(one.plan(start, first, 2)) == [[(0, 5, 12)], [(1, 0, 3)]]
    last = one.latest(one.latest(first, 10), 10)
    assert last["offsets"] == {"0": 25, "1": 3, "2": 0}
    assert one.latest(last, 10) is last and one.plan(last, last, 2) == []
    assert json.loads(json.dumps(last)) == last


def test_a_backlog_is_not_asked_for_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(p0=(0, 1000))
    one = source(brokers, monkeypatch)
    monkeypatch.setattr(kafka, "ENDS_SECONDS", 60.0)
    position = one.start()
    for _ in range(9):
        position = one.latest(position, 100)
    assert brokers.asked == 1 and position["offsets"] == {"0": 900}


def test_partitions_that_are_added_are_read_from_their_first_record(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(p0=(0, 4))
    one = source(brokers, monkeypatch, starting="latest")
    start = one.start()
    assert start["offsets"] == {"0": 4} and one.latest(start, 10) is start
    brokers.ends |= {1: (2, 7)}
    later = one.latest(start, 10)
    assert later["offsets"] == {"0": 4, "1": 7}
    assert pieces(one.plan(start, later, 4)) == [[(1, 2, 7)]]
    brokers.ends |= {1: (7, 9)}
    assert pieces(one.plan(start, later, 4)) == [[(1, 2, 7)]], "an epoch that is begun again has the same records"


def test_a_first_epoch_that_is_begun_again_has_the_same_records(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(p0=(0, 4))
    one = source(brokers, monkeypatch, starting="latest")
    start = one.start()
    brokers.ends = {0: (0, 9)}
    first = one.latest(start, 10)
    brokers.ends = {0: (0, 20)}
    assert pieces(one.plan(one.start(), first, 1)) == pieces(one.plan(start, first, 1)) == [[(0, 4, 9)]]


def test_a_finite_input_ends_where_the_topic_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(p0=(0, 4), p1=(0, 0))
    one = source(brokers, monkeypatch, finite=True)
    start = one.start()
    brokers.ends |= {0: (0, 50), 1: (0, 50), 2: (0, 50)}
    last = one.latest(start, 1000)
    assert last["offsets"] == {"0": 4, "1": 0} and one.ended(last) and not one.ended(start)
    assert one.latest(last, 1000) is last and one.lag(last) == 0 and one.lag(start) == 4
    assert one.flows(last) == {"0": False, "1": False}
    with pytest.raises(SpecRefused, match="the job began with finite=False"):
        one.latest(source(brokers, monkeypatch).start(), 1)


def test_a_topic_that_is_not_there_or_is_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers()
    one = source(brokers, monkeypatch)
    with pytest.raises(SpecRefused, match="the topic does not exist"):
        one.start()
    brokers.ends = {0: (0, 1)}
    start = one.start()
    brokers.ends = {}
    with pytest.raises(Unreachable):
        one.latest(start, 1)
    brokers.ends, brokers.id = {0: (0, 1)}, "two"
    with pytest.raises(SpecRefused, match="created again"):
        one.latest(start, 1)


@pytest.mark.parametrize("finite", [False, True])
def test_a_topic_that_is_made_again_between_two_looks_for_partitions_is_seen_before_its_records_are_taken(
    monkeypatch: pytest.MonkeyPatch, finite: bool
) -> None:
    brokers = Brokers(p0=(0, 9))
    one = source(brokers, monkeypatch, finite=finite)
    monkeypatch.setattr(kafka, "PARTITIONS_SECONDS", 60.0)
    monkeypatch.setattr(kafka, "SAME_SECONDS", 0.0)
    first = one.latest(one.start(), 4)
    brokers.id = "two"
    with pytest.raises(SpecRefused, match="created again"):
        one.latest(first, 4)


def test_a_partition_without_a_leader_is_waited_for_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    class Young(Brokers):
        """Has just begun."""

        def earliest(self, partitions: Any) -> dict[int, int]:
            self.asked += 1
            if self.asked <= 2:
                raise Unreachable("Not leader for partition")
            return super().earliest(partitions)

    one = source(Young(p0=(3, 9)), monkeypatch)
    with pytest.raises(Unreachable, match="Not leader"):
        one.start()
    monkeypatch.setattr(kafka, "MISSING_SECONDS", 20.0)
    assert one.start()["offsets"] == {"0": 3}


def test_tasks_get_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    one = source(Brokers(p0=(0, 1)), monkeypatch)
    assert pickle.loads(pickle.dumps(one))._topic_ends is None and one._topic_ends is not None


class Record:
    """As the library has them."""

    def __init__(self, value: bytes | None, offset: int, key: bytes | None = None) -> None:
        self._value, self._offset, self._key = value, offset, key

    def value(self) -> bytes | None:
        return self._value

    def key(self) -> bytes | None:
        return self._key

    def topic(self) -> str:
        return "clicks"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return (1, 1_700_000_000_000 + self._offset) if self._offset else (0, -1)

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return [("h", b"x"), ("h", None)] if self._offset else None


def test_values_that_do_not_fit_are_set_aside_and_what_is_beside_them_goes_along() -> None:
    values = [b'{"user": "a", "ts": 1, "more": 0}', b"{oops", b'{\n"ts": 4}', b'{"user": "b", "ts": "x"}', None, b"[1]"]
    records = [Record(value, i, b"k%d" % i) for i, value in enumerate(values)]
    beside = ["key", "partition", "offset", "timestamp", "headers"]
    rows, bad = Decoder(COLUMNS, beside).decode(records, None)
    assert isinstance(rows, pa.RecordBatch) and isinstance(bad, Malformed)
    made = rows.to_pylist()
    assert [(r["user"], r["ts"], r["key"], r["offset"], r["partition"]) for r in made] == [
        ("a", 1, b"k0", 0, 3),
        (None, 4, b"k2", 2, 3),
    ]
    assert made[0]["timestamp"] is None and made[1]["timestamp"].timestamp() == 1_700_000_000.002
    assert made[0]["headers"] == [] and [h["value"] for h in made[1]["headers"]] == [b"x", None]
    assert bad.count == 4 and bad.records == ["{oops", '{"user": "b", "ts": "x"}', "", "[1]"] and bad.reason
    (some,) = Decoder(COLUMNS, beside).decode(records[:1], ["offset", "ts"])
    assert isinstance(some, pa.RecordBatch) and some.to_pylist() == [{"offset": 0, "ts": 1}]


def test_each_value_that_does_not_fit_has_its_own_reason() -> None:
    values = [b"null", b'{"ts": 1}', b"[1]", b'{"ts": "x"}', None, b'{"ts": 1}{"ts": 2}']
    _, bad = Decoder(COLUMNS, ()).decode([Record(value, i) for i, value in enumerate(values)], None)
    assert isinstance(bad, Malformed) and bad.reason == bad.reasons[0]
    assert bad.reasons == [
        "topic clicks, partition 3, offset 0: not a JSON object",
        "topic clicks, partition 3, offset 2: not a JSON object",
        "topic clicks, partition 3, offset 3: field 'ts': \"x\" does not fit int64",
        "topic clicks, partition 3, offset 4: no value",
        "topic clicks, partition 3, offset 5: more than a JSON object: '{' at byte 9",
    ]


def test_a_header_whose_name_is_no_text_and_a_time_that_is_none() -> None:
    class Odd(Record):
        def headers(self) -> Any:
            if self._offset == 1:
                raise SystemError("returned a result with an exception set")  # as the library does
            return []

        def timestamp(self) -> tuple[int, int]:
            return 1, -1

    records = [Odd(b'{"ts": 0}', 0), Odd(b'{"ts": 1}', 1), Odd(b"oops", 2), Odd(b'{"ts": 3}', 3)]
    for columns in (None, ["ts"]):
        rows, bad = Decoder(COLUMNS, ["headers", "timestamp"]).decode(records, columns)
        assert isinstance(rows, pa.RecordBatch) and rows.column("ts").to_pylist() == [0, 3]
        assert columns or rows.column("timestamp").to_pylist() == [None, None]
        assert isinstance(bad, Malformed) and bad.records == ['{"ts": 1}', "oops"]
        assert bad.reason == "topic clicks, partition 3, offset 1: the name of a header is not UTF-8"


def test_plain_values() -> None:
    records = [Record(b"a", 0), Record(None, 1), Record(b"\xff", 2)]
    (rows,) = Decoder("bytes", ()).decode(records, None)
    assert isinstance(rows, pa.RecordBatch) and rows.column(0).to_pylist() == [b"a", None, b"\xff"]
    rows, bad = Decoder("string", ["offset"]).decode(records, None)
    assert isinstance(rows, pa.RecordBatch) and rows.to_pylist() == [
        {"value": "a", "offset": 0},
        {"value": None, "offset": 1},
    ]
    assert isinstance(bad, Malformed) and bad.count == 1


def test_values_are_judged_alone_as_among_others() -> None:
    values = [b'{"user": "%d"}' % i if i % 7 else b"%d" % i for i in range(50)]
    table, bad = parse_each(values, COLUMNS)
    assert sorted(bad) == [i for i in range(50) if i % 7 == 0] and table.num_rows == 50 - len(bad)
    assert table.column("user").to_pylist() == [str(i) for i in range(50) if i % 7]
    assert parse_each([], COLUMNS)[0].num_rows == 0


class Queue:
    """Stands in for the library's consumer: what has come, and how long somebody waited for more."""

    def __init__(self, settings: Any) -> None:
        self.waiting: list[Any] = []
        self.waited = 0.0
        self.assigned: list[int] = []

    def assign(self, partitions: Any) -> None:
        self.assigned = [one.partition for one in partitions]

    def close(self) -> None:
        """It is not asked any more."""

    def consume(self, many: int, seconds: float) -> list[Any]:
        some, self.waiting = self.waiting[:many], self.waiting[many:]
        self.waited += seconds if len(some) < many else 0.0
        return some


class Come:
    """A record that has come, of so many bytes."""

    def __init__(self, partition: int, offset: int, size: int = 1, error: Any = None) -> None:
        self._partition, self._offset, self._size, self._error = partition, offset, size, error

    def __len__(self) -> int:
        return self._size

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def error(self) -> Any:
        return self._error


def reader(monkeypatch: pytest.MonkeyPatch, brokers: Brokers) -> Any:
    """A reader, with what has come in `waiting`."""
    monkeypatch.setattr("confluent_kafka.Consumer", Queue)
    made = RangeReader(KafkaPlace.of("b:1", None), "clicks")
    made._ends = brokers  # type: ignore[assignment]
    return made


def test_a_reader_waits_for_no_more_than_what_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    one = reader(monkeypatch, Brokers(p0=(0, 6)))
    for start in (0, 3):
        one._consumer.waiting = [Come(0, at) for at in range(start, start + 3)]
        ((partition, some),) = one.read({0: (start, start + 3)}, "one")
        assert partition == 0 and [come.offset() for come in some] == [start, start + 1, start + 2]
    assert one._consumer.waited == 0.0


@settings(deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.randoms())
def test_parts_of_large_records_are_the_same_in_whatever_order_they_come(sizes: list[int], chance: Any) -> None:
    """Records of a split have numbers, by which one that kills its task is left out."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(kafka_readers, "PART_BYTES", 100)
        monkeypatch.setattr(kafka_readers, "CONSUME_MAX", 3)
        found = []
        for _ in range(2):
            one = reader(monkeypatch, Brokers(p0=(0, 99), p1=(0, 99)))
            left = {p: [Come(p, i, size) for i, size in enumerate(sizes)] for p in (0, 1)}

            def consume(many: int, seconds: float, one: Any = one, left: Any = left) -> list[Any]:
                able = [p for p in left if left[p] and p in one._consumer.assigned]
                return [left[chance.choice(able)].pop(0)] if able else []

            one._consumer.consume = consume
            stop = len(sizes)
            parts = [(p, [c.offset() for c in some]) for p, some in one.read({0: (0, stop), 1: (0, stop)}, "one")]
            assert [(p, at) for p, some in parts for at in some] == [(p, at) for p in (0, 1) for at in range(stop)]
            assert all(sum(sizes[at] for at in some[:-1]) < 100 for _, some in parts)
            found.append(parts)
        assert found[0] == found[1]


def test_records_of_a_topic_that_was_made_again_are_not_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share is read again when its broker is back, maybe after hours, and the driver has not looked since."""
    brokers = Brokers(p0=(0, 6))
    one = reader(monkeypatch, brokers)
    one._consumer.waiting = [Come(0, at) for at in range(3)]
    brokers.id = "two"
    with pytest.raises(SpecRefused, match=r"kafka\('b:1', 'clicks'\): the topic was deleted and created again"):
        list(one.read({0: (0, 3)}, "one"))


def test_a_reader_says_what_the_brokers_have_of_a_partition_that_has_lost_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = reader(monkeypatch, Brokers(p0=(4, 9)))
    one._consumer.waiting = [Come(0, 0, error=KafkaError(KafkaError._AUTO_OFFSET_RESET))]
    with pytest.raises(
        SpecRefused, match=r"^records lost: .*partition 0: .*no longer has offset 2.*has offsets 4 to 8"
    ):
        list(one.read({0: (2, 9)}, "one"))


def test_a_group_that_may_not_be_used_does_not_matter_to_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    one = reader(monkeypatch, Brokers(p0=(0, 1)))
    one._consumer.waiting = [Come(0, -1, error=KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)), Come(0, 0)]
    assert [len(some) for _, some in one.read({0: (0, 1)}, "one")] == [1]


def test_a_right_that_is_taken_away_is_waited_for_and_one_that_never_was_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brokers = Brokers(p0=(0, 6))
    one, denied = source(brokers, monkeypatch), KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    start = one.start()
    first = one.latest(start, 2)
    later = one.latest(first, 2)

    @contextmanager
    def lent(*about: Any) -> Iterator[Any]:
        made = reader(monkeypatch, brokers)
        made._consumer.waiting = [Come(0, 0, error=denied)]
        yield made

    monkeypatch.setattr(kafka, "lent_reader", lent)
    with pytest.raises(SpecRefused, match="uthoriz"):
        list(one.read(one.plan(start, first, 1)[0]))
    with pytest.raises(Unreachable, match="uthoriz") as waited:
        list(one.read(one.plan(first, later, 1)[0]))
    assert type(waited.value) is Unreachable, "Spark's text of a task's error names a class of contract.errors"
    monkeypatch.setattr(brokers, "partitions", Mock(side_effect=NotAllowed("Authorization failed")))
    with pytest.raises(Unreachable):
        one.latest(later, 2)
    with pytest.raises(SpecRefused):
        one.start()


def test_a_partition_that_ends_before_what_was_read_of_it_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else new records at the offsets of those that are lost would never be read."""
    brokers = Brokers(p0=(0, 6), p1=(0, 3))
    one = source(brokers, monkeypatch)
    position = one.latest(one.start(), 100)
    brokers.ends[0] = (0, 2)
    with pytest.raises(Unreachable, match="partition 0 was read up to offset 6, and ends at 2"):
        one.latest(position, 100)
    brokers.ends[0] = (0, 7)
    assert one.latest(position, 100)["offsets"] == {"0": 7, "1": 3}, "a new leader knows the end a little later"
    brokers.ends[0] = (0, 2)
    monkeypatch.setattr(kafka, "BACK_SECONDS", 0.0)
    with pytest.raises(SpecRefused, match=r"^records lost: .*partition 0 was read up to offset 6"):
        one.latest(position, 100)
    brokers.id = "two"
    with pytest.raises(SpecRefused, match="created again"):
        one.latest(position, 100)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"value": "avro"}, "value='avro'"),
        ({"value": COLUMNS, "beside": ["user"]}, "beside="),
        ({"value": pa.schema([("key", pa.string())]), "beside": ["key"]}, "key: the value has a field"),
        ({"starting": "now"}, "starting='now'"),
        ({"options": {"sasl.password": "hunter2"}}, "is a secret"),
        ({"options": {"enable.auto.commit": True}}, "set by Ferry"),
        ({"servers": ""}, "servers"),
        ({"topic": ""}, "topic"),
    ],
)
def test_what_cannot_be_is_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecRefused, match=words) as refused:
        ferry.kafka(**({"servers": "a:1", "topic": "t"} | more))
    assert "hunter2" not in str(refused.value)


def test_secrets_are_names_until_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    one = ferry.kafka("a:1", "t", options={"sasl.password": "${KAFKA_WORD}", "sasl.username": "u"})
    with pytest.raises(SpecRefused, match="KAFKA_WORD"):
        one._place.settings({})
    monkeypatch.setenv("KAFKA_WORD", "hunter2")
    assert one._place.settings({})["sasl.password"] == "hunter2"
    assert b"hunter2" not in pickle.dumps(one) and "hunter2" not in repr(one._place)


def test_clients_keep_brokers_that_are_away_and_options_have_the_last_word() -> None:
    settings = KafkaPlace.of("b:1", {"reconnect.backoff.max.ms": 5}).settings({"log_level": 3, "linger.ms": 7})
    assert settings["metadata.recovery.strategy"] == "none"
    assert (settings["reconnect.backoff.max.ms"], settings["log_level"], settings["linger.ms"]) == (5, 3, 7)


def test_brokers_that_gave_no_answer_for_long_are_asked_through_a_new_client(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def client(settings: Any) -> int:
        made.append(settings)
        return len(made)

    monkeypatch.setattr("confluent_kafka.admin.AdminClient", client)
    ends = TopicEnds(KafkaPlace.of("b:1", None), "clicks")
    answered: Future[str] = Future()
    answered.set_result("yes")
    assert [ends._client(), ends._client()] == [1, 1]
    ends._answered -= kafka_client.STALE_SECONDS + 1
    assert ends._answer(answered) == "yes" and ends._client() == 1
    ends._answered -= kafka_client.STALE_SECONDS + 1
    assert [ends._client(), ends._client()] == [2, 2]


def test_lost_records_end_the_job_whoever_reports_them() -> None:
    text = "PythonException: ... ferry.contract.errors.SpecRefused: records lost: topic 'a', partition 1\n  at x"
    with pytest.raises(SpecRefused, match=r"^records lost: topic 'a', partition 1$"):
        refuse_final(text)
    refuse_final(RowsGone("other"))


def test_rows_are_records() -> None:
    rows = pa.table({"auction": [7, None], "price": [1.5, float("nan")], "raw": [b"\x00", None]})
    assert Encoder("auction", "json").encode(rows) == [
        (b"7", b'{"auction":7,"price":1.5,"raw":"AA=="}'),
        (None, b'{"auction":null,"price":"NaN","raw":null}'),
    ]
    assert Encoder(None, "bytes").encode(pa.table({"value": [b"a", None]})) == [(None, b"a"), (None, None)]
    for encoder in (Encoder("seller", "json"), Encoder(None, "string")):
        with pytest.raises(SpecRefused, match="no column"):
            encoder.encode(rows)
    with pytest.raises(SpecRefused, match="two columns 'v'"):
        Encoder(None, "json").encode(pa.table([[1], [2]], names=["v", "v"]))


def test_what_python_has_no_word_for_is_written() -> None:
    beyond = pa.array([253_402_300_799_000_000], pa.timestamp("us", "Europe/Berlin"))
    rows = pa.table({"user": pa.array([True]), "until": beyond, "seen": pa.array([{"at": 2**60}])})
    assert Encoder("user", "json").encode(rows) == [
        (b"true", b'{"user":true,"until":"9999-12-31T23:59:59+00:00","seen":{"at":1152921504606846976}}')
    ]
    assert Encoder("until", "json").encode(rows)[0][0] == b"9999-12-31T23:59:59+00:00"
    assert Encoder("seen", "json").encode(rows)[0][0] == b'{"at":1152921504606846976}'


PARTITIONS_OF_JAVA = {
    "": 1, "2": 0, "a": 0, "north": 2, "-1": 3, "true": 2, "1.5": 1, "\u00e9\u65e5\u672c\U0001f600": 1, "x" * 1000: 2, "\0": 0, "0123456789": 0,
    "2024-03-10T02:30:00": 2, '{"at":7}': 1, "21": 0, "abc\0": 2,
}  # fmt: skip
"""To which of 4 partitions the Java producer of kafka-clients 4.3.1 has sent keys, with its default partitioner and a broker
of Kafka 4.3.1. The hashes of "a", "21" and "true" are negative. Of 2,000 keys of random bytes none went elsewhere, for 1, 3,
8 and 100 partitions."""


@pytest.mark.parametrize("exactly_once", [True, False])
def test_keys_go_to_the_partitions_of_javas_producer(exactly_once: bool) -> None:
    """Through the library itself, to a broker that it plays: a topic there has 4 partitions."""
    keys = [*PARTITIONS_OF_JAVA]
    one: Any = ferry.kafka_sink("b:1", "keys", key="k", exactly_once=exactly_once, options={"test.mock.num.brokers": 1})
    encoder, place = one._encoder, one._place
    writer: Any = PlainWriter(place, "keys", "sink", encoder)
    writer.publish([(key, value, []) for key, value in encoder.encode(pa.table({"k": keys}))])
    (at,) = writer._producer.list_topics("keys", 10).brokers.values()
    found = Consumer({"bootstrap.servers": f"{at.host}:{at.port}", "group.id": "g", "auto.offset.reset": "earliest"})
    found.assign([TopicPartition("keys", partition, 0) for partition in range(4)])
    some: list[Any] = []
    while len(some) < len(keys):
        some += (came := found.consume(len(keys), 20.0))
        assert came
    found.close()
    assert {one.key().decode(): one.partition() for one in some} == PARTITIONS_OF_JAVA


class Limited:
    """Stands in for the library's producer: the topic takes no batch beyond 1,000 bytes, and says so when it is delivered."""

    settings: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, settings: dict[str, Any]) -> None:
        self._records: list[Any] = []
        self._reports: list[Any] = []
        if "on_delivery" in settings:
            Limited.settings.append(settings)

    def produce(self, topic: str, value: bytes, key: bytes, headers: Any) -> None:
        if len(value) > 10_000:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        self._records.append(SimpleNamespace(key=lambda: key, value=lambda: value))

    def _deliver(self) -> None:
        some, self._records = self._records, []
        if not some:
            return
        settings = self.settings[-1]
        most = settings.get("batch.num.messages", 10_000)
        size = settings.get("batch.size", 1_000_000) // 20
        batches: list[list[Any]] = [[]]
        for one in some:
            if len(batches[-1]) == most or sum(len(other.value()) for other in batches[-1]) > size:
                batches.append([])
            batches[-1].append(one)
        for batch in batches:
            if sum(len(one.value()) for one in batch) > 1_000:
                self._reports += [(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), one) for one in batch]

    def poll(self, *more: Any) -> None:
        for error, one in self._reports:
            self.settings[-1]["on_delivery"](error, one)
        self._reports = []

    def flush(self, *more: Any) -> int:
        self._deliver()
        self.poll()
        return 0

    def list_topics(self, topic: str, *more: Any) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None)})

    def send_offsets_to_transaction(self, *more: Any) -> None:
        self._deliver()
        if self._reports:
            raise KafkaException(KafkaError(KafkaError._STATE))

    def __getattr__(self, name: str) -> Any:
        return lambda *more: None


def limited(monkeypatch: pytest.MonkeyPatch, exactly_once: bool, **more: Any) -> Any:
    """A sink of a topic that takes no large batches."""
    monkeypatch.setattr("confluent_kafka.Producer", Limited)
    monkeypatch.setattr("confluent_kafka.Consumer", Limited)
    monkeypatch.setattr(kafka_sink, "marker_of", lambda *about, settled=True: None)
    Limited.settings.clear()
    return ferry.kafka_sink("b:1", "sums", key="k", exactly_once=exactly_once, **more)


@pytest.mark.parametrize("exactly_once", [True, False])
@pytest.mark.parametrize("size", [2_000, 20_000])
def test_a_row_that_is_too_large_is_final_and_is_named(
    monkeypatch: pytest.MonkeyPatch, exactly_once: bool, size: int
) -> None:
    one = limited(monkeypatch, exactly_once)
    rows = pa.table({"k": ["a", "north", "b"], "n": [1, 2, 3], "text": ["", "x" * size, "y" * 500]})
    words = rf"kafka_sink\('b:1', 'sums'.*'north' has {size + 34} bytes, most of them in column 'text'.*max\.message"
    with pytest.raises(Final, match=words):
        one.write(0, 1, rows)
    assert Limited.settings[0]["partitioner"] == "murmur2_random"
    assert KafkaPlace.of("b:1", {"partitioner": "random"}).settings(Limited.settings[0])["partitioner"] == "random"


@pytest.mark.parametrize("exactly_once", [True, False])
@pytest.mark.parametrize(("size", "tries"), [(90, 2), (600, 3)])
def test_rows_that_are_too_large_together_alone_are_written(
    monkeypatch: pytest.MonkeyPatch, exactly_once: bool, size: int, tries: int
) -> None:
    one = limited(monkeypatch, exactly_once, options={"batch.size": 500_000})
    for epoch in (0, 1):
        one.write(epoch, 1, pa.table({"k": ["a"] * 50, "text": ["x" * size] * 50}))
    assert len(Limited.settings) == tries


def test_a_column_is_named_also_where_values_are_no_json() -> None:
    assert "column 'value'" in Encoder("k", "string").described((b"k", b'{"a": "xxxxxxxx"}', []))
    assert "column 'k'" in Encoder("k", "json").described((b"k" * 100, b'{"a": "xxxxxxxx"}', []))


@pytest.mark.parametrize("exactly_once", [True, False])
def test_a_right_to_write_that_is_taken_away_is_waited_for(monkeypatch: pytest.MonkeyPatch, exactly_once: bool) -> None:
    denied = Mock(side_effect=KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    one = limited(monkeypatch, exactly_once)
    one.open(-1)
    with monkeypatch.context() as away:
        away.setattr(Limited, "produce", denied)
        with pytest.raises(SpecRefused, match="uthoriz"):
            one.write(0, 1, pa.table({"k": ["a"]}))
    one.write(0, 1, pa.table({"k": ["a"]}))
    with monkeypatch.context() as away:
        away.setattr(Limited, "produce", denied)
        with pytest.raises(Unreachable, match="uthoriz"):
            one.write(1, 1, pa.table({"k": ["a"]}))
    one.write(1, 1, pa.table({"k": ["a"]}))


def test_an_option_that_the_library_does_not_have_is_refused() -> None:
    one = ferry.kafka("b:1", "clicks", options={"no.such": "x"})
    with pytest.raises(SpecRefused, match=r"no\.such"):
        one.start()
    with pytest.raises(SpecRefused, match=r"no\.such"):
        ferry.kafka_sink("b:1", "out", options={"no.such": "x"}).open(-1)


class Topic:
    """Stands in for the brokers of a sink: what was published, the marker, and who may write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records: list[Any] = []
        self.marker: Marker | None = None
        self.writer: Any = None
        self.fails = ""
        topic = self

        class Writer:
            def __init__(self, *about: Any) -> None:
                topic.writer = self

            def publish(self, records: Any, marker: Marker) -> None:
                if topic.fails == "before" or topic.writer is not self:
                    raise Unreachable("gone")
                topic.records += [value for _, value, _ in records]
                topic.marker = marker
                if topic.fails == "after":
                    raise Unreachable("no answer")

            def close(self) -> None:
                pass

        monkeypatch.setattr(kafka_sink, "TransactionWriter", Writer)
        monkeypatch.setattr(kafka_sink, "marker_of", lambda *about, settled=True: self.marker)


def driver(committed: int, run: str = "", **more: Any) -> kafka_sink.KafkaSink:
    made = ferry.kafka_sink("a:1", "out", **more)
    assert isinstance(made, kafka_sink.KafkaSink)
    sinks.identify([made], "job", run)
    made.open(committed)
    return made


def rows(number: int) -> pa.Table:
    return pa.table({"n": [number]})


def test_an_epoch_is_published_once_whatever_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(monkeypatch)
    one = driver(-1)
    one.write(0, 1, rows(0))
    one.write(0, 1, rows(0))
    for fails in ("before", "after"):
        topic.fails = fails
        with pytest.raises(Unreachable):
            one.write(1, 1, rows(1))
    topic.fails = ""
    one.write(1, 1, rows(1))
    driver(1).write(1, 2, rows(1))
    driver(2).write(2, 3, rows(2))
    assert topic.records == [b'{"n":0}', b'{"n":1}', b'{"n":2}'] and topic.marker == Marker(2, 3)


def test_a_driver_that_was_given_up_writes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(monkeypatch)
    old = driver(-1)
    old.write(0, 1, rows(0))
    new = driver(0)
    with pytest.raises(Unreachable):
        old.write(1, 1, rows(1))
    new.write(1, 2, rows(1))
    with pytest.raises(Final, match="generation 2"):
        old.write(2, 1, rows(2))
    new.write(2, 2, rows(2))
    assert topic.records == [b'{"n":0}', b'{"n":1}', b'{"n":2}']


def test_a_restore_is_refused_unless_there_is_nothing_to_take_back(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(monkeypatch)
    driver(-1).write(5, 1, rows(5))
    one = ferry.kafka_sink("a:1", "out")
    one.truncate_after(5)
    with pytest.raises(SpecRefused, match="restoreSink: keep"):
        one.truncate_after(4)
    one.keep_after(3)
    again = driver(3)
    again.write(4, 2, rows(4))
    assert topic.marker == Marker(4, 2)
    with pytest.raises(SpecRefused, match="another run"):
        driver(-1)


def test_two_runs_of_one_job_never_write_to_one_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both begin before either has published: whoever publishes first goes on, and no epoch is taken for the other's."""
    topic = Topic(monkeypatch)
    one, other = driver(-1, "job-a"), driver(-1, "job-b")
    with pytest.raises(Unreachable):
        one.write(0, 1, rows(0))  # fenced by the other one, and tried again
    one.write(0, 1, rows(0))
    with pytest.raises(Unreachable):
        other.write(0, 1, rows(7))
    with pytest.raises(
        Final, match=r"run job-a writes as 'ferry.job.out', and this run is job-b; give this job another"
    ):
        other.write(0, 1, rows(7))
    with pytest.raises(SpecRefused, match="run job-a writes"):
        driver(-1, "job-c")
    one._writer = None
    one.write(1, 1, rows(1))
    driver(1, "job-a").write(2, 2, rows(2))
    assert topic.records == [b'{"n":0}', b'{"n":1}', b'{"n":2}']


def test_a_restored_run_goes_on_with_the_topic_of_the_run_before(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(monkeypatch)
    driver(-1, "job-a").write(5, 1, rows(5))
    for step, run in (("truncate_after", "job-b"), ("keep_after", "job-c")):
        one = ferry.kafka_sink("a:1", "out")
        sinks.identify([one], "job", run, "job")
        getattr(one, step)(5)
        driver(5, run).write(6, 2, rows(6))
        assert topic.marker == Marker(6, 2, run)
        topic.marker = Marker(5, 2, run)


def test_a_broker_that_is_away_after_a_restore_is_nothing_special(monkeypatch: pytest.MonkeyPatch) -> None:
    """The marker that is found then is of this life, and not of another run."""
    topic = Topic(monkeypatch)
    one = ferry.kafka_sink("a:1", "out")
    one.keep_after(3)
    one.open(3)
    one.write(4, 2, rows(4))
    one._writer = None  # as after a transaction that has failed
    one.write(5, 2, rows(5))
    assert topic.marker == Marker(5, 2)


def test_two_sinks_of_one_name_are_refused() -> None:
    two = [ferry.kafka_sink("a:1", "out"), ferry.kafka_sink("b:1", "out")]
    with pytest.raises(SpecRefused, match="name="):
        sinks.identify(two, "job")
    sinks.identify([two[0], ferry.kafka_sink("a:1", "out", name="other"), ferry.console()], "job")


def test_repeated_records_have_the_same_numbers() -> None:
    one = ferry.kafka_sink("a:1", "out", exactly_once=False, value="string")
    assert isinstance(one, kafka_sink.RepeatingKafkaSink)
    table = pa.table({"value": ["b", "a", "c", "a"]})
    first = list(one._numbered(3, table))
    assert first == list(one._numbered(3, table.take([3, 2, 0, 1])))
    assert [(v, h) for _, v, h in first][1] == (b"a", [("ferry-epoch", b"3"), ("ferry-row", b"1")])


def test_the_protocol_of_flows_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made: FlowSplits = source(Brokers(p0=(0, 1)), monkeypatch)
    assert made.has_flows


SCHEMAS = {
    1: {"schema": json.dumps({"type": "record", "name": "c", "fields": [{"name": "ts", "type": "long"}]})},
    2: {
        "schemaType": "AVRO",
        "schema": json.dumps(
            {
                "type": "record",
                "name": "c",
                "fields": [{"name": "user", "type": ["null", "string"]}, {"name": "ts", "type": "long"}],
            }
        ),
    },
    3: {"schemaType": "JSON", "schema": "{}"},
    4: {"schemaType": "PROTOBUF", "schema": ""},
    6: {
        "schema": json.dumps(
            {
                "type": "record",
                "name": "c",
                "fields": [
                    {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
                    {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
                    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
                ],
            }
        )
    },
}


FIRST: list[tuple[int, bytes]] = []
"""Status and body of what the registry answers first."""


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Stands in for a schema registry."""
    monkeypatch.setattr(kafka_schemas, "MISSING_SECONDS", 0.0)
    monkeypatch.setattr(kafka_schemas, "BELIEVED_SECONDS", 0.0)

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = int(self.path.rpartition("/")[2])
            status = 200 if number in SCHEMAS else 503 if number == 9 else 404
            body = json.dumps(SCHEMAS.get(number, {"error_code": 40403}))
            status, data = FIRST.pop(0) if FIRST else (status, body.encode())
            if status:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, *words: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def framed(number: int, row: dict[str, Any]) -> bytes:
    data = io.BytesIO()
    if number in (1, 2):
        fastavro.schemaless_writer(data, fastavro.parse_schema(json.loads(SCHEMAS[number]["schema"])), row)
    else:
        data.write(json.dumps(row).encode())
    return b"\0" + number.to_bytes(4) + data.getvalue()


def test_values_are_read_by_the_schemas_that_a_registry_knows(registry: str) -> None:
    values = [framed(1, {"ts": 1}), framed(2, {"user": "a", "ts": 2}), b"plain", None, framed(5, {}), framed(4, {})]
    values += [framed(2, {"user": "b", "ts": 3})[:-1], framed(2, {"user": None, "ts": 4}), framed(3, {"ts": 5})]
    decoder = Decoder(COLUMNS, ["offset"], SchemaRegistry(registry))
    made, bad = decoder.decode([Record(value, i) for i, value in enumerate(values)], None)
    assert isinstance(made, pa.RecordBatch) and isinstance(bad, Malformed)
    assert [(r["user"], r["ts"], r["offset"]) for r in made.to_pylist()] == [
        (None, 1, 0),
        ("a", 2, 1),
        (None, 4, 7),
        (None, 5, 8),
    ]
    assert bad.count == 5 and "no schema number" in bad.reason
    texts = [framed(3, {"user": "x", "ts": 1}), framed(3, {"ts": "no"}), framed(3, {"ts": 2})]
    made, bad = decoder.decode([Record(value, i) for i, value in enumerate(texts)], ["offset", "ts"])
    assert isinstance(made, pa.RecordBatch) and made.to_pylist() == [{"offset": 0, "ts": 1}, {"offset": 2, "ts": 2}]
    with pytest.raises(Unreachable, match="503"):
        list(decoder.decode([Record(framed(9, {}), 0)], None))


def test_values_of_avro_go_through_no_datetime(registry: str) -> None:
    """Times end where 64 bits do, and a UUID is a text."""
    beyond, id_ = 253_402_300_800_000_000, "00000000-0000-0000-0000-000000000001"
    head = b"\0" + (6).to_bytes(4)
    rest = b"\x48" + id_.encode() + b"\x04\x04\xd2"
    at = bytes([0x02]) + zigzag(beyond)
    columns = pa.schema([("at", pa.timestamp("ms", "UTC")), ("id", pa.string()), ("price", pa.decimal128(12, 2))])
    decoder = Decoder(columns, [], SchemaRegistry(registry))
    (made,) = decoder.decode([Record(head + at + rest, 0), Record(head + b"\0" + rest, 1)], None)
    assert isinstance(made, pa.RecordBatch) and made.column("at").cast(pa.int64()).to_pylist() == [beyond // 1000, None]
    assert made.select(["id", "price"]).to_pylist() == [{"id": id_, "price": Decimal("12.34")}] * 2


@pytest.mark.parametrize("kind", [pa.string(), pa.string_view(), pa.list_(pa.binary_view())])
def test_columns_of_views_keep_their_order_among_json_and_avro(
    kind: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "string"}]}'
    known = {1: ("AVRO", schema), 2: ("JSON", "{}")}
    monkeypatch.setattr(kafka_schemas, "fetch", lambda url, numbers: known)
    fields = pa.schema([("a", pa.string()), ("more", kind)])
    avro, text = b"\0" + (1).to_bytes(4) + b"\x02x", b"\0" + (2).to_bytes(4) + b'{"a": "y"}'
    table, bad = SchemaRegistry("http://r").table([avro, text, avro], fields)
    assert not bad and table.to_pylist() == [{"a": one, "more": None} for one in "xyx"]


def zigzag(value: int) -> bytes:
    """A long of Avro."""
    value, found = value << 1, bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


@pytest.mark.parametrize(
    "first",
    [
        (500, b""),
        (429, b"{}"),
        (404, b'{"error_code": 40403}'),
        (404, b"<html>"),
        (401, b""),
        (0, b""),
        (200, b""),
        (200, b"<html>"),
        (200, b"{}"),
    ],
)
def test_what_a_registry_answers_first_is_not_believed_for_ever(
    registry: str, first: tuple[int, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_schemas, "MISSING_SECONDS", 60.0)
    decoder, value = Decoder(COLUMNS, [], SchemaRegistry(registry)), Record(framed(2, {"user": "a", "ts": 2}), 0)
    FIRST.append(first)
    with pytest.raises(Unreachable, match="schema registry"):
        list(decoder.decode([value], None))
    (made,) = decoder.decode([value], None)
    assert isinstance(made, pa.RecordBatch) and made.to_pylist() == [{"user": "a", "ts": 2}]


def test_a_schema_that_came_late_is_found_after_all(registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, value = Decoder(COLUMNS, [], SchemaRegistry(registry)), Record(framed(2, {"user": "a", "ts": 2}), 0)
    for status, body in ((404, b'{"error_code": 40403}'), (200, b'{"schemaType": "PROTOBUF", "schema": ""}')):
        FIRST.append((status, body))
        (bad,) = [one for one in decoder.decode([value], None) if isinstance(one, Malformed)]
        assert bad.count == 1
        made = [one for one in decoder.decode([value], None) if isinstance(one, pa.RecordBatch)]
        assert [batch.to_pylist() for batch in made] == [[{"user": "a", "ts": 2}]]
        kafka_schemas.forget()


def test_a_login_of_a_registry_is_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecRefused, match="secret"):
        ferry.kafka("a:1", "t", COLUMNS, registry="https://me:word@registry:8081")
    ferry.kafka("a:1", "t", COLUMNS, registry="https://${LOGIN}@registry:8081")
    with pytest.raises(SpecRefused, match="with a registry"):
        ferry.kafka("a:1", "t", "bytes", registry="https://registry:8081")
