"""Records of topics from exact offsets, by readers that a process keeps: what one has fetched ahead is not fetched again.

A reader gives records out in parts, so that large ones fill no memory, and what a part has depends on the records alone.
Must never give out records of a topic that was made again under its name, nor pass over records that are lost.
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
"""Records that are there come within this time, one after another."""

SAME_SECONDS = 0.5
"""Before records are taken the topic was the one that the job began with, so long ago at most: one that is made again under
its name has other records at the same offsets."""

CONSUME_MAX = 10_000
"""Records that are taken over from the library at once."""

AHEAD_MAX = 20_000
"""Records of a partition beyond what was asked for that are held at most, but for those of one takeover."""

PART_BYTES = 64 << 20
"""Of the records of a partition that are given out at once, the last one apart; and of those that are held for later."""

IDLE_MAX = 2  # readers of one topic that a process keeps for later

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


def made_again(servers: str, topic: str) -> SpecRefused:
    """The error for a topic whose id is another one than that of the job's position."""
    return SpecRefused(
        f"kafka({servers!r}, {topic!r}): the topic was deleted, and made again: the job's offsets are those of another. "
        "Begin a new job"
    )


class RangeReader:
    """Reads ranges of offsets of a topic's partitions; goes on where it was, with what it has fetched ahead."""

    def __init__(self, place: KafkaPlace, topic: str) -> None:
        self._where = f"kafka {place.servers}, topic {topic!r}"
        self._place = place
        self._topic = topic
        self._last_error = LastError()
        self._consumer = client.consumer(place, {**READER, "isolation.level": place.isolation}, self._last_error)
        self._ends = TopicEnds(place, topic)
        self._same_at = 0.0
        self._next: dict[int, int] = {}
        """by partition, the offset behind what was given out"""
        self._passed: dict[int, int] = {}
        """by partition, the offset behind what has come: before it, there is nothing more to come"""
        self._ahead: dict[int, list[Any]] = {}
        self._bytes: dict[int, int] = {}
        """by partition, of the values that are ahead"""
        self._fetched: set[int] = set()
        """partitions that the library reads now: not what has come far ahead"""

    def read(self, ranges: Mapping[int, tuple[int, int]], topic: str) -> Iterator[tuple[int, list[Any]]]:
        """Records of each partition in [start, stop), in parts. Offsets without a record, as those of markers, are none.

        `topic`: its id. Raises SpecRefused when it has another one by now, or the brokers have lost records.
        """
        if any(self._next.get(one) != start for one, (start, _) in ranges.items()):
            self._begin({one: start for one, (start, _) in ranges.items()})
        stops = {one: stop for one, (_, stop) in ranges.items()}
        self._resume({one for one in stops if not self._is_far(one, stops)}, stops)
        for partition, stop in stops.items():
            self._resume({partition}, stops)
            deadline = time.monotonic() + SILENCE_SECONDS
            while True:
                while (many := self._part(partition, stop)) is not None:
                    yield partition, self._out(partition, many, topic)
                    deadline = time.monotonic() + SILENCE_SECONDS
                if self._passed[partition] >= stop:
                    break
                if self._take(partition, stops):
                    deadline = time.monotonic() + SILENCE_SECONDS
                elif time.monotonic() > deadline:
                    self._ends.latest([partition])  # Raises what the library may keep to itself, as a lack of rights.
                    text = f"{self._where}: no record of partition {partition} for {SILENCE_SECONDS:g} s"
                    raise Unreachable(self._last_error.beside(text))
            many = bisect_left(self._ahead[partition], stop, key=_offset)
            yield partition, self._out(partition, many, topic)
            self._next[partition] = stop

    def _part(self, partition: int, stop: int) -> int | None:
        """How many records of a partition make a whole part; None: there are too few yet."""
        if self._bytes[partition] < PART_BYTES:
            return None
        size = 0
        for i, one in enumerate(self._ahead[partition]):
            size += len(one)
            if one.offset() >= stop:
                return None
            if size >= PART_BYTES:
                return i + 1
        return None

    def _out(self, partition: int, many: int, topic: str) -> list[Any]:
        held = self._ahead[partition]
        some, self._ahead[partition] = held[:many], held[many:]
        if some:
            self._bytes[partition] -= sum(map(len, some))
            self._next[partition] = some[-1].offset() + 1
            self._require(topic)
        return some

    def _require(self, topic: str) -> None:
        """What has come is of the topic with this id."""
        if time.monotonic() - self._same_at < SAME_SECONDS:
            return
        if self._ends.partitions()[0] != topic:
            raise made_again(self._place.servers, self._topic)
        self._same_at = time.monotonic()

    def _take(self, wanted: int, stops: Mapping[int, int]) -> bool:
        """Take over what has come; whether it was anything."""
        # To ask for many and wait is to wait for many.
        messages = self._consumer.consume(CONSUME_MAX, 0.0) or self._consumer.consume(1, 0.2)
        came = self._sort(messages)
        if far := {one for one in self._fetched - {wanted} if self._is_far(one, stops)}:
            self._fetch(self._fetched - far)  # It waits for the others.
        return came

    def _begin(self, starts: Mapping[int, int]) -> None:
        self._next = dict(starts)
        self._passed = dict(starts)
        self._ahead = {one: [] for one in starts}
        self._bytes = dict.fromkeys(starts, 0)
        self._fetch(set(starts))

    def _fetch(self, partitions: set[int]) -> None:
        """These from now on, each from where it is. (What the library pauses, it does not always resume.)"""
        self._consumer.assign([client.at(self._topic, one, self._passed[one]) for one in sorted(partitions)])
        self._fetched = partitions

    def _sort(self, messages: Sequence[Any]) -> bool:
        """Whether there is anything of use among them."""
        came = False
        for one in messages:
            partition = one.partition()
            if (error := one.error()) is not None:
                came |= self._heed(error, partition, one.offset())
            else:
                self._ahead[partition].append(one)
                self._bytes[partition] += len(one)
                self._passed[partition] = one.offset() + 1
                came = True
        return came

    def _heed(self, error: Any, partition: int, offset: int) -> bool:
        """What comes in the place of a record: the end of a partition, what is wrong, or (False) what does not matter."""
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
            f"{RECORDS_LOST}{self._where}, partition {partition}: the broker has no offset {self._passed[partition]} any "
            f"more, as after the topic's retention time, or has lost it{there}. No record is passed over: begin a new job"
        )

    def _is_far(self, partition: int, stops: Mapping[int, int]) -> bool:
        """Whether so much of a partition is held that no more is to come."""
        many = len(self._ahead[partition]) > AHEAD_MAX and self._passed[partition] >= stops.get(partition, 0)
        return many or self._bytes[partition] >= PART_BYTES

    def _resume(self, partitions: set[int], stops: Mapping[int, int]) -> None:
        if lacking := {one for one in partitions if self._passed[one] < stops[one]} - self._fetched:
            self._fetch(self._fetched | lacking)

    def close(self) -> None:
        """Give up the connections."""
        self._consumer.close()


def _offset(message: Any) -> int:
    offset: int = message.offset()
    return offset


_idle: dict[tuple[int, KafkaPlace, str], list[RangeReader]] = {}
"""Readers that nobody uses now, by process."""


@contextmanager
def lent_reader(place: KafkaPlace, topic: str) -> Iterator[RangeReader]:
    """A reader of this process, kept for the next one who asks; closed after an error."""
    idle = _idle.setdefault((os.getpid(), place, topic), [])
    one = idle.pop() if idle else RangeReader(place, topic)
    try:
        yield one
    except BaseException:
        one.close()
        raise
    if len(idle) < IDLE_MAX:
        idle.append(one)
    else:
        one.close()
