"""The ingest task: reads splits, runs the stateless part, builds fragments, streams them to a helper, returns one receipt.

A receipt is a JSON text; receipts reach the driver only from task attempts that Spark accepted. If a helper is unreachable,
the task takes another helper. If all helpers are unreachable, or the chosen helper is lost, the receipt says so, and the
driver repeats the ingest with the helpers that are alive then.
"""

from __future__ import annotations

import json
import time as clock
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl
from pyspark import TaskContext

from ferry.api.pipeline import Batches
from ferry.connectors.formats.json_text import json_text, plain_text
from ferry.connectors.splits import Flow, Malformed, Splits
from ferry.contract.descriptors import NEVER, OperatorDescriptor, Span
from ferry.contract.errors import Fault, Final, SpecRefused, UserCodeFailed
from ferry.contract.ingest_runs import IngestRun, Shares
from ferry.contract.latency import BUCKET_MAX
from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.names import Fragment
from ferry.contract.notes import Receipt
from ferry.kernels.ages import ages
from ferry.spark import cuts
from ferry.spark.attempts import died_before
from ferry.spark.control_rows import FLOWS, FLUSH
from ferry.spark.tasks import letters, reading
from ferry.spark.tasks.flight import Connections
from ferry.spark.tasks.fragment import Fragmenter
from ferry.spark.tasks.process_rows import Condense
from ferry.spark.tasks.records import EVENT_TIME_MAX
from ferry.spark.tasks.sender import Sender

RECEIPT = "receipt string"

DEAD_LETTERS_MAX = 100
"""Maximum number of malformed records in one receipt; further records are only counted."""

REASON_MAX = 300
"""Maximum characters of the reason of a task's first malformed record."""

PIECE_BYTES = 256 * 1024 * 1024
"""Maximum size of the pieces in which records are added to fragments."""


EVENT_TIME = "_event_time"
"""Temporary column with the event time of fired rows."""

KILLS = "a task dies of this record (spec.deadLetter.onCrash: set-aside)"
"""Reason of a dead letter for a poison record."""

NO_SIDE = -1
"""In place of an input's number: records are only counted."""


@dataclass(frozen=True, slots=True)
class Feed:
    """One input of the operator, as a task sees it."""

    side: int
    maps: tuple[Batches, ...]
    key: tuple[str, ...]
    time: str | None
    """None: fired rows, whose event time is window_end - 1, or records that need no event time."""
    splits: Splits | None
    columns: tuple[str, ...] | None
    """Columns to read; None = all."""
    ahead_ms: int | None = None
    """How far ahead of this worker's clock an event time may be; None: without a bound."""
    counted: bool = True
    """Whether this feed counts the records: each source is counted once, even with several readers."""
    number: int = 0
    """Number of the input, if one side unites several inputs."""
    initial: bool = False
    """Records of initial states: they have no event times, even if all other records have."""
    flow: str | None = None
    """Column with the flow of a record."""
    created: str | None = None
    """Column with the creation time of a record, in the feed that counts it."""
    span: Span | None = None
    """Event times of the records that reach the operator; None: all times."""


@dataclass(frozen=True, slots=True)
class IngestWork:
    """The work of tasks for an operator, in every run."""

    descriptor: OperatorDescriptor
    feeds: dict[str, tuple[Feed, ...]]
    """By source name."""
    authority: str | None
    """certificate of the run; None: TLS is off"""
    dead_letter: str | None
    """Directory for malformed records, shared by tasks and driver; None: a receipt carries some of them."""
    condense: Condense | None = None
    """for a process whose records are condensed"""


def ingest(
    work: IngestWork, run: Callable[[], IngestRun]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow: rows (source, split) or (source, records) in, one receipt out. Tasks call `run`."""

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"receipt": [_attempted(work, run(), batches)]})

    return task


def ingest_shares(work: IngestWork, run: IngestRun) -> Callable[[Iterable[Shares]], Iterator[str]]:
    """The function for mapPartitions, if no records pass through Spark: lists of (source, split) in, one receipt out."""

    def task(partition: Iterable[Shares]) -> Iterator[str]:
        yield _attempted(work, run, partition)

    return task


def _attempted(work: IngestWork, run: IngestRun, inputs: Iterable[pa.RecordBatch | Shares]) -> str:
    context = TaskContext.get()
    assert context is not None
    if died_before():
        return Receipt(died=True).dump()
    with Connections(work.authority) as connections:
        return IngestTask(work, run, int(context.taskAttemptId()), int(context.partitionId()), connections).run(inputs)


class IngestTask:
    """One task attempt of a run, or an assigned share of a loop; `turn` selects the helper that is tried first."""

    def __init__(self, work: IngestWork, run: IngestRun, attempt: int, turn: int, connections: Connections) -> None:
        self.work = work
        self._mine = Fragment(run.step, run.generation, run.run, attempt)
        sides = sorted({feed.side for feeds in work.feeds.values() for feed in feeds} - {NO_SIDE})
        condense = None if work.condense is None else partial(work.condense, low=run.watermark)
        self.fragmenters = {side: Fragmenter(work.descriptor, side, condense=condense) for side in sides}
        self.maxima: dict[int, dict[str, int]] = {}
        """greatest event time, by input and flow"""
        self.flows: dict[int, dict[str, bool]] = {}
        self.flush = False
        self.rows = 0
        """records read, before `maps` drop or add any"""
        self.malformed = self.unread = self.given = self.bad = 0
        self.first_malformed = ""
        self.dead_letters: list[str] = []
        self._planned = run.planned
        self._part: dict[str, Any] = {}
        """the split that is being read"""
        self._ages = np.zeros(BUCKET_MAX + 1, np.int64)
        """Number of records by their age when the epoch was planned."""
        self.sender = Sender(work.descriptor, run, attempt, turn, connections)

    def run(self, inputs: Iterable[pa.RecordBatch | Shares]) -> str:
        """Ingest the inputs; returns the receipt."""
        error, begun = None, clock.monotonic()
        try:
            for rows in inputs:
                self._take(rows)
            for fragmenter in self.fragmenters.values():
                self.sender.send(fragmenter.drain())
            self.sender.finish()
        except UserCodeFailed as failed:
            self.sender.fail()
            error = str(failed)
        except (Final, SpecRefused) as refused:  # A retry is useless, and the task has not died.
            self.sender.fail()
            kind = next(kind for kind in type(refused).__mro__ if kind.__module__ == Final.__module__)
            error = f"{kind.__module__}.{kind.__name__}: {refused}"
        except (fl.FlightError, pa.ArrowIOError, OSError, Fault) as failed:
            self.sender.fail()
            error = f"{type(failed).__name__}: {failed}"
        return Receipt(
            task=self._mine.task,
            helper=self.sender.helper,
            rows=self.rows,
            malformed=self.malformed,
            unread=self.unread,
            given=self.given,
            bad=self.bad,
            first_malformed=self.first_malformed,
            maxima=self.maxima,
            letters=tuple(self.dead_letters),
            flush=self.flush,
            error=error,
            flows=self.flows,
            ages={int(bucket): int(self._ages[bucket]) for bucket in np.flatnonzero(self._ages)},
            busy=clock.monotonic() - begun,
        ).dump()

    def _take(self, rows: pa.RecordBatch | Shares) -> None:
        if isinstance(rows, list):
            return self.read(rows)
        names = rows.column(0).to_pylist()
        if rows.schema.names[1] == "split":
            return self.read(zip(names, rows.column(1).to_pylist(), strict=True))
        for name in sorted(set(names)):
            column = rows.schema.get_field_index(f"s_{name}")
            mine = rows.filter(pa.array([n == name for n in names])).column(column)
            self.add(name, pa.RecordBatch.from_struct_array(mine))

    def read(self, shares: Iterable[tuple[str, str]]) -> None:
        """Ingest the records of these splits."""
        for name, split in shares:
            if name == "":
                self._heed(split)
                continue
            for feed in self.work.feeds.get(name, ()):
                for self._part in cuts.by_file(feed.splits, json.loads(split)):
                    for flow, records in self._expand(name, feed, self._part):
                        self._add(name, feed, records, flow)

    def _heed(self, control: str) -> None:
        """Process a control row, which comes from the planner of the epoch, not from a source."""
        self.flush |= control == FLUSH
        if control.startswith(FLOWS):
            name, flows = json.loads(control.removeprefix(FLOWS))
            self.flows |= {feed.number: flows for feed in self.work.feeds.get(name, ()) if feed.side != NO_SIDE}

    def _expand(self, name: str, feed: Feed, split: dict[str, Any]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Records of a split, each batch with its flow."""
        flow = ""
        for records in reading.read(name, feed.splits, split, feed.columns):
            if isinstance(records, Malformed):
                self._given(records.count, records.count, next(iter(records.reasons), records.reason))
                if feed.counted:
                    self.unread += records.count
                    self._set_aside(records.count, records.records, records.reasons or records.reason)
            elif isinstance(records, reading.Aside):
                self._given(1, 1, KILLS)
                if feed.counted:
                    self.unread += 1
                    texts = [records.split] if records.records is None else json_text(records.records)
                    self._set_aside(1, texts, KILLS)
            elif isinstance(records, Flow):
                flow = records.name
            else:
                yield flow, records

    def add(self, name: str, records: pa.RecordBatch) -> None:
        """Ingest these records of an input."""
        for feed in self.work.feeds[name]:
            self._add(name, feed, records)

    def _add(self, name: str, feed: Feed, records: pa.RecordBatch, flow: str = "") -> None:
        if feed.counted:
            self.rows += records.num_rows
            if feed.created is not None:
                self._ages += ages(records.column(feed.created), self._planned)
        if feed.side == NO_SIDE:
            return self._given(records.num_rows)
        batches = [records]
        for function in feed.maps:
            batches = [result for batch in batches for result in batches_of(function(batch))]
        self._given(max(records.num_rows, sum(batch.num_rows for batch in batches)))
        for batch in batches:
            for piece in in_pieces(batch):
                for named, mine in [(flow, piece)] if feed.flow is None else by_flow(piece, feed.flow):
                    self._contribute(name, feed, mine, named)

    def _contribute(self, name: str, feed: Feed, records: pa.RecordBatch, flow: str = "") -> None:
        records, time = (records, None) if feed.initial else timed(records, feed.time, self.work.descriptor)
        fragmenter = self.fragmenters[feed.side]
        latest = EVENT_TIME_MAX if feed.ahead_ms is None else int(clock.time() * 1000) + feed.ahead_ms
        greatest = fragmenter.add(records, list(feed.key), time, latest, feed.span)
        if greatest > WATERMARK_NONE:
            mine = self.maxima.setdefault(feed.number, {})
            mine[flow] = max(mine.get(flow, greatest), greatest)
        self.sender.send(fragmenter.take_full())
        for refused, reason in fragmenter.malformed() if feed.span != NEVER else ():
            why = f"{name}: {cuts.place(feed.splits, self._part)}{reason}"
            self._given(0, refused.num_rows, why)
            self._set_aside(refused.num_rows, json_text(refused), why)

    def _given(self, records: int, bad: int = 0, reason: str = "") -> None:
        self.given += records
        self.bad += bad
        self.first_malformed = self.first_malformed or reason[:REASON_MAX]

    def _set_aside(self, count: int, records: list[str], reasons: str | list[str]) -> None:
        self.malformed += count
        own = [reasons] * len(records) if isinstance(reasons, str) else reasons
        lines = letters.letters(records, own)
        if self.work.dead_letter is None:
            self.dead_letters += lines[: DEAD_LETTERS_MAX - len(self.dead_letters)]
        else:
            letters.write(self.work.dead_letter, self._mine, lines)


def batches_of(result: pa.RecordBatch | pa.Table) -> list[pa.RecordBatch]:
    """The result of a batch function as batches: at least one, because a batch carries the schema."""
    if isinstance(result, pa.RecordBatch):
        return [result]
    return result.to_batches() or [pa.RecordBatch.from_pylist([], schema=result.schema)]


def timed(
    records: pa.RecordBatch, time: str | None, descriptor: OperatorDescriptor
) -> tuple[pa.RecordBatch, str | None]:
    """Records with their event time, and its column. Without one, fired rows get the end of their window minus 1."""
    if time is not None or not descriptor.timed:
        return records, time
    ends = records.column("window_end")
    ends = pc.subtract(ends.cast(pa.int64()), 1).view(ends.type)
    return pa.RecordBatch.from_arrays([*records.columns, ends], names=[*records.schema.names, EVENT_TIME]), EVENT_TIME


def by_flow(records: pa.RecordBatch, column: str) -> list[tuple[str, pa.RecordBatch]]:
    """The records of each flow in this column; null and the empty text are flows, too."""
    named = records.column(column)
    plain = named.dictionary_decode() if pa.types.is_dictionary(named.type) else named
    flows = pc.dictionary_encode(plain, null_encoding="encode")
    values = plain_text(flows.dictionary) if pa.types.is_temporal(plain.type) else flows.dictionary
    names = [str(name) or "''" for name in values.to_pylist()]
    if len(names) < 2:
        return [(name, records) for name in names or [""]]
    return [(name, records.filter(pc.equal(flows.indices, i))) for i, name in enumerate(names)]


def in_pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Pieces of the batch of at most PIECE_BYTES: offsets of texts and lengths of messages have 32 bits."""
    if batch.nbytes <= PIECE_BYTES or batch.num_rows < 2:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from in_pieces(batch.slice(0, middle))
    yield from in_pieces(batch.slice(middle))
