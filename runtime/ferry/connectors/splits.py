"""Sources whose records are made or read inside the ingest task, and so never cross the JVM.

The driver asks such a source only for positions and for splits (JSON values); a task rebuilds the source by importing
the user's module and reads its split. Must never import pyspark, and an implementation must never keep state that
another process would lack: caches only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

Position: TypeAlias = Any
"""How far a source has been read: a JSON value that only its source understands. It is kept in Spark's offset log."""

WHOLE = 1 << 62
"""Asked for as many rows a source is read to its end, in one epoch."""

Split: TypeAlias = dict[str, Any]
"""One task's share of the records between two positions: a JSON object that only its source understands."""

PARTS = 8
"""Into so many parts what kills its task is cut: each part that does costs a process, the others cost little."""

BATCH_ROWS = 131_072
"""Batches of a source hold about this many rows; tasks work on one batch at a time."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """Records that a source could not parse; they are counted and set aside, and the job goes on.

    Parameters:
        count: how many they are.
        records: as text; at most `count` of them. Bytes that are no UTF-8 are replaced, or, to be kept in the dead letter,
            decoded with errors="surrogateescape".
        reason: what was wrong with the first of them, and where it is.
        reasons: of each record its own, in their order; empty: `reason` is that of all.
    Example:
        >>> ferry.Malformed(1, ["{oops"], "clicks.json, line at byte 0: no object").count
        1
    """

    count: int
    records: list[str] = field(default_factory=list)
    reason: str = ""
    reasons: list[str] = field(default_factory=list)


def malformed(records: Sequence[bytes | None], reasons: Sequence[str]) -> Malformed:
    """Records that could not be parsed, each with its reason, which says where it lies."""
    texts = [(one or b"").decode("utf-8", "surrogateescape") for one in records]
    return Malformed(len(records), texts, reasons[0], [*reasons])


@dataclass(frozen=True, slots=True)
class Flow:
    """What a source reads from here on, to the end of the split or the next of these, is of the flow of this name.

    A flow is what comes in order for itself, as a partition does: the watermark waits for the slowest one, so none makes
    the records of another late. Of a source that is no `FlowSplits` it is not heeded.

    Parameters:
        name: of the flow, at most 100 characters.
    Example:
        >>> def read(self, split, columns):
        ...     yield ferry.Flow(f"partition {split['partition']}")
        ...     yield from self.records(split, columns)
    """

    name: str


@runtime_checkable
class Splits(Protocol):
    """A source whose records are made or read inside the ingest task.

    Reading the same split again gives the same records in the same order, in any process. One that makes up its event times
    says so by an attribute `own_clock` that is true: they are not compared with the worker's clock. Sources whose attributes
    `counted_with` are equal count each other's rows, and so get one share of an epoch's rows together. One whose records say
    when they were created names that column by an attribute `creation_time`, as `Stream.created_at` does. One that
    gives `Malformed` before a `transform` says so by an attribute `sets_aside` that is true, and is read twice then.

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
        """The position before the first record. Asked once in the life of a job."""
        ...

    def latest(self, start: Position, max_rows: int) -> Position:
        """A position at most about max_rows rows after `start`; `start` itself when there is nothing new."""
        ...

    def ended(self, position: Position) -> bool:
        """True when the input is finite and nothing will ever come after this position."""
        ...

    def plan(self, start: Position, stop: Position, tasks: int) -> list[Split]:
        """At most `tasks` splits that hold every record after `start` up to `stop` exactly once."""
        ...

    def read(self, split: Split, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch | Malformed | Flow]:
        """The records of a split, with these columns (None: all); further ones are left out."""
        ...


class FlowSplits(Splits, Protocol):
    """A source whose records are of several flows: `read` says of which one what follows is.

    The watermark of an input that reads it is the minimum over its flows, of which 1000 are possible at most. Which flow a
    record is of is not known behind `transform`, so that is refused; `map_batches` may change the records.

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
        """False: it is one flow after all, and nobody asks for `flows`."""
        ...

    def flows(self, position: Position) -> Mapping[str, bool]:
        """The flows that there are, and for each whether records of it wait to be read after this position.

        One that has brought nothing yet holds the watermark back; one whose records wait is not idle. One that is not named
        any more counts until it is idle.
        """
        ...


@runtime_checkable
class RangeSplits(Protocol):
    """A source of Ferry's own; a split is ranges of files or partitions: {"pieces": [[of what, low, high], ...]}."""

    def divided(self, split: Split) -> list[Split] | None:
        """The same records in smaller splits, of a split of one range.

        None of them: it is a single record. None: it has more, and there are no smaller ranges. Raises Fault or OSError.
        """
        ...

    def place(self, split: Split) -> str:
        """Where the records of a split lie, for people."""
        ...


@runtime_checkable
class LagSplits(Protocol):
    """A source that knows how much waits to be read, for the metric `ferry_source_lag_records`."""

    def lag(self, position: Position) -> int:
        """Records behind this position, as far as is known; it is asked often."""
        ...


def has_flows(source: object) -> bool:
    """Whether the records of a source are of several flows."""
    return isinstance(source, Splits) and bool(getattr(source, "has_flows", False))


def sets_aside(source: object) -> bool:
    """Whether a source says that it may have malformed records."""
    return bool(getattr(source, "sets_aside", False))


def ranges(low: int, high: int) -> list[tuple[int, int]]:
    """A range in at most `PARTS` parts of about equal size."""
    return list(pairwise(sorted({low + (high - low) * i // PARTS for i in range(PARTS + 1)})))
