"""The ingest task: expand splits, run the stateless part, make fragments, stream them to a helper, return one receipt.

A receipt is a JSON text; receipts reach the driver only from task attempts that Spark accepted. A helper that cannot be
reached does not fail the task: it takes another one. If none can be, or one goes away under it, the receipt says so, and the
driver runs the ingest again with the helpers alive then.
"""

from __future__ import annotations

import json
import time as clock
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl

from ferry import environment
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.names import InstanceId, worker_of
from ferry.contract.places import TLS_NAME, Registration
from ferry.contract.tickets import Right, stage_ticket
from ferry.kernels.schemas import state_schema
from ferry.spark.fragment import EVENT_TIME_MAX, Fragmenter
from ferry.spark.source import FLUSH
from ferry.spark.splits import Malformed, Splits
from ferry.spark.stream import Batches

RECEIPT = "receipt string"

LETTERS_MAX = 100
"""Malformed records that go with one receipt; more are counted only."""

PIECE_BYTES = 256 * 1024 * 1024
"""Records are taken into fragments in pieces of at most this size."""

REACH_SECONDS = 5.0
"""An instance that does not answer within this time is passed over: the next helper is tried, or other readers."""

CALL_SECONDS = 3600.0
"""No stream of rows lasts longer, whatever has become of its other end."""

SILENCE = [("grpc.keepalive_time_ms", 310_000), ("grpc.keepalive_timeout_ms", 20_000)]
"""A connection whose bytes nobody acknowledges for 20 s is gone: TCP alone would wait for a quarter of an hour. The pings
come seldom, for a server of gRPC refuses more than one in 300 s."""

Shares = list[tuple[str, str]]
"""What one task reads: (source, split as JSON)."""


@dataclass(frozen=True, slots=True)
class Feed:
    """One input of the operator, as a task sees it."""

    side: int
    maps: tuple[Batches, ...]
    key: tuple[str, ...]
    time: str | None
    """None: rows that an operator fired; their event time is window_end - 1."""
    splits: Splits | None
    columns: tuple[str, ...] | None
    """Columns to read; None = all."""
    ahead_ms: int | None = None
    """How far ahead of this worker's clock an event time may be; None: as far as it likes."""


@dataclass(frozen=True, slots=True)
class Work:
    """Everything a task of one ingest run needs."""

    descriptor: OperatorDescriptor
    feeds: dict[str, tuple[Feed, ...]]
    """By source name."""
    helpers: tuple[Registration, ...]
    right: Right
    """to stage fragments of this run"""
    authority: str | None
    """certificate of the run; None: TLS is off"""
    epoch: int
    generation: int
    run: int
    dead_letter: str | None
    """Directory for malformed records, for tasks and driver alike; None: there is none, some go with the receipt."""


def connect(uri: str, authority: str | None) -> fl.FlightClient:
    """A client of an instance that belongs to the run.

    With TLS, whoever else has put its own address where that of an instance should be gets no ticket and no record.
    """
    if authority is None or uri.startswith("grpc+unix:"):
        return fl.connect(uri, generic_options=SILENCE)
    if uri and not uri.startswith("grpc+tls:"):
        raise fl.FlightUnavailableError(f"{uri} is no address of an instance of this run: TLS is on")
    return fl.connect(uri, tls_root_certs=authority, override_hostname=TLS_NAME, generic_options=SILENCE)


def read_rows(split: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    """Rows that an operator fired, from the instance that leads them. Raises a Flight error when they are not there."""
    with reached(split["flight"], split["authority"]) as client:
        for chunk in client.do_get(fl.Ticket(split["ticket"]), fl.FlightCallOptions(timeout=CALL_SECONDS)):
            yield chunk.data


def reached(uri: str, authority: str | None) -> fl.FlightClient:
    """A connection to an instance that answers. Raises a Flight error when it does not within REACH_SECONDS."""
    client = connect(uri, authority)
    try:
        # It serves no list and says so; but it says it at once, unlike a call with data, which would only wait.
        list(client.list_flights(options=fl.FlightCallOptions(timeout=REACH_SECONDS)))
    except NotImplementedError:
        return client
    except BaseException:
        client.close()
        raise
    return client


def ingest(work: Work) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow: rows (source, split) or (source, records) in, one receipt out."""

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"receipt": [_Task(work).run(batches)]})

    return task


def ingest_shares(work: Work) -> Callable[[Iterable[Shares]], Iterator[str]]:
    """The same for mapPartitions, where no records pass through Spark: lists of (source, split) in, one receipt out."""

    def task(partition: Iterable[Shares]) -> Iterator[str]:
        yield _Task(work).run(partition)

    return task


class _Task:
    """One task attempt."""

    def __init__(self, work: Work) -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        self.work = work
        self.attempt = int(context.taskAttemptId())
        self.partition = int(context.partitionId())
        sides = sorted({feed.side for feeds in work.feeds.values() for feed in feeds})
        self.fragmenters = {side: Fragmenter(work.descriptor, side) for side in sides}
        self.flush = False
        self.rows = 0
        """records read, before `maps` drop or add any"""
        self.malformed = 0
        self.letters: list[str] = []
        self.sender = _Sender(work, self.attempt, self.partition)

    def run(self, inputs: Iterable[pa.RecordBatch | Shares]) -> str:
        """The receipt."""
        error = None
        try:
            for one in inputs:
                self._take(one)
            for fragmenter in self.fragmenters.values():
                self.sender.send(fragmenter.drain())
            self.sender.finish()
        except (fl.FlightError, pa.ArrowIOError, OSError) as failed:
            error = f"{type(failed).__name__}: {failed}"
        receipt = {
            "task": self.attempt,
            "helper": self.sender.helper,
            "rows": self.rows,
            "maxima": {
                side: f.event_time_max for side, f in self.fragmenters.items() if f.event_time_max > WATERMARK_NONE
            },
            "malformed": self.malformed,
            "letters": self.letters,
            "flush": self.flush,
            "error": error,
        }
        return json.dumps(receipt)

    def _take(self, one: pa.RecordBatch | Shares) -> None:
        if isinstance(one, list):
            return self._read(one)
        names = one.column(0).to_pylist()
        if one.schema.names[1] == "split":
            return self._read(zip(names, one.column(1).to_pylist(), strict=True))
        for name in sorted(set(names)):
            column = one.schema.get_field_index(f"s_{name}")
            mine = one.filter(pa.array([n == name for n in names])).column(column)
            self._feed(name, pa.RecordBatch.from_struct_array(mine))

    def _read(self, shares: Iterable[tuple[str, str]]) -> None:
        for name, split in shares:
            if name == "":
                self.flush |= split == FLUSH
                continue
            for feed in self.work.feeds[name]:
                for records in self._expand(feed, json.loads(split)):
                    self._add(name, feed, records)

    def _expand(self, feed: Feed, split: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        if feed.splits is None:
            yield from read_rows(split)
            return
        for records in feed.splits.read(split, feed.columns):
            if isinstance(records, Malformed):
                self._set_aside(records.count, records.records, records.reason)
            else:
                yield records

    def _feed(self, name: str, records: pa.RecordBatch) -> None:
        for feed in self.work.feeds[name]:
            self._add(name, feed, records)

    def _add(self, name: str, feed: Feed, records: pa.RecordBatch) -> None:
        self.rows += records.num_rows
        batches = [records]
        for function in feed.maps:
            batches = [made for batch in batches for made in batches_of(function(batch))]
        for batch in batches:
            for piece in in_pieces(batch):
                self._contribute(name, feed, piece)

    def _contribute(self, name: str, feed: Feed, records: pa.RecordBatch) -> None:
        time = feed.time
        if time is None:
            time = "_event_time"
            ends = pc.subtract(records.column("window_end"), 1)
            records = pa.RecordBatch.from_arrays([*records.columns, ends], names=[*records.schema.names, time])
        fragmenter = self.fragmenters[feed.side]
        latest = EVENT_TIME_MAX if feed.ahead_ms is None else int(clock.time() * 1000) + feed.ahead_ms
        fragmenter.add(records, list(feed.key), time, latest)
        self.sender.send(fragmenter.take_full())
        refused = fragmenter.malformed()
        if refused is not None:
            rows = [json.dumps(row, default=str) for row in refused.to_pylist()]
            self._set_aside(
                len(rows), rows, f"null or unusable key, event time (too far ahead?) or value from {name!r}"
            )

    def _set_aside(self, count: int, records: list[str], reason: str) -> None:
        """Write records to a hidden file of this attempt; the driver makes those of accepted attempts visible."""
        self.malformed += count
        lines = [json.dumps({"reason": reason, "record": record}) for record in records]
        w = self.work
        if w.dead_letter is None:
            self.letters += lines[: LETTERS_MAX - len(self.letters)]
            return
        folder = hidden_letters(Path(w.dead_letter), w.epoch)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{w.epoch}-{w.descriptor.index}-{w.generation}-{w.run}-{self.attempt}.jsonl"
        with open(folder / name, "a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)


def hidden_letters(directory: Path, epoch: int) -> Path:
    """Where the tasks of an epoch write what they set aside."""
    return directory / f".epoch={epoch}"


def batches_of(made: pa.RecordBatch | pa.Table) -> list[pa.RecordBatch]:
    """What a batch function returned, as batches; never none, for they say what the columns are."""
    if isinstance(made, pa.RecordBatch):
        return [made]
    return made.to_batches() or [pa.RecordBatch.from_pylist([], schema=made.schema)]


def in_pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch, cut until no piece is larger than PIECE_BYTES: texts are counted in 32 bits, and so is a message."""
    if batch.nbytes <= PIECE_BYTES or batch.num_rows < 2:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from in_pieces(batch.slice(0, middle))
    yield from in_pieces(batch.slice(middle))


def in_turn(helpers: tuple[Registration, ...], turn: int, worker: int | None) -> list[Registration]:
    """Helpers in the order in which to try them: those of the task's own worker first, each group as turns go."""
    near = [h for h in helpers if worker_of(InstanceId(h.instance)) == worker]
    far = [h for h in helpers if worker_of(InstanceId(h.instance)) != worker]
    return [group[(turn + i) % len(group)] for group in (near, far) for i in range(len(group))]


class _Sender:
    """Streams one fragment to one helper; opened with the first batch."""

    def __init__(self, work: Work, attempt: int, partition: int) -> None:
        self._work = work
        self._attempt = attempt
        self._partition = partition
        self._writer: fl.FlightStreamWriter | None = None
        self._client: fl.FlightClient | None = None
        self.helper: str | None = None

    def send(self, batches: list[pa.RecordBatch]) -> None:
        for batch in batches:
            if batch.num_rows:
                if self._writer is None:
                    self._open()
                assert self._writer is not None
                self._writer.write_batch(batch)

    def _open(self) -> None:
        """Take the helper whose turn it is, or the next one that answers."""
        w = self._work
        failed = []
        for one in in_turn(w.helpers, self._partition + w.epoch, environment.read().worker):
            try:
                client = reached(one.flight, w.authority)
                ticket = stage_ticket(w.right, self._attempt, one.instance, one.incarnation)
                descriptor = fl.FlightDescriptor.for_command(ticket)
                options = fl.FlightCallOptions(timeout=CALL_SECONDS)
                self._writer, _ = client.do_put(descriptor, state_schema(w.descriptor), options)
                self._client, self.helper = client, one.instance
                return
            except (fl.FlightError, pa.ArrowException, OSError) as error:
                failed.append(f"{one.instance} at {one.flight} ({type(error).__name__}: {str(error)[:200]})")
        raise fl.FlightUnavailableError(
            f"no helper can be reached from this task: {'; '.join(failed) or 'none is alive'}"
        )

    def finish(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._client is not None:
            self._client.close()
