"""Sources whose records are made or read inside the ingest task, and so never cross the JVM.

The driver asks such a source only for positions and for splits (JSON values); a task rebuilds the source by importing
the user's module and reads its split. Must never import pyspark, and an implementation must never keep state that
another process would lack: caches only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

Position: TypeAlias = Any
"""How far a source has been read: a JSON value that only its source understands. It is kept in Spark's offset log."""

Split: TypeAlias = dict[str, Any]
"""One task's share of the records between two positions: a JSON object that only its source understands."""

BATCH_ROWS = 65_536
"""Batches of a source hold about this many rows; tasks work on one batch at a time."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """Records that a source could not parse; they are counted and set aside, and the job goes on."""

    count: int
    records: list[str] = field(default_factory=list)
    """The records as text, undecodable bytes replaced; at most `count` of them."""
    reason: str = ""
    """What was wrong with the first of them, and where it is."""


@runtime_checkable
class Splits(Protocol):
    """A source whose records are made or read inside the ingest task.

    Reading the same split again gives the same records in the same order, in any process. One that makes up its event times
    says so by an attribute `own_clock` that is true: they are not compared with the worker's clock. Sources whose attributes
    `counted_with` are equal count each other's rows, and so get one share of an epoch's rows together.
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

    def read(self, split: Split, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch | Malformed]:
        """The records of a split, with these columns in this order (None: all)."""
        ...
