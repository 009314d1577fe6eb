"""A topic of Kafka as a source that is read inside the ingest tasks: each partition is a flow, offsets are the positions.

A position has the offset behind what was read of each partition, and where each was begun. An epoch takes at most as many
offsets as it may have rows, so a backlog waits in the topic. The job's positions are the only ones: nothing is committed
to Kafka. Must never import pyspark, nor skip records that the brokers have lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ferry.connectors.kafka.client import NotAllowed, NoTopic, TopicEnds, library
from ferry.connectors.kafka.place import KafkaPlace
from ferry.connectors.kafka.readers import SAME_SECONDS, lent_reader, made_again
from ferry.connectors.kafka.records import Decoder
from ferry.connectors.kafka.registry import SchemaRegistry
from ferry.connectors.splits import BATCH_ROWS, Flow, Malformed, Position, Split, ranges
from ferry.contract.errors import RECORDS_LOST, SpecRefused, Unreachable
from ferry.contract.texts import require_name

PARTITIONS_SECONDS = 5.0
"""Between two looks for new partitions."""

MISSING_SECONDS = 5.0
"""A new job waits so long for its topic, and for leaders of all partitions."""

ENDS_SECONDS = 1.0
"""Ends of partitions are asked for again after this time also when an epoch's records are known to be there."""

BACK_SECONDS = 10.0
"""A partition that ends before what was read of it has lost records, unless it is longer again within this time: its leader
may learn of the end a little later."""

CUT_ROWS = 20_000
"""Shares of so many offsets are worth cutting partitions for; smaller ones stay with the reader that knows a partition."""

EARLIEST, LATEST = "earliest", "latest"


def spread(waiting: Mapping[int, int], most: int) -> dict[int, int]:
    """How many of what waits in each partition to take, `most` together: evenly, and what some lack others get."""
    taken: dict[int, int] = {}
    left = sorted((one for one in waiting.items() if one[1] > 0), key=lambda one: (one[1], one[0]))
    for i, (partition, many) in enumerate(left):
        taken[partition] = min(many, most // (len(left) - i))
        most -= taken[partition]
    return {partition: many for partition, many in taken.items() if many}


def shared(pieces: Sequence[tuple[int, int, int]], tasks: int) -> list[list[tuple[int, int, int]]]:
    """Pieces (partition, start, stop) for at most so many tasks: whole ones, or cut where that makes them even."""
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
    """Ranges of partitions to read side by side, each time about so many offsets in all, until the pieces are read."""
    left = {partition: (start, stop) for partition, start, stop in pieces}
    while left:
        each = max(rows // len(left), 1)
        yield {partition: (start, min(start + each, stop)) for partition, (start, stop) in left.items()}
        left = {one: (start + each, stop) for one, (start, stop) in left.items() if start + each < stop}


class KafkaSplits:
    """See `kafka`. A position: {"topic": its id, "first": {partition: offset}, "offsets": {partition: offset}}."""

    has_flows = True

    def __init__(self, place: KafkaPlace, topic: str, decoder: Decoder, starting: str, finite: bool) -> None:
        self._place = place
        self._topic = topic
        self._decoder = decoder
        self._starting = starting
        self.finite = finite
        self._asks: TopicEnds | None = None
        self._ends: dict[int, int] = {}
        self._ends_at = 0.0
        self._back_since: float | None = None
        self._partitions: list[int] = []
        self._partitions_at = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """What tasks get: a connection of the driver's is of no use to them."""
        return {**self.__dict__, "_asks": None}

    def __repr__(self) -> str:
        return f"kafka({self._place.servers!r}, {self._topic!r})"

    @property
    def sets_aside(self) -> bool:
        """Whether there may be values that fit nothing."""
        return self._decoder.sets_aside

    @property
    def _brokers(self) -> TopicEnds:
        if self._asks is None:
            self._asks = TopicEnds(self._place, self._topic)
        return self._asks

    def schema(self) -> pa.Schema:
        """Fields of the value, then what is beside it."""
        return self._decoder.schema

    def start(self) -> Position:
        """Where the partitions that there are begin, or end. Raises SpecRefused, if there is no such topic."""
        end = time.monotonic() + MISSING_SECONDS
        while True:
            try:
                return self._begun()
            except NotAllowed as error:
                raise SpecRefused(str(error)) from error
            except Unreachable as error:
                # A broker that has just begun does not know the topic yet, or one that has just been made has no leader.
                if time.monotonic() > end:
                    if isinstance(error, NoTopic):
                        raise SpecRefused(f"{self!r}: there is no such topic: {error}") from error
                    raise
            time.sleep(0.1)

    def _begun(self) -> Position:
        topic, partitions = self._brokers.partitions()
        asked = self._brokers.earliest if self._starting == EARLIEST else self._brokers.latest
        first = _named(asked(partitions))
        made: dict[str, Any] = {"topic": topic, "first": first, "offsets": first}
        return {**made, "end": _named(self._brokers.latest(partitions))} if self.finite else made

    def latest(self, start: Position, max_rows: int) -> Position:
        """At most max_rows offsets further on, evenly of all partitions; one that is new begins with its first record."""
        if self.ended(start):
            return start
        first, offsets = {**start["first"]}, {**start["offsets"]}
        self._look_for_partitions(start, PARTITIONS_SECONDS)
        if not self.finite:
            if new := [one for one in self._partitions if str(one) not in offsets]:
                found = _named(self._brokers.earliest(new))
                first, offsets = first | found, offsets | found
        if sum(self._waiting(offsets).values()) < max_rows or time.monotonic() - self._ends_at > ENDS_SECONDS:
            self._look_for_ends(start, offsets)
        waiting = self._bounded(start, self._waiting(offsets))
        if any(many > 0 for many in waiting.values()):
            self._look_for_partitions(start, SAME_SECONDS)
        for partition, many in spread(waiting, max_rows).items():
            offsets[str(partition)] += many
        return start if offsets == start["offsets"] else {**start, "first": first, "offsets": offsets}

    def _look_for_partitions(self, position: Position, seconds: float) -> None:
        """Unless that was done less than so long ago."""
        if self._partitions and time.monotonic() - self._partitions_at < seconds:
            return
        topic, self._partitions = self._brokers.partitions()
        self._partitions_at = time.monotonic()
        if topic != position["topic"]:
            raise made_again(self._place.servers, self._topic)

    def _look_for_ends(self, position: Position, offsets: Mapping[str, int]) -> None:
        """Raises Unreachable, and SpecRefused when it lasts, for a partition that ends before what was read of it."""
        ends = self._brokers.latest([int(one) for one in offsets])
        short = [one for one, offset in offsets.items() if ends[int(one)] < offset]
        if not short:
            self._ends, self._ends_at, self._back_since = ends, time.monotonic(), None
            return
        self._look_for_partitions(position, 0.0)
        self._back_since = self._back_since or time.monotonic()
        text = f"{self!r}: " + "; ".join(
            f"partition {one} was read up to offset {offsets[one]}, and ends at {ends[int(one)]}" for one in short
        )
        if time.monotonic() - self._back_since < BACK_SECONDS:
            raise Unreachable(f"{text}: looked at again for {BACK_SECONDS:g} s")
        raise SpecRefused(
            f"{RECORDS_LOST}{text}: the brokers have lost records, and give their offsets to new ones. No record is "
            "passed over: begin a new job"
        )

    def _waiting(self, offsets: Mapping[str, int]) -> dict[int, int]:
        """Offsets of each partition that are not read, as far as it is known."""
        return {int(one): max(self._ends.get(int(one), 0) - offset, 0) for one, offset in offsets.items()}

    def _bounded(self, position: Position, waiting: Mapping[int, int]) -> dict[int, int]:
        """Of a finite input what was there when the job began."""
        if not self.finite:
            return dict(waiting)
        end, offsets = position["end"], position["offsets"]
        return {one: min(many, end[str(one)] - offsets[str(one)]) for one, many in waiting.items()}

    def ended(self, position: Position) -> bool:
        """True when a finite input was read to where the topic ended when the job began."""
        return self.finite and all(offset >= position["end"][one] for one, offset in position["offsets"].items())

    def flows(self, position: Position) -> dict[str, bool]:
        """Partitions, and whether records of them wait; as long as nobody has asked, they may."""
        if not self._ends:
            return {one: not self.finite or at < position["end"][one] for one, at in position["offsets"].items()}
        waiting = self._bounded(position, self._waiting(position["offsets"]))
        return {str(one): many > 0 for one, many in waiting.items()}

    def lag(self, position: Position) -> int:
        """Offsets that are not read, as they were when the brokers were asked last."""
        return sum(self._bounded(position, self._waiting(position["offsets"])).values())

    def plan(self, start: Position, stop: Position, tasks: int) -> list[Split]:
        """Ranges of offsets; whole partitions, unless cutting them makes the shares of tasks even."""
        # A first epoch that is begun again was planned from where the topic began, or ended, then.
        begun = stop["first"] if start["offsets"] == start["first"] else {**stop["first"], **start["offsets"]}
        pieces = [(int(one), begun[one], offset) for one, offset in stop["offsets"].items() if begun[one] < offset]
        about = {"topic": stop["topic"], "first": start["offsets"] == start["first"]}
        return [{"pieces": share, **about} for share in shared(sorted(pieces), tasks)] if pieces else []

    def divided(self, split: Split) -> list[Split]:
        """See RangeSplits."""
        ((partition, low, high),) = split["pieces"]
        return [{**split, "pieces": [[partition, a, b]]} for a, b in ranges(low, high)] if high - low > 1 else []

    def place(self, split: Split) -> str:
        """See RangeSplits."""
        pieces = [
            f"partition {one}, offset{f's {low} to {high - 1}' if high - low > 1 else f' {low}'}"
            for one, low, high in split["pieces"]
        ]
        return f"topic {self._topic}, " + "; ".join(pieces[:3]) + ("; ..." if len(pieces) > 3 else "")

    def read(self, split: Split, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch | Malformed | Flow]:
        """The records of a split. Raises SpecRefused when the brokers have lost any, Unreachable when they do not answer."""
        try:
            with lent_reader(self._place, self._topic) as reader:
                for wanted in rounds(split["pieces"], BATCH_ROWS):
                    for partition, records in reader.read(wanted, split["topic"]):
                        if records:
                            yield Flow(str(partition))
                            yield from self._decoder.decode(records, columns)
        except Unreachable as error:
            if isinstance(error, NotAllowed) and split["first"]:  # A job that has read before waits until it may again.
                raise SpecRefused(str(error)) from error
            raise Unreachable(str(error)) from error  # This class is known to whoever reads the error of a task.


def _named(offsets: Mapping[int, int]) -> dict[str, int]:
    """As JSON has it."""
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
    """A topic of Kafka, read inside the tasks; every partition is a flow, and those that are added later are found.

    Only committed records are read, unless the options say `isolation.level`. A value that is no object, or does not fit
    the schema, is reported as Malformed; so is a record without a value, where there is a schema. Records that the brokers
    have deleted before they were read end the job.

    Parameters:
        servers: host:port of brokers to begin with, several with commas between.
        topic: its name.
        value: the schema of values that are JSON objects, whose other fields are ignored; or "bytes" or "string", for one
            column `value`.
        beside: further columns: "key" (bytes), "partition", "offset", "timestamp" (that of the record), "headers".
        starting: "earliest" or "latest": where a new job begins. Partitions that are added later are read from their first
            record.
        finite: the input is what the topic held when the job began, and then it ends.
        registry: URL of a schema registry of the Confluent kind, which knows the schemas that values (Avro or JSON) were
            written with; `value` are the columns to take of them. A login is the name of a variable:
            "https://${REGISTRY_LOGIN}@registry:8081".
        options: of librdkafka, such as {"security.protocol": "SASL_SSL"}. Secrets are names of environment variables
            of driver and workers: {"sasl.password": "${KAFKA_PASSWORD}"}.
        epoch: the unit of numbers in columns of timestamps, as for `json_files`: {"ts": "ms"}.
    Returns: a source, for what `sources(spark, args)` returns.
    Raises: SpecRefused, if an argument is none of these, a column is of a type that is not read from JSON, the library is
        not installed, or, when the job begins, there is no such topic.
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
