"""The interface of sources. An ingest task reads their records, which do not pass through the JVM.

The driver asks such a source only for positions and splits (JSON values). A task imports the user's module, creates the
source and reads its split. Must never import pyspark. An implementation must never keep state that another process would
need: caches only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from ferry.contract.errors import SpecRefused

Position: TypeAlias = Any
"""A source's offset: a JSON value that only its source understands. Spark's offset log stores it."""

WHOLE = 1 << 62
"""Value of `max_rows` with which a source is read to its end in one epoch."""

Split: TypeAlias = dict[str, Any]
"""One task's part of the records between two positions: a JSON object that only its source understands."""

PARTS = 8
"""Number of parts into which a split that crashes its task is divided. Each crashing part costs a process."""

BATCH_ROWS = 131_072
"""Approximate rows in a batch of a source. A task processes one batch at a time."""


def require_end(source: object, position: Position) -> None:
    """Raise SpecRefused if the position of a finite input has no end: the job began with an input that is not finite."""
    if "end" not in position:
        raise SpecRefused(
            f"{source!r}: the job began with finite=False, so its position has no end; set finite=False again"
        )


@dataclass(frozen=True, slots=True)
class Malformed:
    """Records that a source could not parse. Ferry counts such records and writes dead letters; the job goes on.

    Parameters:
        count: number of these records.
        records: their texts, at most `count`. Bytes that are not UTF-8 are replaced, or decoded with
            errors="surrogateescape", so the dead letter holds the original bytes.
        reason: the fault of the first record, and its place.
        reasons: the fault of each record, in order. Empty: `reason` applies to all records.
    Example:
        >>> ferry.Malformed(1, ["{oops"], "clicks.json, line at byte 0: not a JSON object").count
        1
    """

    count: int
    records: list[str] = field(default_factory=list)
    reason: str = ""
    reasons: list[str] = field(default_factory=list)


def malformed(records: Sequence[bytes | None], reasons: Sequence[str]) -> Malformed:
    """Records that could not be parsed, each with its reason and place."""
    texts = [(record or b"").decode("utf-8", "surrogateescape") for record in records]
    return Malformed(len(records), texts, reasons[0], [*reasons])


@dataclass(frozen=True, slots=True)
class Flow:
    """The following records belong to the flow of this name, up to the next `Flow` or the end of the split.

    A flow is a part of a source with an order of its own, such as a partition. The watermark of the source is the minimum
    over its flows, so a fast flow does not make the records of a slow flow late. Only a `FlowSplits` has flows; in other
    sources a `Flow` has no effect.

    Parameters:
        name: name of the flow, at most 100 characters.
    Example:
        >>> def read(self, split, columns):
        ...     yield ferry.Flow(f"partition {split['partition']}")
        ...     yield from self.records(split, columns)
    """

    name: str


@runtime_checkable
class Splits(Protocol):
    """A source that ingest tasks read.

    A repeated read of a split must give the same records in the same order, in any process. A source may have these
    attributes:

        own_clock      True: the source makes up its event times, which are not compared with the worker's clock
        counted_with   sources with equal values share one row limit per epoch
        creation_time  name of the column with the creation time of records, as for `Stream.created_at`
        sets_aside     True: `read` yields `Malformed`; a source before a `transform` is then read twice

    Example:
        >>> import pyarrow as pa
        >>> class Numbers:  # 0, 1, 2, ... up to `end`; a position is the next number
        ...     def __init__(self, end):
        ...         self.end = end
        ...     def schema(self):
        ...         return pa.schema([("number", pa.int64())])
        ...     def start(self):
        ...         return 0
        ...     def latest(self, start, max_rows):
        ...         return min(start + max_rows, self.end)
        ...     def ended(self, position):
        ...         return position == self.end
        ...     def plan(self, start, stop, tasks):
        ...         return [{"numbers": [*range(start + task, stop, tasks)]} for task in range(tasks)]
        ...     def read(self, split, columns):
        ...         yield pa.RecordBatch.from_pydict({"number": split["numbers"]})
        >>> isinstance(Numbers(10), ferry.Splits)
        True
        >>> [split["numbers"] for split in Numbers(10).plan(0, Numbers(10).latest(0, 5), 2)]
        [[0, 2, 4], [1, 3]]
    """

    def schema(self) -> pa.Schema:
        """Names and types of all columns."""
        ...

    def start(self) -> Position:
        """The position before the first record. Called once in the life of a job."""
        ...

    def latest(self, start: Position, max_rows: int) -> Position:
        """A position about `max_rows` rows after `start` at most; `start` itself without new rows."""
        ...

    def ended(self, position: Position) -> bool:
        """Whether the input is finite and has no records after this position."""
        ...

    def plan(self, start: Position, stop: Position, tasks: int) -> list[Split]:
        """At most `tasks` splits that hold every record after `start` up to `stop` exactly once."""
        ...

    def read(self, split: Split, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch | Malformed | Flow]:
        """The records of a split with these columns. None: all columns."""
        ...


class FlowSplits(Splits, Protocol):
    """A source with several flows: `read` yields a `Flow` before the records of each flow.

    The watermark of the source is the minimum over its flows, of which it may have 1000. `transform` behind such a source is
    refused, because Spark loses the flow of a record; `map_batches` keeps it.

    Example:
        >>> class Partitions:  # a position is how far each partition was read
        ...     has_flows = True
        ...     def flows(self, position):
        ...         return {name: read < self.ends[name] for name, read in position.items()}
        ...     def read(self, split, columns):
        ...         yield ferry.Flow(split["partition"])
        ...         yield from self.records(split, columns)
    """

    @property
    def has_flows(self) -> bool:
        """False: the source is a single flow, and `flows` is not called."""
        ...

    def flows(self, position: Position) -> Mapping[str, bool]:
        """All flows by name, and whether a flow has unread records after this position.

        A flow without records so far holds the watermark back. A flow with unread records is not idle. A flow that is
        missing here counts until it is idle.
        """
        ...


@runtime_checkable
class RangeSplits(Protocol):
    """A source of Ferry. Its splits are ranges of files or partitions: {"pieces": [[file or partition, low, high], ...]}."""

    def divided(self, split: Split) -> list[Split] | None:
        """A split of one range, divided into smaller splits.

        An empty list: the split is a single record. None: the split has several records, but cannot be divided. Raises Fault
        or OSError.
        """
        ...

    def place(self, split: Split) -> str:
        """The place of a split's records, for messages."""
        ...


@runtime_checkable
class LagSplits(Protocol):
    """A source that knows its lag, for the metric `ferry_source_lag_records`."""

    def lag(self, position: Position) -> int:
        """Number of unread records after this position. Called often."""
        ...


def has_flows(source: object) -> bool:
    """Whether a source has several flows."""
    return isinstance(source, Splits) and bool(getattr(source, "has_flows", False))


def sets_aside(source: object) -> bool:
    """Whether a source may yield malformed records."""
    return bool(getattr(source, "sets_aside", False))


def ranges(low: int, high: int) -> list[tuple[int, int]]:
    """A range divided into at most `PARTS` ranges of about equal size."""
    return list(pairwise(sorted({low + (high - low) * i // PARTS for i in range(PARTS + 1)})))
