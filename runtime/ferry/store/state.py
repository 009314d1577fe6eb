"""The interface of an operator's state to its instance, for every kind of operator; each kind has a file in this room.

A new kind of operator is a class with this protocol, and a branch in `open_state`.
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
from ferry.store.expiry import PriorState
from ferry.store.process import ProcessState
from ferry.store.rows import RowState
from ferry.store.unbounded import UnboundedAggregateState


class State(Protocol):
    """State of one operator in one instance, below a directory of its own. It changes by `apply` and the methods after
    it.

    Fragments, also combined ones, have the schema of fragments; deltas and chunks have the schema of the state
    (`ferry.kernels.schemas`). All are sorted by virtual node unless stated otherwise.
    """

    expired: int
    """Slices that end here or before are forgotten: milliseconds of event time."""

    def combine(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        """All rows of these fragments, merged into one. Reads no state."""

    def delta(
        self, parts: list[pa.RecordBatch], times: EpochTimes, vnodes: Ints | None = None
    ) -> tuple[pa.RecordBatch, int]:
        """The changes that these parts would make, and the number of late records, which are left out. Changes nothing.

        `vnodes` are led here: their due timers of the clock are included. None: all virtual nodes.
        """

    def apply(self, delta: pa.RecordBatch, epoch: int, source: str, hints: Ints | None = None) -> None:
        """Apply a delta of an epoch from a leader; idempotent. Raises Exhausted.

        `hints`: of a delta that this state computed, where its rows are (`AggregateState.hints`).
        """

    def apply_absent(self, chunk: pa.RecordBatch) -> None:
        """Apply a chunk of a snapshot: existing entries are newer and stay. Raises Exhausted."""

    def release(self, epoch: int, watermark: int) -> None:
        """Delete rows for readers of epochs up to this one, and slices whose windows are all final."""

    def drop(self, vnodes: Ints) -> None:
        """Forget these virtual nodes."""

    def work(self) -> bool:
        """Free a piece of forgotten state; True when there is more."""

    def fired(self, times: EpochTimes, vnodes: Ints) -> Iterator[pa.RecordBatch]:
        """Rows of the windows with low < end <= high, in pieces (`schemas.fired_schema`). Raises RowsGone."""

    def will_fire(self, delta: pa.RecordBatch, times: EpochTimes, vnodes: Ints) -> int:
        """Approximate number of rows that `fired` will yield once this delta of these virtual nodes is applied."""

    def snapshot(self, vnodes: Ints, chunk_bytes: int = limits.CHUNK_BYTES) -> Iterator[pa.RecordBatch]:
        """All rows of these virtual nodes, in chunks, in any order, while deltas are applied."""

    def prior_state(self, vnodes: Ints) -> PriorState | None:
        """Their present state, which a copy that gets all later deltas will lack. None: it cannot be tracked."""

    def statistics(self, vnodes: Ints | None = None) -> dict[str, Any]:
        """`bytes` and `entries`, int64 by virtual node (of `vnodes`, or of all), and `slices`."""


def open_state(descriptor: OperatorDescriptor, virtual_nodes: int, directory: Path, memory_bytes: int) -> State:
    """Open the state in the directory, or an empty one."""
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
