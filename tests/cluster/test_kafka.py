"""Kafka in and out, with a real broker that is killed and cut off: nothing is lost, nothing comes twice."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ferry
from ferry.connectors import sink as sinks
from ferry.connectors.kafka import client as kafka_client
from ferry.connectors.kafka import readers as kafka_readers
from ferry.connectors.kafka import source as kafka
from ferry.connectors.kafka import writers as kafka_writers
from ferry.connectors.kafka.sink import KafkaSink
from ferry.connectors.kafka.source import KafkaSplits
from ferry.connectors.kafka.writers import marker_of
from ferry.connectors.splits import Flow
from ferry.contract.errors import Final, SpecRefused, Unreachable
from tests.cluster import queries, runner
from tests.kafka import KafkaBroker
from tests.patience import PATIENCE

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(400)]

PIPELINES = Path(__file__).parent / "pipelines"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    one = KafkaBroker(tmp_path_factory.mktemp("kafka"))
    yield one
    one.kill()


def source(broker: KafkaBroker, topic: str, **more: Any) -> KafkaSplits:
    return ferry.kafka(broker.servers, topic, "string", ["offset"], **more)


def values(one: KafkaSplits, start: Any, stop: Any, tasks: int = 2) -> dict[str, list[str]]:
    """What is read between two positions, by flow."""
    found: dict[str, list[str]] = {}
    for split in one.plan(start, stop, tasks):
        flow = ""
        for part in one.read(split):
            if isinstance(part, Flow):
                flow = part.name
            else:
                assert isinstance(part, pa.RecordBatch)
                found.setdefault(flow, []).extend(part.column("value").to_pylist())
    return found


def transact(broker: KafkaBroker, topic: str, name: str, some: list[str], end: str) -> Any:
    producer = broker.producer(transactional_id=name)
    producer.init_transactions(20)
    producer.begin_transaction()
    for value in some:
        producer.produce(topic, value, partition=0)
    producer.flush(20)
    if end:
        getattr(producer, f"{end}_transaction")(20)
    return producer


def latest(one: KafkaSplits, start: Any, offsets: dict[str, int]) -> Any:
    """The position with these offsets: the markers of a transaction may be written after its end was answered."""
    end = time.monotonic() + 20
    while (found := one.latest(start, 1000))["offsets"] != offsets:
        assert time.monotonic() < end, found
        time.sleep(0.02)
    return found


def test_only_committed_records_are_read_and_gaps_hold_up_nobody(broker: KafkaBroker) -> None:
    broker.create("gaps", 2)
    one = source(broker, "gaps")
    start = one.start()
    broker.produce("gaps", [(0, b"a"), (1, b"z")])
    transact(broker, "gaps", "t1", ["b", "c"], "commit")
    transact(broker, "gaps", "t2", ["no"] * 5, "abort")
    middle = latest(one, start, {"0": 10, "1": 1})  # records, and the markers of two transactions
    assert values(one, start, middle) == {"0": ["a", "b", "c"], "1": ["z"]}
    assert values(one, {**start, "offsets": {"0": 4, "1": 1}}, middle) == {}, "nothing but what was aborted"
    open_one = transact(broker, "gaps", "t3", ["d"], "")
    broker.produce("gaps", [(0, b"e")])
    assert one.latest(middle, 1000) is middle, "an open transaction holds back what is behind it"
    open_one.commit_transaction(20)
    last = latest(one, middle, {"0": 13, "1": 1})
    assert values(one, middle, last) == {"0": ["d", "e"]}
    every = [
        values(one, {**start, "offsets": {"0": a, "1": 1}}, {**last, "offsets": {"0": a + 1, "1": 1}})
        for a in range(13)
    ]
    assert [v for each in every for v in each.get("0", [])] == ["a", "b", "c", "d", "e"]


def test_a_backlog_is_read_in_parts_by_readers_that_go_on(broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_readers, "AHEAD_MAX", 500)
    monkeypatch.setattr(kafka, "BATCH_ROWS", 3000)
    broker.create("backlog", 3)
    broker.produce("backlog", ((i % 3, b"%d" % i) for i in range(30_000)))
    one = source(broker, "backlog", finite=True)
    position, found, epochs = one.start(), [], 0
    while not one.ended(position):
        later = one.latest(position, 7000)
        assert sum(later["offsets"].values()) - sum(position["offsets"].values()) <= 7000
        for flow, some in values(one, position, later, 2 + epochs % 2).items():
            found += some
            assert {int(v) % 3 for v in some} == {int(flow)}
        position, epochs = later, epochs + 1
    assert epochs == 5 and sorted(map(int, found)) == list(range(30_000))


def test_records_that_retention_has_removed_are_never_skipped(broker: KafkaBroker) -> None:
    broker.create("short", 1)
    one = source(broker, "short")
    start = one.start()
    broker.produce("short", [(0, b"%d" % i) for i in range(10)])
    later = one.latest(start, 1000)
    broker.forget("short", {0: 4})
    with pytest.raises(SpecRefused, match=r"records lost.*retention"):
        values(one, start, later)
    assert source(broker, "short").start()["offsets"] == {"0": 4}, "a new job begins with what there is"


def test_records_of_every_kind_are_read(broker: KafkaBroker) -> None:
    broker.create("kinds", 1, **{"max.message.bytes": "20000000"})
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = broker.producer(compression_type=codec, message_max_bytes=20_000_000)
        for key, value in ((None, codec * 9), ("", None), (codec, "")):
            producer.produce("kinds", value, key, headers=[("h", b"x"), ("", None)])
        assert producer.flush(30) == 0
    producer.produce("kinds", b"x" * 10_000_000)
    assert producer.flush(30) == 0
    one = ferry.kafka(broker.servers, "kinds", "bytes", ["key", "headers"], finite=True)
    start = one.start()
    (split,) = one.plan(start, one.latest(start, 1000), 2)
    *small, large = [row for part in one.read(split) if isinstance(part, pa.RecordBatch) for row in part.to_pylist()]
    assert len(large["value"]) == 10_000_000 and large["key"] is None
    for i, name in enumerate((b"none", b"gzip", b"snappy", b"lz4", b"zstd")):
        some = [(row["key"], row["value"]) for row in small[3 * i : 3 * i + 3]]
        assert some == [(None, name * 9), (b"", None), (name, b"")]
    assert all(row["headers"] == [{"name": "h", "value": b"x"}, {"name": "", "value": None}] for row in small)


def test_a_share_is_never_read_of_another_topic_of_its_name(broker: KafkaBroker) -> None:
    """An epoch was planned, and nobody could read it for long."""
    broker.create("twin", 1)
    broker.produce("twin", [(0, b"old")] * 4)
    one = source(broker, "twin")
    start = one.start()
    later = one.latest(start, 1000)
    broker.delete("twin")
    time.sleep(0.5)
    broker.create("twin", 1)
    broker.produce("twin", [(0, b"new")] * 9)
    with pytest.raises(SpecRefused, match="created again"):
        values(one, start, later)


def test_a_partition_that_lost_its_records_ends_the_job(broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "BACK_SECONDS", 0.5)
    broker.create("lost", 1)
    one = source(broker, "lost")
    start = one.start()
    broker.produce("lost", [(0, b"old")] * 9)
    later = one.latest(start, 1000)
    assert values(one, start, later) == {"0": ["old"] * 9}
    broker.lose("lost", 0)
    broker.produce("lost", [(0, b"new")] * 4)
    end = time.monotonic() + 60
    with pytest.raises(SpecRefused, match=r"records lost.*read up to offset 9, and ends at 4"):
        while time.monotonic() < end:
            with contextlib.suppress(Unreachable):
                assert one.latest(later, 1000) == later
            time.sleep(0.1)


def until_not_allowed(step: Callable[[], Any], kind: type[Exception]) -> None:
    """Rules reach brokers a little later."""
    end = time.monotonic() + 20 * PATIENCE
    with pytest.raises(kind, match="uthoriz") as raised:
        while time.monotonic() < end:
            step()
            time.sleep(0.05)
    assert raised.type is not (SpecRefused if kind is Unreachable else Unreachable)


def test_rights_that_are_taken_away_are_waited_for(broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_readers, "SILENCE_SECONDS", 1.0)
    broker.create("rights", 1)
    broker.produce("rights", [(0, b"a"), (0, b"b")])
    one = source(broker, "rights")
    start = one.start()
    first = one.latest(start, 1)
    writers = [
        sink(broker, -1, "rights"),
        ferry.kafka_sink(broker.servers, "rights", value="string", exactly_once=False),
    ]
    for some in writers:
        some.write(0, 1, pa.table({"value": ["c"]}))
    last = one.latest(first, 1)
    broker.lock("rights")
    until_not_allowed(lambda: source(broker, "rights").start(), SpecRefused)
    until_not_allowed(lambda: one.latest(first, 1000), Unreachable)
    until_not_allowed(lambda: values(one, first, last), Unreachable)
    until_not_allowed(lambda: values(one, start, first), SpecRefused)
    for some in writers:
        with pytest.raises(Unreachable):
            some.write(1, 1, pa.table({"value": ["d"]}))
    broker.unlock("rights")
    end = time.monotonic() + 20 * PATIENCE
    while True:
        try:
            assert values(one, first, last) == {"0": ["b"]}
            break
        except Unreachable:
            assert time.monotonic() < end
    for some in writers:
        until_written(some, 1, pa.table({"value": ["d"]}))
    assert [record.value() for record in broker.read("rights")].count(b"d") == 2


@pytest.mark.parametrize("exactly_once", [True, False])
def test_rows_that_are_too_large_for_a_topic(broker: KafkaBroker, exactly_once: bool) -> None:
    topic = f"narrow-{exactly_once}"
    broker.create(topic, 2, **{"max.message.bytes": "2000"})
    one = ferry.kafka_sink(broker.servers, topic, key="k", exactly_once=exactly_once)
    sinks.identify([one], "test")
    one.open(-1)
    one.write(0, 1, pa.table({"k": ["a", "b"] * 500, "text": ["x" * 100] * 1000}))
    for size in (3_000, 3_000_000):
        rows = pa.table({"k": ["a", "north", "b"], "text": ["x" * 1_500, "y" * size, "z"]})
        with pytest.raises(Final, match=rf"'{topic}'.*'north' has {size + 28} bytes, most of them in column 'text'"):
            one.write(1, 1, rows)
    found = Counter(record.key() for record in broker.read(topic))
    if exactly_once:
        assert found == {b"a": 500, b"b": 500}, "each alone is small enough"
    assert b"north" not in found


def test_a_topic_that_is_not_there_or_is_made_again_is_refused(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "PARTITIONS_SECONDS", 0.0)
    monkeypatch.setattr(kafka, "MISSING_SECONDS", 1.0)
    one = source(broker, "again")
    with pytest.raises(SpecRefused, match="the topic does not exist"):
        one.start()
    broker.create("again", 1)
    start = one.start()
    broker.delete("again")
    time.sleep(0.5)
    broker.create("again", 1)
    end = time.monotonic() + 20
    with pytest.raises(SpecRefused, match="created again"):
        while time.monotonic() < end:
            one.latest(start, 1)


def test_a_reader_says_that_the_broker_is_gone_and_goes_on_when_it_is_back(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_readers, "SILENCE_SECONDS", 1.0)
    monkeypatch.setattr(kafka_client, "ANSWER_SECONDS", 1.0)
    broker.create("silent", 1)
    one = source(broker, "silent")
    start = one.start()
    broker.produce("silent", [(0, b"a"), (0, b"b")])
    later = one.latest(start, 1000)
    broker.wire.cut()
    with pytest.raises(Unreachable):
        values(one, start, later)
    with pytest.raises(Unreachable):
        source(broker, "silent").latest(start, 1)
    broker.wire.heal()
    assert values(one, start, later) == {"0": ["a", "b"]}


def sink(broker: KafkaBroker, committed: int, topic: str = "sunk") -> KafkaSink:
    made = ferry.kafka_sink(broker.servers, topic, value="string")
    assert isinstance(made, KafkaSink)
    sinks.identify([made], "test")
    made.open(committed)
    return made


def until_written(one: Any, epoch: int, rows: pa.Table) -> None:
    """As a driver does it."""
    end = time.monotonic() + 60
    while True:
        try:
            one.write(epoch, 1, rows)
            return
        except Unreachable:
            assert time.monotonic() < end
            time.sleep(0.1)


def test_epochs_are_published_once_while_the_broker_is_killed_and_cut(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_writers, "TRANSACTION_SECONDS", 3.0)
    broker.create("sunk", 2)
    one = sink(broker, -1)
    over = threading.Event()

    def disturb() -> None:
        for way in ("cut", "kill", "cut"):
            if over.wait(1.0):
                return
            if way == "kill":
                broker.kill()
                broker.start()
            else:
                broker.wire.cut()
                time.sleep(1.0)
                broker.wire.heal()

    thread = threading.Thread(target=disturb)
    thread.start()
    epoch = 0
    while thread.is_alive() or epoch < 20:
        rows = pa.table({"value": [f"{epoch}/{i}" for i in range(500)]})
        until_written(one, epoch, rows)
        if epoch % 7 == 0:
            one = sink(broker, epoch)  # another driver, to which the epoch is given again
            until_written(one, epoch, rows)
        epoch += 1
    over.set()
    thread.join()
    found = Counter(record.value().decode() for record in broker.read("sunk"))
    assert found == Counter(f"{e}/{i}" for e in range(epoch) for i in range(500))
    marker = marker_of(one._place, "sunk", "ferry.test.sunk")
    assert marker is not None and (marker.epoch, marker.generation) == (epoch - 1, 1)


def test_a_transaction_goes_on_after_a_short_cut(broker: KafkaBroker) -> None:
    broker.create("goes-on", 1)
    one = sink(broker, -1, "goes-on")
    one.write(0, 1, pa.table({"value": ["a"]}))
    for epoch in (1, 2):
        broker.wire.cut()
        healed = threading.Timer(1.0, broker.wire.heal)
        healed.start()
        one.write(epoch, 1, pa.table({"value": ["b"]}))  # the first try of it
        healed.join()
    assert [record.value() for record in broker.read("goes-on")] == [b"a", b"b", b"b"]


def test_a_transaction_that_a_killed_driver_left_open_is_ended_at_once(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create("left-open", 1)
    one = sink(broker, -1, "left-open")
    one.write(0, 1, pa.table({"value": ["a"]}))
    writer = one._writer
    assert writer is not None
    others = writer._within

    def but_the_commit(step: Any) -> None:
        if step != writer._producer.commit_transaction:
            others(step)

    monkeypatch.setattr(writer, "_within", but_the_commit)
    one.write(1, 1, pa.table({"value": ["b"]}))
    another = sink(broker, 0, "left-open")
    began = time.monotonic()
    another.write(1, 2, pa.table({"value": ["b"]}))  # the first try of it
    assert time.monotonic() - began < 10 * PATIENCE, "the broker ends it after a minute"
    assert [record.value() for record in broker.read("left-open")] == [b"a", b"b"]


def job(folder: Path, name: str, args: dict[str, Any], called: str) -> Path:
    lines = "".join(f"      {key}: {json.dumps(value)}\n" for key, value in args.items())
    file = folder / f"{name}.yaml"
    file.write_text(
        f"apiVersion: ferry.dev/v1alpha1\nkind: StreamJob\nmetadata:\n  name: {called}\nspec:\n  workers: 2\n"
        f"  pipeline:\n    file: {PIPELINES / name}.py\n    args:\n{lines}"
        f"  epoch:\n    maxRows: 5000\n    interval: 200ms\n  state:\n    virtualNodes: 8\n    replicas: 1\n"
    )
    return file


@pytest.mark.turns
@pytest.mark.parametrize("mode", ["micro-batch", "continuous"])
def test_a_query_from_topic_to_topic_while_broker_worker_and_driver_are_killed(
    tmp_path: Path, mode: str, broker: KafkaBroker
) -> None:
    events, args = 60_000, {"seed": 61, "group": 100}
    queries.generate_input("nexmark", events, args, tmp_path / "input")
    bids = pq.read_table(tmp_path / "input" / "bid.parquet").to_pylist()
    for topic, partitions in (("bids", 3), ("hottest", 2)):
        if topic in broker.admin.list_topics(timeout=10).topics:
            broker.delete(topic)
            time.sleep(0.5)
        broker.create(topic, partitions)
    # One partition is far behind the others, and has another order.
    broker.produce("bids", ((min(bid["seq"] * 7 % 5, 2), json.dumps(bid).encode()) for bid in bids))

    def disturb(running: runner.Running) -> None:
        running.await_epoch(2)
        broker.kill()
        running.signal("worker-1", signal.SIGKILL)
        time.sleep(2)
        broker.start()
        running.await_epoch(5)
        running.signal("driver", signal.SIGKILL)
        running.await_that(lambda: len([r for r in running.records() if r["kind"] == "ready"]) > 1, "a driver", 60)
        broker.wire.cut()
        time.sleep(2)
        broker.wire.heal()

    file = job(tmp_path, "hot_bids", {**args, "servers": broker.servers}, f"hot-{mode}")
    result = runner.run(file, tmp_path, sets=[f"epoch.mode={mode}"], meanwhile=disturb)
    assert result.code == 0 and not result.left, result.story()
    assert runner.difference("q5", events, args, result.output, tmp_path) == ([], []), result.story()
    rows = pq.read_table(result.output / "q5", partitioning=None).to_pylist()
    found = [json.loads(record.value()) for record in broker.read("hottest")]
    as_row = "window_start", "window_end", "auction", "num"
    assert Counter(tuple(r[c] for c in as_row) for r in found) == Counter(tuple(r[c] for c in as_row) for r in rows)
    assert result.summary.get("rows", len(bids)) == len(bids), "each record is counted once"


def said(running: runner.Running, pattern: str) -> bool:
    """Whether a line of what it has printed has this."""
    return re.search(pattern, (running.home.parent / "stderr").read_text()) is not None


@pytest.mark.turns
def test_a_topic_is_copied_while_it_grows(tmp_path: Path, broker: KafkaBroker) -> None:
    for topic in ("from", "to"):
        broker.create(topic, 1)
    broker.produce("from", [(0, b"0/%d" % i) for i in range(20_000)])

    def grow(running: runner.Running) -> None:
        running.await_epoch(2)
        broker.grow("from", 3)
        broker.produce("from", [(1 + i % 2, b"%d/%d" % (1 + i % 2, i)) for i in range(10_000)])
        running.await_epoch(4)
        running.signal("driver", signal.SIGKILL)
        running.await_that(lambda: len(broker.read("to")) >= 30_000, "copy of all records", 90)
        broker.lock("from")
        running.await_that(lambda: said(running, r"degraded: source.*'from'.*uthoriz"), "word of a source", 60)
        broker.unlock("from")
        running.await_that(lambda: said(running, "mended: SourceFailing"), "mended source", 60)
        broker.lock("to")
        broker.produce("from", [(0, b"more")])
        # Of the topic, or of the group of its transactions.
        running.await_that(lambda: said(running, r"degraded: sink.*to'.*uthoriz"), "word of a sink", 60)
        broker.unlock("to")
        running.await_that(lambda: len(broker.read("to")) > 30_000, "copy of what came then", 60)
        runner.stop(running)

    result = runner.run(job(tmp_path, "copied", {"servers": broker.servers}, "copied"), tmp_path, meanwhile=grow)
    assert result.code == 0 and not result.left, result.story()
    found = Counter(record.value() for record in broker.read("to"))
    whole = [b"0/%d" % i for i in range(20_000)] + [b"%d/%d" % (1 + i % 2, i) for i in range(10_000)] + [b"more"]
    assert found == Counter(whole), result.story()
