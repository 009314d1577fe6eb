"""A Kafka topic as a source, read inside the ingest tasks. Each partition is a flow; offsets are the positions.

A position has, for each partition, the next offset to read and the offset at which the job began. An epoch takes at most as
many offsets as it may have rows, so a backlog stays in the topic. The job keeps its positions and commits nothing to Kafka.
Must never import pyspark. Must never skip lost records.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ferry.connectors.kafka.client import NotAllowed, NoTopic, TopicEnds, library
from ferry.connectors.kafka.place import KafkaPlace
from ferry.connectors.kafka.readers import SAME_SECONDS, lent_reader, recreated
from ferry.connectors.kafka.records import Decoder
from ferry.connectors.kafka.registry import SchemaRegistry
from ferry.connectors.splits import BATCH_ROWS, Flow, Malformed, Position, Split, ranges, require_end
from ferry.contract.errors import RECORDS_LOST, SpecRefused, Unreachable
from ferry.contract.texts import require_name

PARTITIONS_SECONDS = 5.0
"""Period of requests for new partitions."""

MISSING_SECONDS = 5.0
"""Longest wait of a new job for its topic and for leaders of all partitions."""

ENDS_SECONDS = 1.0
"""Greatest age of the known ends of partitions, also while they suffice for the next epoch."""

BACK_SECONDS = 10.0
"""A partition that ends before the read offset has lost records, unless it is longer again within this time: a new leader
may learn of the end later."""

CUT_ROWS = 20_000
"""Least number of offsets in a share for which partitions are divided among tasks. Smaller partitions stay with the task
whose reader has fetched ahead."""

EARLIEST, LATEST = "earliest", "latest"


def spread(waiting: Mapping[int, int], most: int) -> dict[int, int]:
    """Offsets to take of each partition's backlog, `most` in total, evenly as far as the backlogs suffice."""
    taken: dict[int, int] = {}
    left = sorted((item for item in waiting.items() if item[1] > 0), key=lambda item: (item[1], item[0]))
    for i, (partition, backlog) in enumerate(left):
        taken[partition] = min(backlog, most // (len(left) - i))
        most -= taken[partition]
    return {partition: count for partition, count in taken.items() if count}


def shared(pieces: Sequence[tuple[int, int, int]], tasks: int) -> list[list[tuple[int, int, int]]]:
    """Pieces (partition, start, stop) for at most `tasks` tasks: whole partitions, or divided if the shares are uneven."""
    tasks = max(tasks, 1)
    shares: list[list[tuple[int, int, int]]] = [[] for _ in range(tasks)]
    for piece in pieces:
        shares[piece[0] % tasks].append(piece)
    total = sum(stop - start for _, start, stop in pieces)
    most = max(sum(stop - start for _, start, stop in share) for share in shares)
    if most >= CUT_ROWS and most * tasks > 1.5 * total:
        shares = _cut(pieces, total, tasks)
    return [share for share in shares if share]


def _cut(pieces: Sequence[tuple[int, int, int]], total: int, tasks: int) -> list[list[tuple[int, int, int]]]:
    shares: list[list[tuple[int, int, int]]] = [[] for _ in range(tasks)]
    before = 0
    for partition, start, stop in pieces:
        while start < stop:
            share = before * tasks // total
            end = min(stop, start + -(-(share + 1) * total // tasks) - before)
            shares[share].append((partition, start, end))
            before += end - start
            start = end
    return shares


def rounds(pieces: Sequence[Sequence[int]], rows: int) -> Iterator[dict[int, tuple[int, int]]]:
    """Ranges of partitions to read together, about `rows` offsets in each round, until all pieces are read."""
    left = {partition: (start, stop) for partition, start, stop in pieces}
    while left:
        each = max(rows // len(left), 1)
        yield {partition: (start, min(start + each, stop)) for partition, (start, stop) in left.items()}
        left = {partition: (start + each, stop) for partition, (start, stop) in left.items() if start + each < stop}


class KafkaSplits:
    """The source of `kafka`.

    A position: {"topic": the topic's id, "first": {partition: first offset}, "offsets": {partition: next offset}}.
    """

    has_flows = True

    def __init__(self, place: KafkaPlace, topic: str, decoder: Decoder, starting: str, finite: bool) -> None:
        self._place = place
        self._topic = topic
        self._decoder = decoder
        self._starting = starting
        self.finite = finite
        self._topic_ends: TopicEnds | None = None
        self._ends: dict[int, int] = {}
        self._ends_at = 0.0
        self._back_since: float | None = None
        self._partitions: list[int] = []
        self._partitions_at = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """The state for tasks, without the driver's connection."""
        return {**self.__dict__, "_topic_ends": None}

    def __repr__(self) -> str:
        return f"kafka({self._place.servers!r}, {self._topic!r})"

    @property
    def sets_aside(self) -> bool:
        """Whether values can be malformed."""
        return self._decoder.sets_aside

    @property
    def _brokers(self) -> TopicEnds:
        if self._topic_ends is None:
            self._topic_ends = TopicEnds(self._place, self._topic)
        return self._topic_ends

    def schema(self) -> pa.Schema:
        """The fields of the value, then the columns of `beside`."""
        return self._decoder.schema

    def start(self) -> Position:
        """The begins or ends of the current partitions. Raises SpecRefused if the topic does not exist."""
        end = time.monotonic() + MISSING_SECONDS
        while True:
            try:
                return self._begun()
            except NotAllowed as error:
                raise SpecRefused(str(error)) from error
            except Unreachable as error:
                # A broker that has just started may not know the topic; a new topic may have no leader yet.
                if time.monotonic() > end:
                    if isinstance(error, NoTopic):
                        raise SpecRefused(f"{self!r}: the topic does not exist: {error}") from error
                    raise
            time.sleep(0.1)

    def _begun(self) -> Position:
        topic, partitions = self._brokers.partitions()
        request = self._brokers.earliest if self._starting == EARLIEST else self._brokers.latest
        first = _named(request(partitions))
        position: dict[str, Any] = {"topic": topic, "first": first, "offsets": first}
        return {**position, "end": _named(self._brokers.latest(partitions))} if self.finite else position

    def latest(self, start: Position, max_rows: int) -> Position:
        """The position at most `max_rows` offsets further on, evenly over partitions. New ones are read from their start."""
        if self.ended(start):
            return start
        first, offsets = {**start["first"]}, {**start["offsets"]}
        self._look_for_partitions(start, PARTITIONS_SECONDS)
        if not self.finite:
            if new := [number for number in self._partitions if str(number) not in offsets]:
                begins = _named(self._brokers.earliest(new))
                first, offsets = first | begins, offsets | begins
        if sum(self._waiting(offsets).values()) < max_rows or time.monotonic() - self._ends_at > ENDS_SECONDS:
            self._look_for_ends(start, offsets)
        waiting = self._bounded(start, self._waiting(offsets))
        if any(count > 0 for count in waiting.values()):
            self._look_for_partitions(start, SAME_SECONDS)
        for partition, count in spread(waiting, max_rows).items():
            offsets[str(partition)] += count
        return start if offsets == start["offsets"] else {**start, "first": first, "offsets": offsets}

    def _look_for_partitions(self, position: Position, seconds: float) -> None:
        """Request the partitions, unless the last answer is younger than `seconds`. Raises SpecRefused for a new topic."""
        if self._partitions and time.monotonic() - self._partitions_at < seconds:
            return
        topic, self._partitions = self._brokers.partitions()
        self._partitions_at = time.monotonic()
        if topic != position["topic"]:
            raise recreated(self._place.servers, self._topic)

    def _look_for_ends(self, position: Position, offsets: Mapping[str, int]) -> None:
        """Request the ends of partitions.

        Raises Unreachable for a partition that ends before its read offset, and SpecRefused if that lasts.
        """
        ends = self._brokers.latest([int(name) for name in offsets])
        short = [name for name, offset in offsets.items() if ends[int(name)] < offset]
        if not short:
            self._ends, self._ends_at, self._back_since = ends, time.monotonic(), None
            return
        self._look_for_partitions(position, 0.0)
        self._back_since = self._back_since or time.monotonic()
        text = f"{self!r}: " + "; ".join(
            f"partition {name} was read up to offset {offsets[name]}, and ends at {ends[int(name)]}" for name in short
        )
        if time.monotonic() - self._back_since < BACK_SECONDS:
            raise Unreachable(f"{text}: checked again for {BACK_SECONDS:g} s")
        raise SpecRefused(
            f"{RECORDS_LOST}{text}: the brokers have lost records, and reuse their offsets. Ferry skips no record: begin "
            "a new job"
        )

    def _waiting(self, offsets: Mapping[str, int]) -> dict[int, int]:
        """Number of unread offsets of each partition, by the last known ends."""
        return {int(name): max(self._ends.get(int(name), 0) - offset, 0) for name, offset in offsets.items()}

    def _bounded(self, position: Position, waiting: Mapping[int, int]) -> dict[int, int]:
        """The unread offsets, for a finite input only up to its end when the job began."""
        if not self.finite:
            return dict(waiting)
        end, offsets = position["end"], position["offsets"]
        return {number: min(count, end[str(number)] - offsets[str(number)]) for number, count in waiting.items()}

    def ended(self, position: Position) -> bool:
        """Whether a finite input was read up to the topic's end when the job began."""
        if not self.finite:
            return False
        require_end(self, position)
        return all(offset >= position["end"][name] for name, offset in position["offsets"].items())

    def flows(self, position: Position) -> dict[str, bool]:
        """Partitions, and whether a partition has unread records. Before the first request of ends it may have some."""
        if not self._ends:
            return {name: not self.finite or at < position["end"][name] for name, at in position["offsets"].items()}
        waiting = self._bounded(position, self._waiting(position["offsets"]))
        return {str(number): count > 0 for number, count in waiting.items()}

    def lag(self, position: Position) -> int:
        """Number of unread offsets, by the last known ends."""
        return sum(self._bounded(position, self._waiting(position["offsets"])).values())

    def plan(self, start: Position, stop: Position, tasks: int) -> list[Split]:
        """Ranges of offsets: whole partitions, divided if the shares of tasks would be uneven."""
        # A repeated first epoch begins at the offsets of its first plan, although the topic's start may have moved.
        begun = stop["first"] if start["offsets"] == start["first"] else {**stop["first"], **start["offsets"]}
        pieces = [(int(name), begun[name], offset) for name, offset in stop["offsets"].items() if begun[name] < offset]
        about = {"topic": stop["topic"], "first": start["offsets"] == start["first"]}
        return [{"pieces": share, **about} for share in shared(sorted(pieces), tasks)] if pieces else []

    def divided(self, split: Split) -> list[Split]:
        """A split of one range in smaller splits (`RangeSplits`)."""
        ((partition, low, high),) = split["pieces"]
        return [{**split, "pieces": [[partition, a, b]]} for a, b in ranges(low, high)] if high - low > 1 else []

    def place(self, split: Split) -> str:
        """Partitions and offsets of a split, for messages."""
        pieces = [
            f"partition {number}, offset{f's {low} to {high - 1}' if high - low > 1 else f' {low}'}"
            for number, low, high in split["pieces"]
        ]
        return f"topic {self._topic}, " + "; ".join(pieces[:3]) + ("; ..." if len(pieces) > 3 else "")

    def read(self, split: Split, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch | Malformed | Flow]:
        """The records of a split. Raises SpecRefused for lost records, Unreachable if the brokers do not answer."""
        try:
            with lent_reader(self._place, self._topic) as reader:
                for wanted in rounds(split["pieces"], BATCH_ROWS):
                    for partition, records in reader.read(wanted, split["topic"]):
                        if records:
                            yield Flow(str(partition))
                            yield from self._decoder.decode(records, columns)
        except Unreachable as error:
            if isinstance(error, NotAllowed) and split["first"]:  # A job that has read before waits for the permission.
                raise SpecRefused(str(error)) from error
            raise Unreachable(str(error)) from error  # The driver knows this class in the error of a task.


def _named(offsets: Mapping[int, int]) -> dict[str, int]:
    """The offsets with partitions as texts, for JSON."""
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


def kafka(
    servers: str,
    topic: str,
    value: str | pa.Schema = "bytes",
    beside: Sequence[str] = (),
    starting: str = EARLIEST,
    finite: bool = False,
    registry: str | None = None,
    options: Mapping[str, Any] | None = None,
    epoch: Mapping[str, str] | None = None,
) -> KafkaSplits:
    """A Kafka topic as a source, read inside the tasks. Every partition is a flow, also partitions that are added later.

    Only committed records are read, unless the options set `isolation.level`. A value that is not a JSON object, or does not
    fit the schema, is malformed; with a schema, a record without a value is malformed, too. The job stops if the brokers
    delete records before it has read them.

    Parameters:
        servers: host:port of one or more bootstrap brokers, separated by commas.
        topic: name of the topic.
        value: the schema of JSON objects in the values, whose other fields are ignored; or "bytes" or "string", for a single
            column `value`.
        beside: further columns: "key" (bytes), "partition", "offset", "timestamp" (the record's), "headers".
        starting: "earliest" or "latest": the offsets at which a new job begins. Partitions that are added later are read
            from their first record.
        finite: True: the input ends with the records that the topic held when the job began.
        registry: URL of a Confluent schema registry with the schemas of the values (Avro or JSON). `value` is then the
            schema of the columns to read. A login is a reference to an environment variable:
            "https://${REGISTRY_LOGIN}@registry:8081".
        options: options of librdkafka, such as {"security.protocol": "SASL_SSL"}. Secrets are references to environment
            variables of driver and workers: {"sasl.password": "${KAFKA_PASSWORD}"}.
        epoch: by timestamp column, the unit of its numbers since 1970, as for `json_files`: {"ts": "ms"}.
    Returns: a source, for the dict that `sources(spark, args)` returns.
    Raises: SpecRefused, if an argument is invalid, a type is not supported in JSON, or the library is not installed. The job
        raises SpecRefused at its start, if the topic does not exist.
    Example:
        >>> import pyarrow as pa
        >>> columns = pa.schema([("user", pa.string()), ("ts", pa.int64())])
        >>> clicks = ferry.kafka("broker:9092", "clicks", columns, beside=["key"])
        >>> clicks.schema().names
        ['user', 'ts', 'key']
    """
    library()
    if starting not in (EARLIEST, LATEST):
        raise SpecRefused(f"kafka: starting={starting!r}; it is {EARLIEST!r} or {LATEST!r}")
    require_name(topic, "kafka: topic")
    schemas = None if registry is None else SchemaRegistry(registry)
    return KafkaSplits(KafkaPlace.of(servers, options), topic, Decoder(value, beside, schemas, epoch), starting, finite)
