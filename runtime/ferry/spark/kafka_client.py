"""Kafka's client: ends of partitions, records from exact offsets, transactions. The only place that imports its library.

A broker that gives no answer is `Unreachable`; records that it does not have any more are a refusal, never skipped. Secrets
come from the environment of the process that uses them, when it does. Must never commit an offset of a source: positions
are the job's.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ferry.contract.errors import RECORDS_LOST, FerryError, Final, SpecRefused, Unreachable
from ferry.spark.kafka_place import KafkaPlace
from ferry.spark.kafka_records import Marker, Outgoing, described, size_of
from ferry.spark.kafka_waiting import within

if TYPE_CHECKING:
    from confluent_kafka import Message

ANSWER_SECONDS = 5.0
"""What brokers are asked they answer within this time, or count as unreachable."""
STALE_SECONDS = 60.0
"""After so long without an answer it is asked through a new client: the brokers that the old one knows may be no more."""
SILENCE_SECONDS = 10.0
"""Records that are there come within this time, one after another."""

CONSUME_MAX = 10_000
"""Records that are taken over from the library at once."""

AHEAD_MAX = 20_000
"""Records of a partition beyond what was asked for that are held at most, but for those of one takeover."""

CONNECT_SECONDS = 0.05  # from when a producer has heard of its brokers
TRANSACTION_SECONDS = 15.0
"""Each step of a transaction takes at most this time, else all of it is tried anew."""

PARTITIONER = "murmur2_random"  # as Java's clients; the library's own sends keys to other partitions

READER = {
    "group.id": "ferry",  # the library wants one; nothing joins it, and nothing is committed
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "queued.max.messages.kbytes": 32_768,
    "fetch.wait.max.ms": 50,  # other partitions are not fetched meanwhile
    "fetch.queue.backoff.ms": 10,
}
"""Of a consumer that is told where to read."""


def failure(error: Any, what: str) -> FerryError:
    """The error of ours for one of the library's."""
    from confluent_kafka import KafkaError

    refusals = (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError._INVALID_ARG,
    )
    kind = SpecRefused if error.code() in refusals else Unreachable
    return kind(f"{what}: {error.str()}")


def library() -> None:
    """Raise SpecRefused where the client's library is not installed."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as missing:
        raise SpecRefused("kafka: the package confluent-kafka is not installed: ferry-stream[kafka]") from missing


class NoTopic(Unreachable):
    """The brokers know no topic of this name, now: after a start of theirs, they may know it a little later."""


class TopicEnds:
    """Asks the brokers of one topic about its partitions. Its connection is kept."""

    def __init__(self, place: KafkaPlace, topic: str) -> None:
        self._place = place
        self._topic = topic
        self._admin: Any = None
        self._answered = 0.0

    def partitions(self) -> tuple[str, list[int]]:
        """(id of the topic, its partitions). Raises NoTopic."""
        from confluent_kafka import KafkaError, TopicCollection

        asked = self._client().describe_topics(TopicCollection([self._topic]), request_timeout=ANSWER_SECONDS)
        found = self._answer(asked[self._topic], {KafkaError.UNKNOWN_TOPIC_OR_PART: NoTopic})
        return str(found.topic_id), sorted(one.id for one in found.partitions)

    def earliest(self, partitions: Sequence[int]) -> dict[int, int]:
        """Offset of the first record that each partition has."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(partitions, OffsetSpec.earliest())

    def latest(self, partitions: Sequence[int]) -> dict[int, int]:
        """Offset behind the last record of each that may be read: with read_committed, before the oldest transaction."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(partitions, OffsetSpec.latest())

    def _offsets(self, partitions: Sequence[int], spec: Any) -> dict[int, int]:
        from confluent_kafka import IsolationLevel, TopicPartition

        if not partitions:
            return {}
        committed = self._place.isolation == "read_committed"
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        asked = self._client().list_offsets(
            {TopicPartition(self._topic, one): spec for one in partitions},
            isolation_level=level,
            request_timeout=ANSWER_SECONDS,
        )
        return {where.partition: int(self._answer(one, {}).offset) for where, one in asked.items()}

    def _client(self) -> Any:
        if self._admin is None or time.monotonic() - self._answered > STALE_SECONDS:
            from confluent_kafka.admin import AdminClient

            settings, self._answered = self._place.settings({}), time.monotonic()
            self._admin = AdminClient({k: v for k, v in settings.items() if k != "isolation.level"})
        return self._admin

    def _answer(self, asked: Future[Any], kinds: Mapping[int, type[FerryError]]) -> Any:
        from confluent_kafka import KafkaException

        what = f"kafka {self._place.servers}, topic {self._topic!r}"
        try:
            answer, self._answered = asked.result(2 * ANSWER_SECONDS), time.monotonic()
            return answer
        except KafkaException as error:
            code = error.args[0].code()
            if code in kinds:
                raise kinds[code](f"{what}: {error.args[0].str()}") from error
            raise failure(error.args[0], what) from error
        except TimeoutError as error:
            raise Unreachable(f"{what}: no answer for {2 * ANSWER_SECONDS:g} s") from error


class RangeReader:
    """Reads ranges of offsets of a topic's partitions; goes on where it was, with what it has fetched ahead."""

    def __init__(self, place: KafkaPlace, topic: str) -> None:
        from confluent_kafka import Consumer

        self._where = f"kafka {place.servers}, topic {topic!r}"
        self._topic = topic
        self._last_error = ""
        more = {**READER, "isolation.level": place.isolation, "error_cb": self._note}
        self._consumer = Consumer(place.settings(more))
        self._next: dict[int, int] = {}
        """by partition, the offset behind what was given out"""
        self._passed: dict[int, int] = {}
        """by partition, the offset behind what has come: before it, there is nothing more to come"""
        self._ahead: dict[int, list[Message]] = {}
        self._fetched: set[int] = set()
        """partitions that the library reads now: not what has come far ahead"""

    def read(self, ranges: Mapping[int, tuple[int, int]]) -> dict[int, list[Message]]:
        """The records of each partition in [start, stop). Offsets without a record, as those of markers, are none."""
        if any(self._next.get(one) != start for one, (start, _) in ranges.items()):
            self._begin({one: start for one, (start, _) in ranges.items()})
        self._resume(ranges)
        deadline = time.monotonic() + SILENCE_SECONDS
        while behind := [one for one, (_, stop) in ranges.items() if self._passed[one] < stop]:
            # To ask for many and wait is to wait for many.
            messages = self._consumer.consume(CONSUME_MAX, 0.0) or self._consumer.consume(1, 0.2)
            if messages:
                self._sort(messages)
                self._pause(behind)
                deadline = time.monotonic() + SILENCE_SECONDS
            elif time.monotonic() > deadline:
                raise Unreachable(
                    f"{self._where}: no record of partitions {behind} for {SILENCE_SECONDS:g} s. {self._last_error}"
                )
        return {one: self._out(one, stop) for one, (_, stop) in ranges.items()}

    def _out(self, partition: int, stop: int) -> list[Message]:
        held = self._ahead[partition]
        many = bisect_left(held, stop, key=_offset)
        self._ahead[partition], self._next[partition] = held[many:], stop
        return held[:many]

    def _begin(self, starts: Mapping[int, int]) -> None:
        self._next = dict(starts)
        self._passed = dict(starts)
        self._ahead = {one: [] for one in starts}
        self._fetch(set(starts))

    def _fetch(self, partitions: set[int]) -> None:
        """These from now on, each from where it is. (What the library pauses, it does not always resume.)"""
        from confluent_kafka import TopicPartition

        self._consumer.assign([TopicPartition(self._topic, one, self._passed[one]) for one in sorted(partitions)])
        self._fetched = partitions

    def _sort(self, messages: Sequence[Message]) -> None:
        for one in messages:
            partition = one.partition()
            if (error := one.error()) is not None:
                self._heed(error, partition, one.offset())
            else:
                self._ahead[partition].append(one)
                self._passed[partition] = one.offset() + 1

    def _heed(self, error: Any, partition: int, offset: int) -> None:
        """What comes in the place of a record: the end of a partition, or what is wrong."""
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._PARTITION_EOF:
            self._passed[partition] = max(self._passed[partition], offset)
            return
        where = f"{self._where}, partition {partition}, from offset {self._next.get(partition)}"
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise SpecRefused(
                f"{RECORDS_LOST}{where}: the broker has not got these records any more (retention?), or has lost them; "
                "restore an earlier checkpoint, or begin a new job"
            )
        raise failure(error, where)

    def _pause(self, behind: Sequence[int]) -> None:
        """What has come far ahead waits for the others."""
        far = {one for one in self._fetched if len(self._ahead[one]) > AHEAD_MAX and one not in behind}
        if far:
            self._fetch(self._fetched - far)

    def _resume(self, wanted: Mapping[int, tuple[int, int]]) -> None:
        lacking = {one for one, (_, stop) in wanted.items() if self._passed[one] < stop} - self._fetched
        if lacking:
            self._fetch(self._fetched | lacking)

    def _note(self, error: Any) -> None:
        self._last_error = error.str()

    def close(self) -> None:
        """Give up the connections."""
        self._consumer.close()


def _offset(message: Message) -> int:
    offset: int = message.offset()
    return offset


class _Writer:
    """Hands records over to the brokers. Those that they will never take are known by their delivery reports."""

    def __init__(self, place: KafkaPlace, topic: str, where: str, more: Mapping[str, Any]) -> None:
        from confluent_kafka import Producer

        self._where = where
        self._topic = topic
        self._failed: list[tuple[Any, Outgoing]] = []
        more = {"linger.ms": 5, "partitioner": PARTITIONER, **more, "enable.idempotence": True}
        settings = place.settings({**more, "on_delivery": self._delivered, "delivery.report.only.error": True})
        self._producer = Producer({k: v for k, v in settings.items() if k != "isolation.level"})

    def _delivered(self, error: Any, record: Message) -> None:
        if error is not None:
            self._failed.append((error, (record.key(), record.value(), [])))

    def _put(self, record: Outgoing) -> None:
        """Hand over a record, as soon as there is room."""
        from confluent_kafka import KafkaException

        key, value, headers = record
        end = time.monotonic() + TRANSACTION_SECONDS
        while True:
            try:
                self._producer.produce(self._topic, value, key, headers=headers)
                self._producer.poll(0)
                return
            except BufferError as full:
                if time.monotonic() > end:
                    raise Unreachable(f"{self._where}: no room for a record for {TRANSACTION_SECONDS:g} s") from full
                self._producer.poll(0.1)
            except KafkaException as error:
                raise self._failure(error.args[0], record) from error

    def _failure(self, error: Any, record: Outgoing | None = None) -> FerryError:
        """The error of ours; Final, if it or the report of a delivery says that a record can never be written."""
        from confluent_kafka import KafkaError

        never = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.RECORD_LIST_TOO_LARGE)
        reported = [(error, record)] if record is not None else []
        if bad := [(why, one) for why, one in [*reported, *self._failed] if why.code() in never]:
            # A broker refuses all that come together with a record that is too large.
            why, record = max(bad, key=lambda one: size_of(one[1]))
            return Final(f"{self._where}: {why.str()}: {described(record)}")
        return failure(self._failed[0][0] if self._failed else error, self._where)


class TransactionWriter(_Writer):
    """Writes epochs to a topic, each in a transaction with its marker. A new one fences those of the same name before it."""

    def __init__(self, place: KafkaPlace, topic: str, name: str) -> None:
        from confluent_kafka import KafkaException

        where = f"kafka {place.servers}, topic {topic!r}, transactions of {name!r}"
        super().__init__(place, topic, where, {"transactional.id": name, "transaction.timeout.ms": 60_000})
        self._group = _group(place, name)
        try:
            # Before it has a connection it looks for who knows its transactions twice a second only.
            self._within(partial(self._producer.list_topics, topic))
            self._producer.poll(CONNECT_SECONDS)
            self._within(self._producer.init_transactions)
        except KafkaException as error:
            raise failure(error.args[0], self._where) from error

    def publish(self, records: Iterable[Outgoing], marker: Marker) -> None:
        """All of them and the marker, or nothing; after an error nobody knows which, and this writer is of no more use.

        Raises Final for a record that can never be written.
        """
        from confluent_kafka import KafkaException, TopicPartition

        note = TopicPartition(self._topic, 0, marker.epoch + 1, marker.about())
        try:
            self._producer.begin_transaction()
            for record in records:
                self._put(record)
            group = self._group.consumer_group_metadata()
            self._within(partial(self._producer.send_offsets_to_transaction, [note], group))
            self._within(self._producer.commit_transaction)
        except KafkaException as error:
            raise self._failure(error.args[0]) from error

    def _within(self, step: Callable[[float], Any]) -> None:
        within(TRANSACTION_SECONDS + 1, partial(step, TRANSACTION_SECONDS), self._where)

    def close(self) -> None:
        """Give up what is under way, if the broker can be told; the next writer does so, too."""
        from confluent_kafka import KafkaException

        with suppress(KafkaException, Unreachable):
            within(2.0, partial(self._producer.abort_transaction, 1.0), self._where)


def marker_of(place: KafkaPlace, topic: str, name: str, settled: bool = True) -> Marker | None:
    """The last one that was committed; None: there is none, or it has expired.

    `settled`: when the transaction under way is over, however long that takes; else without that one.
    """
    from confluent_kafka import KafkaException, TopicPartition

    group = _group(place, name, "read_committed" if settled else "read_uncommitted")
    try:
        (found,) = group.committed([TopicPartition(topic, 0)], TRANSACTION_SECONDS)
        if found.error is not None:
            raise KafkaException(found.error)
    except KafkaException as error:
        raise failure(error.args[0], f"kafka {place.servers}, group {name!r}") from error
    finally:
        group.close()
    if found.offset < 0:
        return None
    return Marker.read(found.offset, found.metadata)


def _group(place: KafkaPlace, name: str, isolation: str = "read_committed") -> Any:
    """A consumer of a group, which reads nothing: it knows what is committed for it."""
    from confluent_kafka import Consumer

    settings = place.settings({"group.id": name, "enable.auto.commit": False})
    return Consumer(settings | {"isolation.level": isolation})


class PlainWriter(_Writer):
    """Writes records without a transaction: all have arrived, or an error says that some may have."""

    def __init__(self, place: KafkaPlace, topic: str) -> None:
        more = {"delivery.timeout.ms": int(TRANSACTION_SECONDS * 1000)}
        super().__init__(place, topic, f"kafka {place.servers}, topic {topic!r}", more)

    def publish(self, records: Iterable[Outgoing]) -> None:
        """Returns when the brokers have them. Raises Final for a record that can never be written."""
        for record in records:
            self._put(record)
        left = self._producer.flush(TRANSACTION_SECONDS)
        if self._failed:
            raise self._failure(self._failed[0][0])
        if left:
            raise Unreachable(f"{self._where}: {left} records were not taken within {TRANSACTION_SECONDS:g} s")

    def close(self) -> None:
        """Forget what was not taken."""
        self._producer.purge()
