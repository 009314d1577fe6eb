"""What the state of an operator is to the instance that holds it, whatever its kind; one file of this room for each kind.

A new kind of operator is a class that keeps this protocol, and its branch in `open_state`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, assert_never

import pyarrow as pa

from ferry.contract import limits
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.epoch_times import EpochTimes
from ferry.kernels.grouping import Ints
from ferry.process.shapes import process_of
from ferry.store.aggregate import AggregateState
from ferry.store.expiry import Remainder
from ferry.store.process import ProcessState
from ferry.store.rows import RowState
from ferry.store.unbounded import UnboundedAggregateState


class State(Protocol):
    """State of one operator in one instance, below a directory of its own. It changes by `apply` and what follows it.

    Fragments and what `combine` makes of them have the schema of its fragments, deltas and chunks that of its state
    (`ferry.kernels.schemas`). All are sorted by hash where not said otherwise.
    """

    expired: int
    """Slices that end here or before are forgotten: milliseconds of event time."""

    def combine(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        """All that these fragments hold, as one. Reads no state."""

    def delta(
        self, parts: list[pa.RecordBatch], times: EpochTimes, vnodes: Ints | None = None
    ) -> tuple[pa.RecordBatch, int]:
        """What applying these parts would change, and how many records are late, which are left out. Changes nothing.

        `vnodes` are led here: what is due of them by the clock alone is part of it. None: all of them are.
        """

    def apply(self, delta: pa.RecordBatch, epoch: int, source: str) -> None:
        """Change it by a delta of an epoch and the leader it came from; once, however often it is done. Raises Exhausted."""

    def apply_absent(self, chunk: pa.RecordBatch) -> None:
        """Take in a chunk of a snapshot: what is there already is newer. Raises Exhausted."""

    def release(self, epoch: int, watermark: int) -> None:
        """Forget what readers of epochs up to this one were given, and slices whose windows are all final."""

    def drop(self, vnodes: Ints) -> None:
        """Forget these virtual nodes."""

    def work(self) -> bool:
        """Give back a piece of what was forgotten; True when there is more."""

    def fired(self, times: EpochTimes, vnodes: Ints) -> Iterator[pa.RecordBatch]:
        """Rows of the windows with low < end <= high, in pieces (`schemas.fired_schema`). Raises RowsGone."""

    def will_fire(self, delta: pa.RecordBatch, times: EpochTimes, vnodes: Ints) -> int:
        """About how many rows `fired` will yield once this delta of these virtual nodes is applied."""

    def snapshot(self, vnodes: Ints, chunk_bytes: int = limits.CHUNK_BYTES) -> Iterator[pa.RecordBatch]:
        """All of these virtual nodes, in chunks, in any order, while deltas are applied."""

    def remainder(self, vnodes: Ints) -> Remainder | None:
        """What they hold now, and a copy that hears of all deltas from now on will lack. None: it cannot be watched."""

    def statistics(self, vnodes: Ints | None = None) -> dict[str, Any]:
        """`bytes` and `entries`, int64 by virtual node (of `vnodes`, or of all), and `slices`."""


def open_state(descriptor: OperatorDescriptor, virtual_nodes: int, directory: Path, memory_bytes: int) -> State:
    """The state that is in the directory, or an empty one."""
    match descriptor.kind:
        case "aggregate":
            kind = AggregateState if descriptor.windowed else UnboundedAggregateState
            return kind(descriptor, virtual_nodes, directory, memory_bytes)
        case "join":
            return RowState(descriptor, virtual_nodes, directory)
        case "process":
            return ProcessState(descriptor, lambda: process_of(descriptor), virtual_nodes, directory)
        case _:
            assert_never(descriptor.kind)
