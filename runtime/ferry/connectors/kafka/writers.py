"""Records into a topic of Kafka: an epoch as a transaction with its marker, or one after the other.

A broker refuses all that came together with a record that it never takes. So they are written again in smaller batches, and
at last each alone: then it is known which one it is. Must never say of another record that it can never be written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from ferry.connectors.kafka import client
from ferry.connectors.kafka.client import LastError, failure, mapped_errors
from ferry.connectors.kafka.place import KafkaPlace
from ferry.connectors.kafka.records import Encoder, Marker, Outgoing
from ferry.connectors.kafka.waiting import within
from ferry.contract.errors import FerryError, Final, Unreachable

CONNECT_SECONDS = 0.05  # from when a producer has heard of its brokers
TRANSACTION_SECONDS = 15.0
"""Each step of a transaction takes at most this time, else all of it is tried anew."""
REPORT_SECONDS = 1.0
"""Which record has made a transaction fail is reported within this time."""

PARTITIONER = "murmur2_random"  # as Java's clients; the library's own sends keys to other partitions

BATCHES: tuple[dict[str, int], ...] = ({}, {"batch.size": 16_384}, {"batch.num.messages": 1})
"""How records are put together, each way after the brokers have refused what the one before has made. The second is that
of Java's clients."""


class BatchRefused(Unreachable):
    """The brokers take some of the records never, at least not together with the others."""


class _Writer:
    """Hands records over to the brokers. Those that they will never take are known by their delivery reports."""

    def __init__(
        self, place: KafkaPlace, topic: str, where: str, encoder: Encoder, way: int, more: Mapping[str, Any]
    ) -> None:
        """`way`: in which of the `BATCHES` records go."""
        self._where = where
        self._topic = topic
        self._encoder = encoder
        self._alone = way == len(BATCHES) - 1
        self._last_error = LastError()
        self._failed: list[tuple[Any, Outgoing]] = []
        self._handed: Outgoing | None = None
        """The record that is being handed over."""
        more = {"linger.ms": 5, "partitioner": PARTITIONER, **more, "enable.idempotence": True}
        reports = {"on_delivery": self._delivered, "delivery.report.only.error": True}
        self._producer = client.producer(place.with_options(BATCHES[way]), {**more, **reports}, self._last_error)

    def _delivered(self, error: Any, record: Any) -> None:
        if error is not None and not client.is_purged(error):
            self._failed.append((error, (record.key(), record.value(), [])))

    def _put(self, records: Iterable[Outgoing]) -> None:
        """Hand over records, each as soon as there is room."""
        for record in records:
            self._handed = record
            key, value, headers = record
            end = time.monotonic() + TRANSACTION_SECONDS
            while True:
                try:
                    self._producer.produce(self._topic, value, key, headers=headers)
                    self._producer.poll(0)
                    break
                except BufferError as full:
                    if time.monotonic() > end:
                        text = f"{self._where}: no room for a record for {TRANSACTION_SECONDS:g} s"
                        raise Unreachable(self._last_error.beside(text)) from full
                    self._producer.poll(0.1)
        self._handed = None

    def _failure(self, error: Any) -> FerryError:
        """The error of ours; Final, if it or the report of a delivery says that a record can never be written."""
        if client.advice(error) and self._handed is not None:
            return self._final(error, self._handed)
        end = time.monotonic() + REPORT_SECONDS
        while not self._failed and client.is_abort(error) and time.monotonic() < end:
            self._producer.poll(0.1)
        never = [(why, record) for why, record in self._failed if client.advice(why)]
        if len(never) == 1 or (never and self._alone):
            return self._final(*never[0])
        if never:
            return BatchRefused(f"{self._where}: {never[0][0].str()}: {len(never)} records together")
        return failure(self._failed[0][0] if self._failed else error, self._where, self._last_error)

    def _final(self, error: Any, record: Outgoing) -> Final:
        return Final(f"{self._where}: {error.str()}: {self._encoder.described(record)}. {client.advice(error)}")

    def _find_topic(self) -> None:
        about = self._within(partial(self._producer.list_topics, self._topic)).topics[self._topic]
        if about.error is not None:
            raise failure(about.error, self._where)

    def _within(self, step: Callable[[float], Any]) -> Any:
        return within(TRANSACTION_SECONDS + 1, partial(step, TRANSACTION_SECONDS), self._where)


class TransactionWriter(_Writer):
    """Writes epochs to a topic, each in a transaction with its marker. A new one fences those of the same name before it."""

    def __init__(self, place: KafkaPlace, topic: str, name: str, where: str, encoder: Encoder, way: int = 0) -> None:
        more = {"transactional.id": name, "transaction.timeout.ms": 60_000}
        super().__init__(place, topic, f"{where}, transactions of {name!r}", encoder, way, more)
        self._group = _group(place, name, self._last_error)
        with mapped_errors(self._failure):
            # Before it has a connection it looks for who knows its transactions twice a second only.
            self._find_topic()
            self._producer.poll(CONNECT_SECONDS)
            self._within(self._producer.init_transactions)

    def publish(self, records: Iterable[Outgoing], marker: Marker) -> None:
        """All of them and the marker, or nothing; after an error nobody knows which, and this writer is of no more use.

        Raises Final for a record that can never be written, BatchRefused when it may be one.
        """
        note = client.at(self._topic, 0, marker.epoch + 1, marker.about())
        with mapped_errors(self._failure):
            self._producer.begin_transaction()
            self._put(records)
            group = self._group.consumer_group_metadata()
            self._within(partial(self._producer.send_offsets_to_transaction, [note], group))
            self._within(self._producer.commit_transaction)

    def close(self) -> None:
        """Give up what is under way, if the broker can be told; the next writer does so, too."""
        with suppress(FerryError), mapped_errors(self._failure):
            within(2.0, partial(self._producer.abort_transaction, 1.0), self._where)


def marker_of(place: KafkaPlace, topic: str, name: str, settled: bool = True) -> Marker | None:
    """The last one that was committed; None: there is none, or it has expired.

    `settled`: when the transaction under way is over, however long that takes; else without that one.
    """
    last_error, where = LastError(), f"kafka {place.servers}, group {name!r}"
    group = _group(place, name, last_error, "read_committed" if settled else "read_uncommitted")

    def failed(error: Any) -> FerryError:
        polled = group.poll(0)  # a lack of rights
        return failure(error if polled is None else polled.error() or error, where, last_error)

    try:
        with mapped_errors(failed):
            (found,) = group.committed([client.at(topic, 0)], TRANSACTION_SECONDS)
        if found.error is not None:
            raise failed(found.error)
    finally:
        group.close()
    if found.offset < 0:
        return None
    return Marker.read(found.offset, found.metadata)


def _group(place: KafkaPlace, name: str, last_error: LastError, isolation: str = "read_committed") -> Any:
    """A consumer of a group, which reads nothing: it knows what is committed for it."""
    settings = {"group.id": name, "enable.auto.commit": False}
    return client.consumer(place.with_options({"isolation.level": isolation}), settings, last_error)


class PlainWriter(_Writer):
    """Writes records without a transaction: all have arrived, or an error says that some may have."""

    def __init__(self, place: KafkaPlace, topic: str, where: str, encoder: Encoder, way: int = 0) -> None:
        more = {"delivery.timeout.ms": int(TRANSACTION_SECONDS * 1000)}
        super().__init__(place, topic, where, encoder, way, more)
        with mapped_errors(self._failure):
            self._find_topic()

    def publish(self, records: Iterable[Outgoing]) -> None:
        """Returns when the brokers have them.

        Raises Final for a record that can never be written, BatchRefused when it may be one.
        """
        with mapped_errors(self._failure):
            self._put(records)
        left = self._producer.flush(TRANSACTION_SECONDS)
        if self._failed:
            raise self._failure(self._failed[0][0])
        if left:
            text = f"{self._where}: {left} records were not taken within {TRANSACTION_SECONDS:g} s"
            raise Unreachable(self._last_error.beside(text))

    def close(self) -> None:
        """Forget what was not taken."""
        self._producer.purge()
