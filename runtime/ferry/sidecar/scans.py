"""Outgoing snapshots: a few chunks at a time, under credit and a bandwidth limit, between the events of an epoch.

Moving S bytes needs chunks under credit, not S. Must never read state outside the instance's loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ferry.contract import limits
from ferry.contract import messages as m
from ferry.contract.names import CommitId, InstanceId
from ferry.protocol.boundaries import begins_at_target
from ferry.protocol.instance.io import BeginSnapshot
from ferry.store.expiry import PriorState
from ferry.store.state import State

log = logging.getLogger("ferry.sidecar")

SAY_SECONDS = 1.0
"""Interval at which a learner that waits for the end of a window gets a sign of life: shorter than its stall
timeout."""

Chunks = Iterator[tuple[int, int, pa.RecordBatch | None]]
"""(operator, floor, rows); the last one has no rows."""


def begun(states: Sequence[State], vnodes: np.ndarray, left_out: Collection[int] = ()) -> Chunks:
    """A snapshot of these virtual nodes as of now, one state for each operator. Ids that are `left_out` are derived by the
    learner."""
    # Begun here and now, for all operators: rows of a later step come to the learner only as a delta.
    empty: Iterator[pa.RecordBatch] = iter(())
    each = (
        empty if number in left_out else one.snapshot(vnodes, limits.CHUNK_BYTES) for number, one in enumerate(states)
    )
    return _scanned(states, [*each])


def _scanned(states: Sequence[State], snapshots: list[Iterator[pa.RecordBatch]]) -> Chunks:
    # The state of an altered operator comes before the state that a learner would derive it from: existing rows are newer.
    for operator, (state, snapshot) in reversed([*enumerate(zip(states, snapshots))]):
        for batch in snapshot:
            yield operator, state.expired, batch
    yield len(states) - 1, states[-1].expired, None


@dataclass(slots=True)
class SnapshotScan:
    """One snapshot on its way to one learner."""

    learner: InstanceId
    session: int
    base: CommitId | None
    chunks: Chunks
    vnodes: tuple[int, ...] = ()
    left: list[PriorState] = field(default_factory=list)
    """The prior state that it waits for: its learner gets no rows, only the end."""
    pulsed_at: float = 0.0
    """When the learner last got a sign of life."""
    number: int = 0
    waiting: tuple[int, int, pa.RecordBatch | None] | None = None


def scan_of(order: BeginSnapshot, states: Sequence[State], left_out: Collection[int] = ()) -> SnapshotScan:
    """A snapshot that begins now: without rows at the boundary of a window, unless its end is unknown."""
    vnodes = np.array(order.vnodes, dtype=np.int64)
    found = [state.prior_state(vnodes) for state in states] if order.at_window else [None]
    left = [one for one in found if one is not None]
    if len(left) == len(found):
        chunks = _scanned(states, [])
        return SnapshotScan(order.learner, order.session, order.base, chunks, order.vnodes, left)
    if order.at_window:
        log.warning("%s have too many entries to track: they are copied", order.vnodes)
    chunks = begun(states, vnodes, left_out)
    return SnapshotScan(order.learner, order.session, order.base, chunks, order.vnodes)


def boundary_of(left: Sequence[PriorState]) -> int | None:
    """The start of the first window that is completely the learner's, over all operators."""
    starts = [begins_at_target(one.window, one.until) for one in left if one.window and one.until is not None]
    return max(starts) if len(starts) == len(left) else None


class Allowance:
    """Bytes that may be sent now, at a fixed rate. None: no limit."""

    def __init__(self, bytes_per_second: int | None) -> None:
        self._rate = bytes_per_second
        self._left = float(bytes_per_second or 0)
        self._refilled = time.monotonic()

    def limit(self, bytes_per_second: int | None) -> None:
        """Set the bytes per second."""
        if bytes_per_second != self._rate:
            self._rate, self._left = bytes_per_second, 0.0

    def allows(self) -> bool:
        """Whether bytes may be sent now."""
        now = time.monotonic()
        if self._rate is not None:
            self._left = min(self._left + self._rate * (now - self._refilled), self._rate / 20)
        self._refilled = now
        return self._rate is None or self._left > 0

    def spend(self, size: int) -> None:
        """Bytes were sent."""
        self._left -= size


class Scans:
    """All snapshots of one instance. `send(learner, chunk, batch)` returns False without credit.

    `announce(learner, chunk)` sends a chunk without rows, ahead of all waiting ones.
    """

    def __init__(
        self,
        me: InstanceId,
        send: Callable[[InstanceId, m.Chunk, pa.RecordBatch | None], bool],
        bytes_per_second: int | None,
        announce: Callable[[InstanceId, m.Chunk], None],
    ) -> None:
        self._me = me
        self._send = send
        self._announce = announce
        self.budget = Allowance(bytes_per_second)
        self.sent_bytes = 0
        self._scans: dict[tuple[InstanceId, int], SnapshotScan] = {}

    def __bool__(self) -> bool:
        """Whether a snapshot is under way."""
        return any(not scan.left for scan in self._scans.values())

    def boundaries(self) -> tuple[tuple[int, InstanceId, int | None], ...]:
        """Virtual nodes that wait for the end of windows, their learner, and the start of its first window; None:
        depends on coming records."""
        waiting = [(scan, boundary_of(scan.left)) for scan in self._scans.values() if scan.left]
        return tuple((v, scan.learner, begins) for scan, begins in waiting for v in scan.vnodes)

    def begin(self, scan: SnapshotScan) -> None:
        """Add a snapshot. The learner gets its base at once: a base that comes an epoch late makes it begin again.

        Chunks wait for credit and bandwidth; if the first chunk carried the base, a chunk that takes longer than an
        epoch would restart the snapshot again and again.
        """
        self._announce(scan.learner, m.Chunk(self._me, scan.session, 0, scan.base, False, 0, limits.WATERMARK_NONE))
        scan.number = 1
        self._scans[(scan.learner, scan.session)] = scan

    def stop(self, learner: InstanceId, session: int) -> None:
        """Forget a snapshot."""
        self._scans.pop((learner, session), None)

    def pump(self, chunks: int) -> bool:
        """Send up to `chunks` chunks of every snapshot; False when none could be sent (no credit, no bandwidth)."""
        progress = False
        for key, scan in list(self._scans.items()):
            if scan.left and self._waits(scan):
                continue
            for _ in range(chunks):
                if not self.budget.allows():
                    return progress
                if scan.waiting is None:
                    scan.waiting = next(scan.chunks)
                operator, floor, batch = scan.waiting
                chunk = m.Chunk(self._me, scan.session, scan.number, scan.base, batch is None, operator, floor)
                # A learner may not know an operator yet whose program is only loaded: it has no rows.
                if not self._send(scan.learner, chunk, batch if batch is not None and batch.num_rows else None):
                    break
                progress = True
                size = batch.nbytes if batch is not None else 0
                self.sent_bytes += size
                self.budget.spend(size)
                scan.number += 1
                scan.waiting = None
                if batch is None:
                    del self._scans[key]
                    break
        return progress

    def _waits(self, scan: SnapshotScan) -> bool:
        """Whether prior state has not expired yet. Chunks without rows tell the learner, and the driver, that it goes
        on."""
        scan.left = [one for one in scan.left if not one.over()]
        now = time.monotonic()
        if scan.left and now - scan.pulsed_at >= SAY_SECONDS:
            scan.pulsed_at = now
            chunk = m.Chunk(self._me, scan.session, scan.number, scan.base, False, 0, limits.WATERMARK_NONE)
            scan.number += self._send(scan.learner, chunk, None)
        return bool(scan.left)
