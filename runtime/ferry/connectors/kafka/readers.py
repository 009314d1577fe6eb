"""Records of topics from exact offsets. A process keeps its readers, so records fetched ahead are not fetched again.

A reader yields records in parts, which bound the memory of large records. The division into parts depends on the records
alone. Must never yield records of a topic that was deleted and created again. Must never skip lost records.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ferry.connectors.kafka import client
from ferry.connectors.kafka.client import LastError, TopicEnds, failure
from ferry.connectors.kafka.place import KafkaPlace
from ferry.contract.errors import RECORDS_LOST, FerryError, SpecRefused, Unreachable

SILENCE_SECONDS = 10.0
"""Longest wait for the next existing record."""

SAME_SECONDS = 0.5
"""Greatest age of the last check of the topic's id when records are yielded. A topic that was created again has different
records at the same offsets."""

CONSUME_MAX = 10_000
"""Greatest number of records in a call of the library."""

AHEAD_MAX = 20_000
"""Greatest number of held records of a partition beyond the requested range, without the records of the last call."""

PART_BYTES = 64 << 20
"""Bytes of a part, without its last record. Also the bound of a partition's held records."""

IDLE_MAX = 2  # idle readers of a topic that a process keeps

READER = {
    "group.id": "ferry",  # required by the library; the reader never joins it and never commits
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "queued.max.messages.kbytes": 32_768,
    "fetch.wait.max.ms": 50,  # a waiting fetch blocks the fetches of other partitions
    "fetch.queue.backoff.ms": 10,
}
"""Options of a consumer with explicit offsets."""


def recreated(servers: str, topic: str) -> SpecRefused:
    """The error for a topic whose id differs from the id in the job's position."""
    return SpecRefused(
        f"kafka({servers!r}, {topic!r}): the topic was deleted and created again: the job's offsets belong to the old "
        "topic. Begin a new job"
    )


class RangeReader:
    """Reads ranges of offsets of a topic's partitions. The next read continues with the records fetched ahead."""

    def __init__(self, place: KafkaPlace, topic: str) -> None:
        self._where = f"kafka {place.servers}, topic {topic!r}"
        self._place = place
        self._topic = topic
        self._last_error = LastError()
        self._consumer = client.consumer(place, {**READER, "isolation.level": place.isolation}, self._last_error)
        self._ends = TopicEnds(place, topic)
        self._same_at = 0.0
        self._next: dict[int, int] = {}
        """By partition: the offset after the last yielded record."""
        self._passed: dict[int, int] = {}
        """By partition: the offset after the last fetched record. All records before it were fetched."""
        self._ahead: dict[int, list[Any]] = {}
        """By partition: the fetched records that are not yielded."""
        self._bytes: dict[int, int] = {}
        """By partition: bytes of `_ahead`."""
        self._fetched: set[int] = set()
        """Partitions that the library fetches now. A partition far ahead is paused."""

    def read(self, ranges: Mapping[int, tuple[int, int]], topic: str) -> Iterator[tuple[int, list[Any]]]:
        """(partition, records) of each partition in [start, stop), in parts. Offsets of markers have no record.

        `topic`: the topic's id. Raises SpecRefused if the topic's id has changed, or the brokers have lost records.
        """
        if any(self._next.get(partition) != start for partition, (start, _) in ranges.items()):
            self._begin({partition: start for partition, (start, _) in ranges.items()})
        stops = {partition: stop for partition, (_, stop) in ranges.items()}
        self._resume({partition for partition in stops if not self._is_far(partition, stops)}, stops)
        for partition, stop in stops.items():
            self._resume({partition}, stops)
            deadline = time.monotonic() + SILENCE_SECONDS
            while True:
                while (count := self._part(partition, stop)) is not None:
                    yield partition, self._out(partition, count, topic)
                    deadline = time.monotonic() + SILENCE_SECONDS
                if self._passed[partition] >= stop:
                    break
                if self._take(partition, stops):
                    deadline = time.monotonic() + SILENCE_SECONDS
                elif time.monotonic() > deadline:
                    self._ends.latest(
                        [partition]
                    )  # Raises errors that the consumer does not report, such as NotAllowed.
                    text = f"{self._where}: no record of partition {partition} for {SILENCE_SECONDS:g} s"
                    raise Unreachable(self._last_error.beside(text))
            count = bisect_left(self._ahead[partition], stop, key=_offset)
            yield partition, self._out(partition, count, topic)
            self._next[partition] = stop

    def _part(self, partition: int, stop: int) -> int | None:
        """Number of records in the next whole part of a partition. None if the fetched records do not fill a part."""
        if self._bytes[partition] < PART_BYTES:
            return None
        size = 0
        for i, record in enumerate(self._ahead[partition]):
            size += len(record)
            if record.offset() >= stop:
                return None
            if size >= PART_BYTES:
                return i + 1
        return None

    def _out(self, partition: int, count: int, topic: str) -> list[Any]:
        """Remove and return the first `count` held records of a partition."""
        held = self._ahead[partition]
        records, self._ahead[partition] = held[:count], held[count:]
        if records:
            self._bytes[partition] -= sum(map(len, records))
            self._next[partition] = records[-1].offset() + 1
            self._require(topic)
        return records

    def _require(self, topic: str) -> None:
        """Check that the fetched records belong to the topic with this id. Raises SpecRefused."""
        if time.monotonic() - self._same_at < SAME_SECONDS:
            return
        if self._ends.partitions()[0] != topic:
            raise recreated(self._place.servers, self._topic)
        self._same_at = time.monotonic()

    def _take(self, wanted: int, stops: Mapping[int, int]) -> bool:
        """Take the records that the library has fetched. Returns whether there was progress."""
        # consume(n, t) waits until n records have arrived, so the first call does not wait.
        messages = self._consumer.consume(CONSUME_MAX, 0.0) or self._consumer.consume(1, 0.2)
        progress = self._sort(messages)
        if far := {other for other in self._fetched - {wanted} if self._is_far(other, stops)}:
            self._fetch(self._fetched - far)  # Partitions far ahead wait for the others.
        return progress

    def _begin(self, starts: Mapping[int, int]) -> None:
        self._next = dict(starts)
        self._passed = dict(starts)
        self._ahead = {partition: [] for partition in starts}
        self._bytes = dict.fromkeys(starts, 0)
        self._fetch(set(starts))

    def _fetch(self, partitions: set[int]) -> None:
        """Fetch these partitions from now on. A new assignment, because the library does not always resume a paused one."""
        self._consumer.assign([client.at(self._topic, number, self._passed[number]) for number in sorted(partitions)])
        self._fetched = partitions

    def _sort(self, messages: Sequence[Any]) -> bool:
        """Hold the records by partition. Returns whether there was a record or an end of a partition."""
        progress = False
        for message in messages:
            partition = message.partition()
            if (error := message.error()) is not None:
                progress |= self._handle(error, partition, message.offset())
            else:
                self._ahead[partition].append(message)
                self._bytes[partition] += len(message)
                self._passed[partition] = message.offset() + 1
                progress = True
        return progress

    def _handle(self, error: Any, partition: int, offset: int) -> bool:
        """Handle an error in place of a record. Returns True for the end of a partition, False for an ignored error."""
        if client.is_end(error):
            self._passed[partition] = max(self._passed[partition], offset)
            return True
        if client.is_of_group(error):
            return False
        if client.is_out_of_range(error):
            raise self._lost(partition)
        raise failure(error, f"{self._where}, partition {partition}", self._last_error)

    def _lost(self, partition: int) -> SpecRefused:
        there = ""
        with suppress(FerryError):
            first, end = self._ends.earliest([partition])[partition], self._ends.latest([partition])[partition]
            there = f"; it has offsets {first} to {end - 1}" if first < end else f"; it is empty, and goes on at {end}"
        return SpecRefused(
            f"{RECORDS_LOST}{self._where}, partition {partition}: the broker no longer has offset "
            f"{self._passed[partition]}, as after the topic's retention time or after a loss{there}. Ferry skips no record: "
            "begin a new job"
        )

    def _is_far(self, partition: int, stops: Mapping[int, int]) -> bool:
        """Whether enough records of a partition are held to pause it."""
        full = len(self._ahead[partition]) > AHEAD_MAX and self._passed[partition] >= stops.get(partition, 0)
        return full or self._bytes[partition] >= PART_BYTES

    def _resume(self, partitions: set[int], stops: Mapping[int, int]) -> None:
        if lacking := {number for number in partitions if self._passed[number] < stops[number]} - self._fetched:
            self._fetch(self._fetched | lacking)

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()


def _offset(message: Any) -> int:
    offset: int = message.offset()
    return offset


_idle: dict[tuple[int, KafkaPlace, str], list[RangeReader]] = {}
"""Unused readers, by process, place and topic."""


@contextmanager
def lent_reader(place: KafkaPlace, topic: str) -> Iterator[RangeReader]:
    """A reader of this process. It is kept for the next use, and closed after an error."""
    idle = _idle.setdefault((os.getpid(), place, topic), [])
    reader = idle.pop() if idle else RangeReader(place, topic)
    try:
        yield reader
    except BaseException:
        reader.close()
        raise
    if len(idle) < IDLE_MAX:
        idle.append(reader)
    else:
        reader.close()
