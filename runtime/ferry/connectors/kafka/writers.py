"""Writers of records to a Kafka topic: an epoch as a transaction with its marker, or records without a transaction.

A broker refuses the whole batch of an invalid record. Therefore refused records are retried in smaller batches, and at last
each record alone, which identifies the invalid record. Must never report a valid record as invalid.
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

CONNECT_SECONDS = 0.05
"""Wait for a producer's connection after the answer about its topic."""

TRANSACTION_SECONDS = 15.0
"""Timeout of each step of a transaction. After it the whole transaction is retried."""

REPORT_SECONDS = 1.0
"""Longest wait for the delivery report of the record that made a transaction fail."""

PARTITIONER = "murmur2_random"
"""The partitioner of Java's clients. The library's default maps keys to different partitions."""

BATCHES: tuple[dict[str, int], ...] = ({}, {"batch.size": 16_384}, {"batch.num.messages": 1})
"""Batch sizes in the order of the retries after refused batches. The second size is the default of Java's clients."""


class BatchRefused(Unreachable):
    """The brokers refuse some of the records, alone or together with others."""


class _Writer:
    """Sends records to the brokers. Delivery reports identify records that the brokers always refuse."""

    def __init__(
        self, place: KafkaPlace, topic: str, where: str, encoder: Encoder, way: int, more: Mapping[str, Any]
    ) -> None:
        """`way`: index in `BATCHES`."""
        self._where = where
        self._topic = topic
        self._encoder = encoder
        self._alone = way == len(BATCHES) - 1
        self._last_error = LastError()
        self._failed: list[tuple[Any, Outgoing]] = []
        self._sending: Outgoing | None = None
        """The record in the current call of the library."""
        more = {"linger.ms": 5, "partitioner": PARTITIONER, **more, "enable.idempotence": True}
        reports = {"on_delivery": self._delivered, "delivery.report.only.error": True}
        self._producer = client.producer(place.with_options(BATCHES[way]), {**more, **reports}, self._last_error)

    def _delivered(self, error: Any, record: Any) -> None:
        if error is not None and not client.is_purged(error):
            self._failed.append((error, (record.key(), record.value(), [])))

    def _put(self, records: Iterable[Outgoing]) -> None:
        """Put records into the library's queue. Waits while the queue is full."""
        for record in records:
            self._sending = record
            key, value, headers = record
            end = time.monotonic() + TRANSACTION_SECONDS
            while True:
                try:
                    self._producer.produce(self._topic, value, key, headers=headers)
                    self._producer.poll(0)
                    break
                except BufferError as full:
                    if time.monotonic() > end:
                        text = f"{self._where}: the send queue was full for {TRANSACTION_SECONDS:g} s"
                        raise Unreachable(self._last_error.beside(text)) from full
                    self._producer.poll(0.1)
        self._sending = None

    def _failure(self, error: Any) -> FerryError:
        """Ferry's error. Final if the error or a delivery report means that the brokers always refuse a record."""
        if client.advice(error) and self._sending is not None:
            return self._final(error, self._sending)
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
    """Writes each epoch in a transaction with its marker. A new writer fences earlier writers of the same name."""

    def __init__(self, place: KafkaPlace, topic: str, name: str, where: str, encoder: Encoder, way: int = 0) -> None:
        more = {"transactional.id": name, "transaction.timeout.ms": 60_000}
        super().__init__(place, topic, f"{where}, transactions of {name!r}", encoder, way, more)
        self._group = _group(place, name, self._last_error)
        with mapped_errors(self._failure):
            # Without a connection the library looks for its transaction coordinator only twice a second.
            self._find_topic()
            self._producer.poll(CONNECT_SECONDS)
            self._within(self._producer.init_transactions)

    def publish(self, records: Iterable[Outgoing], marker: Marker) -> None:
        """Publish the records and the marker atomically. After an error the outcome is unknown: close this writer.

        Raises Final for a record that the brokers always refuse, BatchRefused if it is not identified yet.
        """
        note = client.at(self._topic, 0, marker.epoch + 1, marker.about())
        with mapped_errors(self._failure):
            self._producer.begin_transaction()
            self._put(records)
            group = self._group.consumer_group_metadata()
            self._within(partial(self._producer.send_offsets_to_transaction, [note], group))
            self._within(self._producer.commit_transaction)

    def close(self) -> None:
        """Abort the open transaction, if a broker is reachable. The next writer aborts it, too."""
        with suppress(FerryError), mapped_errors(self._failure):
            within(2.0, partial(self._producer.abort_transaction, 1.0), self._where)


def marker_of(place: KafkaPlace, topic: str, name: str, settled: bool = True) -> Marker | None:
    """The last committed marker. None without a marker, or after its expiry.

    `settled`: True: wait until the open transaction has ended. False: ignore the open transaction.
    """
    last_error, where = LastError(), f"kafka {place.servers}, group {name!r}"
    group = _group(place, name, last_error, "read_committed" if settled else "read_uncommitted")

    def failed(error: Any) -> FerryError:
        polled = group.poll(0)  # reports a missing permission
        return failure(error if polled is None else polled.error() or error, where, last_error)

    try:
        with mapped_errors(failed):
            (committed,) = group.committed([client.at(topic, 0)], TRANSACTION_SECONDS)
        if committed.error is not None:
            raise failed(committed.error)
    finally:
        group.close()
    if committed.offset < 0:
        return None
    return Marker.read(committed.offset, committed.metadata)


def _group(place: KafkaPlace, name: str, last_error: LastError, isolation: str = "read_committed") -> Any:
    """A consumer for the committed offsets of a group. It reads no records."""
    settings = {"group.id": name, "enable.auto.commit": False}
    return client.consumer(place.with_options({"isolation.level": isolation}), settings, last_error)


class PlainWriter(_Writer):
    """Writes records without a transaction. After an error some of the records may have arrived."""

    def __init__(self, place: KafkaPlace, topic: str, where: str, encoder: Encoder, way: int = 0) -> None:
        more = {"delivery.timeout.ms": int(TRANSACTION_SECONDS * 1000)}
        super().__init__(place, topic, where, encoder, way, more)
        with mapped_errors(self._failure):
            self._find_topic()

    def publish(self, records: Iterable[Outgoing]) -> None:
        """Publish the records. Returns when the brokers have acknowledged them.

        Raises Final for a record that the brokers always refuse, BatchRefused if it is not identified yet.
        """
        with mapped_errors(self._failure):
            self._put(records)
        left = self._producer.flush(TRANSACTION_SECONDS)
        if self._failed:
            raise self._failure(self._failed[0][0])
        if left:
            text = f"{self._where}: {left} records were not acknowledged within {TRANSACTION_SECONDS:g} s"
            raise Unreachable(self._last_error.beside(text))

    def close(self) -> None:
        """Drop the records that were not acknowledged."""
        self._producer.purge()
