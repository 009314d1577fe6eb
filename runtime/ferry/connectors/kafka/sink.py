"""A Kafka topic as a sink: consumers with read_committed see the rows of an epoch atomically, exactly once.

One transaction holds the records of an epoch and its number, which is the committed offset of a consumer group without
consumers (docs/decisions/0024). A new writer fences the previous writer, and then reads the number of the published epoch.
Must never publish an epoch twice. Must never publish for a driver of a lower generation.
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
"""Period in which the marker is committed again. Brokers forget the offsets of a group without consumers, by default after a
week."""

EPOCH, ROW = "ferry-epoch", "ferry-row"
"""Headers of records that may be repeated."""


class KafkaSink(Sink):
    """The sink of `kafka_sink`."""

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
        """Whether the marker was compared with the job's committed epoch."""
        self._way = 0
        """Index in `writers.BATCHES` of the current batch sizes."""
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"kafka_sink({self._place.servers!r}, {self.topic!r})"

    def identify(self, job: str, run: str = "", before: str | None = None) -> str:
        """The name of transactions: job and sink, the same in every run. The marker names the run that has published."""
        self._name, self._run = f"ferry.{job}.{self._own}", run
        return self._name

    def open(self, committed: int) -> None:
        """Fence the previous writer. If the brokers are unreachable, the first epoch does it."""
        self._committed = committed
        try:
            with self._lock, allowed_before(committed >= 0):
                self._ready(None)
        except Fault as error:
            log.warning("%s", error)
        threading.Thread(target=self._renew, name="kafka-marker", daemon=True).start()

    def write(self, epoch: int, generation: int, rows: pa.Table | DataFrame) -> None:
        """Publish an epoch, unless it is published. Raises Final if a newer driver has published."""
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
                    log.info("%s: retried in smaller batches", refused)
                    self._way += 1

    @property
    def takes_back(self) -> bool:
        """Never: records stay."""
        return False

    def truncate_after(self, epoch: int) -> None:
        """Raise SpecRefused if later epochs are published, because records cannot be taken back."""
        marker = marker_of(self._place, self.topic, self._name)
        if marker is None:
            log.warning("%r: no marker of epochs after epoch %d; assumed unpublished", self, epoch)
        elif marker.epoch > epoch:
            super().truncate_after(epoch)
        else:
            self._take_over(marker.epoch)

    def keep_after(self, epoch: int) -> None:
        """Keep the records of later epochs. New epochs get the same numbers, and are added."""
        self._take_over(epoch)

    def _take_over(self, epoch: int) -> None:
        """Claim the marker for this run."""
        with self._lock:
            writer = self._writer = self._new_writer()
            self._publish(writer, (), Marker(epoch, -1, self._run))
            self._begun = True

    def _ready(self, generation: int | None) -> TransactionWriter:
        """The writer. A new writer fences the previous writer and reads its published epoch."""
        if generation is not None:
            self._generation = generation
        if self._writer is None:
            # The marker is also read before, so that an abandoned driver does not fence its successor. This read does not
            # wait for an open transaction of a killed driver: only a new writer or a timeout of a minute ends it.
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
                f"sink: {self!r}: run {marker.run} writes as {self._name!r}, and this run is {self._run}; give this job "
                f"another name=, or, if that run is over, delete the consumer group {self._name!r}"
            )
        if not self._begun and self._published > self._committed:
            raise SpecRefused(
                f"sink: {self!r} has epoch {self._published} of another run (this run has committed up to "
                f"{self._committed}); give it another name=, or delete the consumer group {self._name!r}"
            )
        if not self._begun and marker is None and self._committed >= 0:
            log.warning("%r: no marker of group %s; epochs after the committed epoch are new", self, self._name)
        self._begun = True

    def _refuse_newer(self, marker: Marker | None, generation: int | None) -> None:
        if marker is not None and generation is not None and marker.generation > generation:
            raise Final(
                f"{self!r}: the driver of generation {marker.generation} writes; this driver is of {generation}"
            )

    def _publish(self, writer: TransactionWriter, records: Any, marker: Marker) -> None:
        try:
            writer.publish(records, marker)
        except BaseException:
            self._writer = None
            writer.close()
            raise
        self._published = marker.epoch

    def _renew(self) -> None:
        """Renew the marker periodically until the process ends."""
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
    """Turn NotAllowed into SpecRefused, unless this job has written `before`: such a job waits for the permission."""
    try:
        yield
    except NotAllowed as error:
        if before:
            raise
        raise SpecRefused(str(error)) from error


class RepeatingKafkaSink(Sink):
    """The sink of `kafka_sink` with exactly_once=False."""

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
        """Do not contact the brokers."""
        self._has_written = committed >= 0

    def write(self, epoch: int, generation: int, rows: pa.Table | DataFrame) -> None:
        """Publish the rows. A repetition after a failure has the same headers."""
        table = rows if isinstance(rows, pa.Table) else rows.toArrow()
        records = list(self._numbered(epoch, table))
        with allowed_before(self._has_written):
            while True:
                try:
                    self._publish(records)
                    break
                except BatchRefused as refused:
                    log.info("%s: retried in smaller batches", refused)
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
        """The records with headers, numbered in sorted order, because the order of rows depends on the instances."""
        records = sorted(self._encoder.encode(table), key=lambda pair: (pair[0] or b"", pair[1] or b""))
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
    """Write rows to a Kafka topic. Consumers with read_committed see each epoch atomically, exactly once.

    Parameters:
        servers: host:port of one or more bootstrap brokers, separated by commas.
        topic: name of an existing topic.
        key: the column of the record's key: bytes unchanged, other types as text. None: records without a key. The partition
            of a key is the same as with Java's clients ("partitioner": "murmur2_random").
        value: "json" for an object of all columns (bytes in base64, times in ISO 8601, decimals, NaN and infinities as text,
            maps as objects), which `ferry.kafka` can read; or "bytes" or "string" for the column `value` alone.
        exactly_once: True: each epoch is a transaction. False: consumers see records earlier, and records may be repeated
            after a failure; a repetition has the same headers `ferry-epoch` and `ferry-row`.
        name: name of the sink in its job, which identifies its transactions. None: the name of the topic.
        options: options of librdkafka, as for `kafka`.
    Returns: a sink.
    Raises: SpecRefused, if an argument is invalid, or the library is not installed.
    Example:
        >>> output = counts.sink(ferry.kafka_sink("broker:9092", "counts", key="auction"))
    """
    library()
    place, encoder = KafkaPlace.of(servers, options), Encoder(key, value)
    require_name(topic, "kafka_sink: topic")
    for parameter, text in (("key=", key), ("name=", name)):
        if text is not None:
            require_name(text, f"kafka_sink: {parameter}")
    if not exactly_once:
        return RepeatingKafkaSink(place, topic, encoder)
    return KafkaSink(place, topic, encoder, name or topic)
