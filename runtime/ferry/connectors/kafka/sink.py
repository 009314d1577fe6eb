"""A topic of Kafka as a sink: the rows of an epoch appear at once, for who reads committed records, and once.

The records of an epoch are one transaction, and with them its number is committed, as the offset of a consumer group that
has no consumers (docs/decisions/0024). Whoever begins to write fences the one before, and asks then what was published.
Must never publish an epoch again that was, nor for a driver of a lower generation.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ferry.connectors.kafka.client import NotAllowed, library
from ferry.connectors.kafka.place import KafkaPlace
from ferry.connectors.kafka.records import Encoder, Marker, Outgoing
from ferry.connectors.kafka.writers import BatchRefused, PlainWriter, TransactionWriter, marker_of
from ferry.connectors.sink import Sink
from ferry.contract.errors import Fault, Final, SpecRefused
from ferry.contract.texts import require_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("ferry.driver")

RENEW_SECONDS = 6 * 3600.0
"""A marker is committed anew so often: brokers forget what a group without consumers has committed, by default in a week."""

EPOCH, ROW = "ferry-epoch", "ferry-row"
"""Headers of records that may come again."""


class KafkaSink(Sink):
    """See `kafka_sink`."""

    def __init__(self, place: KafkaPlace, topic: str, encoder: Encoder, name: str) -> None:
        self._place = place
        self.topic = topic
        self._encoder = encoder
        self._own = name
        self._name = f"ferry.{name}"
        self._run = ""
        self._committed = -1
        self._writer: TransactionWriter | None = None
        self._published = -1
        self._generation = -1
        self._begun = False
        """Whether the marker has been compared with what the job has committed."""
        self._way = 0
        """In which of the ways of putting records together they are written."""
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"kafka_sink({self._place.servers!r}, {self.topic!r})"

    def identify(self, job: str, run: str = "", before: str | None = None) -> str:
        """Transactions are of a job and a sink, in every run of it; the marker says which run has published."""
        self._name, self._run = f"ferry.{job}.{self._own}", run
        return self._name

    def open(self, committed: int) -> None:
        """Fence whoever has written before; if no broker can be reached, the first epoch does so."""
        self._committed = committed
        try:
            with self._lock, allowed_before(committed >= 0):
                self._ready(None)
        except Fault as error:
            log.warning("%s", error)
        threading.Thread(target=self._renew, name="kafka-marker", daemon=True).start()

    def write(self, epoch: int, generation: int, rows: pa.Table | DataFrame) -> None:
        """Publish an epoch, unless it was. Raises Final when a newer driver has published."""
        records: list[Outgoing] | None = None
        with self._lock, allowed_before(max(self._committed, self._published) >= 0):
            while True:
                writer = self._ready(generation)
                if epoch <= self._published:
                    return
                if records is None:
                    table = rows if isinstance(rows, pa.Table) else rows.toArrow()
                    records = [(key, value, []) for key, value in self._encoder.encode(table)]
                try:
                    return self._publish(writer, records, Marker(epoch, generation, self._run))
                except BatchRefused as refused:
                    log.info("%s: written again in smaller batches", refused)
                    self._way += 1

    def truncate_after(self, epoch: int) -> None:
        """Records cannot be taken back: refused, unless there are none of later epochs."""
        marker = marker_of(self._place, self.topic, self._name)
        if marker is None:
            log.warning("%r: nobody knows what was published after epoch %d; taken as nothing", self, epoch)
        elif marker.epoch > epoch:
            super().truncate_after(epoch)
        else:
            self._take_over(marker.epoch)

    def keep_after(self, epoch: int) -> None:
        """Later epochs are published again, beside what is there of these numbers."""
        self._take_over(epoch)

    def _take_over(self, epoch: int) -> None:
        """From now on the marker is this run's."""
        with self._lock:
            writer = self._writer = self._new_writer()
            self._publish(writer, (), Marker(epoch, -1, self._run))
            self._begun = True

    def _ready(self, generation: int | None) -> TransactionWriter:
        """The writer: fenced is whoever came before, and what that one published is known."""
        if generation is not None:
            self._generation = generation
        if self._writer is None:
            # Looked at before, too, so that a driver that was given up does not fence the next one. A transaction that a
            # killed one has left open is not waited for: only a new writer ends it, or a minute.
            self._refuse_newer(marker_of(self._place, self.topic, self._name, settled=False), generation)
            writer = self._new_writer()
            marker = marker_of(self._place, self.topic, self._name)
            self._refuse_newer(marker, generation)
            self._begin(marker)
            self._writer = writer
        return self._writer

    def _new_writer(self) -> TransactionWriter:
        return TransactionWriter(self._place, self.topic, self._name, repr(self), self._encoder, self._way)

    def _begin(self, marker: Marker | None) -> None:
        self._published = -1 if marker is None else marker.epoch
        self._generation = max(self._generation, -1 if marker is None else marker.generation)
        if marker is not None and marker.epoch >= 0 and marker.run not in ("", self._run) and self._run:
            refusal = Final if self._begun else SpecRefused
            raise refusal(
                f"sink: {self!r}: run {marker.run} writes as {self._name!r}, and this one is {self._run}; give this job "
                f"another name=, or, if that run is over, delete the consumer group {self._name!r}"
            )
        if not self._begun and self._published > self._committed:
            raise SpecRefused(
                f"sink: {self!r} has got epoch {self._published} of another run (this one has committed up to "
                f"{self._committed}); give it another name=, or delete the consumer group {self._name!r}"
            )
        if not self._begun and marker is None and self._committed >= 0:
            log.warning("%r: no marker of group %s; epochs after the last committed one are new", self, self._name)
        self._begun = True

    def _refuse_newer(self, marker: Marker | None, generation: int | None) -> None:
        if marker is not None and generation is not None and marker.generation > generation:
            raise Final(f"{self!r}: the driver of generation {marker.generation} writes, this one is of {generation}")

    def _publish(self, writer: TransactionWriter, records: Any, marker: Marker) -> None:
        try:
            writer.publish(records, marker)
        except BaseException:
            self._writer = None
            writer.close()
            raise
        self._published = marker.epoch

    def _renew(self) -> None:
        """For as long as the process lives."""
        waiting = threading.Event()
        while not waiting.wait(RENEW_SECONDS):
            try:
                with self._lock:
                    if self._writer is not None:
                        self._publish(self._writer, (), Marker(self._published, self._generation, self._run))
            except Exception as error:
                log.warning("%r: the marker could not be renewed: %s", self, error)


@contextmanager
def allowed_before(before: bool) -> Iterator[None]:
    """A right that is taken away from a job that has written `before` is waited for; else it was never there."""
    try:
        yield
    except NotAllowed as error:
        if before:
            raise
        raise SpecRefused(str(error)) from error


class RepeatingKafkaSink(Sink):
    """See `kafka_sink` with exactly_once=False."""

    def __init__(self, place: KafkaPlace, topic: str, encoder: Encoder) -> None:
        self._place = place
        self.topic = topic
        self._encoder = encoder
        self._writer: PlainWriter | None = None
        self._way = 0
        self._has_written = False

    def __repr__(self) -> str:
        return f"kafka_sink({self._place.servers!r}, {self.topic!r}, exactly_once=False)"

    def open(self, committed: int) -> None:
        """Nothing is asked of the brokers."""
        self._has_written = committed >= 0

    def write(self, epoch: int, generation: int, rows: pa.Table | DataFrame) -> None:
        """Publish; again after a failure, with the same numbers."""
        table = rows if isinstance(rows, pa.Table) else rows.toArrow()
        records = list(self._numbered(epoch, table))
        with allowed_before(self._has_written):
            while True:
                try:
                    self._publish(records)
                    break
                except BatchRefused as refused:
                    log.info("%s: written again in smaller batches", refused)
                    self._way += 1
        self._has_written = True

    def _publish(self, records: list[Outgoing]) -> None:
        writer = self._writer
        if writer is None:
            writer = self._writer = PlainWriter(self._place, self.topic, repr(self), self._encoder, self._way)
        try:
            writer.publish(records)
        except BaseException:
            self._writer = None
            writer.close()
            raise

    def _numbered(self, epoch: int, table: pa.Table) -> Iterator[Outgoing]:
        """With the number of each row in an order of its own: rows come in another one when other instances are asked."""
        records = sorted(self._encoder.encode(table), key=lambda one: (one[0] or b"", one[1] or b""))
        for row, (key, value) in enumerate(records):
            yield key, value, [(EPOCH, str(epoch).encode()), (ROW, str(row).encode())]


def kafka_sink(
    servers: str,
    topic: str,
    *,
    key: str | None = None,
    value: str = "json",
    exactly_once: bool = True,
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Sink:
    """Records of a topic of Kafka. Consumers that read committed records see each epoch at once, and once.

    Parameters:
        servers: host:port of brokers to begin with, several with commas between.
        topic: its name; it must be there.
        key: the column that is the record's key, as text if it holds no bytes; None: records have none. Keys go to the
            partitions to which Java's clients send them ("partitioner": "murmur2_random").
        value: "json" for an object of all columns (bytes as base64, times in ISO 8601, decimals, NaN and infinities as text,
            maps as objects), which `ferry.kafka` reads back; or "bytes" or "string" for the column `value` alone.
        exactly_once: each epoch is a transaction. False: records are there earlier, may come again after a failure, and have
            the headers `ferry-epoch` and `ferry-row`, by which a repetition is known.
        name: of the sink in its job, by which its transactions are known; None: that of the topic.
        options: of librdkafka, as for `kafka`.
    Returns: a sink.
    Raises: SpecRefused, if an argument is none of these, or the library is not installed.
    Example:
        >>> output = counts.sink(ferry.kafka_sink("broker:9092", "counts", key="auction"))
    """
    library()
    place, encoder = KafkaPlace.of(servers, options), Encoder(key, value)
    require_name(topic, "kafka_sink: topic")
    for given, what in ((key, "key="), (name, "name=")):
        if given is not None:
            require_name(given, f"kafka_sink: {what}")
    if not exactly_once:
        return RepeatingKafkaSink(place, topic, encoder)
    return KafkaSink(place, topic, encoder, name or topic)
