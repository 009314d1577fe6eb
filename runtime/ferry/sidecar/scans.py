"""Snapshots being sent: a few chunks at a time, under credit and a bandwidth limit, between the events of an epoch.

Moving S bytes needs chunks under credit, not S. Must never read state outside the instance's loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ferry.contract import limits
from ferry.contract import messages as m
from ferry.contract.names import CommitId, InstanceId
from ferry.store.state import State

Chunks = Iterator[tuple[int, int, pa.RecordBatch | None]]
"""(operator, floor, rows); the last one has no rows."""


def begun(states: Sequence[State], vnodes: np.ndarray) -> Chunks:
    """A snapshot of these virtual nodes as they are now, one state for each operator."""
    # Begun here and now, for all operators: rows of a later step come to the learner as its delta, and only so.
    return _scanned(states, [state.snapshot(vnodes, limits.CHUNK_BYTES) for state in states])


def _scanned(states: Sequence[State], snapshots: list[Iterator[pa.RecordBatch]]) -> Chunks:
    for operator, (state, snapshot) in enumerate(zip(states, snapshots, strict=True)):
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
    number: int = 0
    waiting: tuple[int, int, pa.RecordBatch | None] | None = None


class Allowance:
    """Bytes that may be sent now, at so many a second. None: no limit."""

    def __init__(self, bytes_per_second: int | None) -> None:
        self._rate = bytes_per_second
        self._left = float(bytes_per_second or 0)
        self._refilled = time.monotonic()

    def allows(self) -> bool:
        """Whether something may be sent."""
        now = time.monotonic()
        if self._rate is not None:
            self._left = min(self._left + self._rate * (now - self._refilled), self._rate / 20)
        self._refilled = now
        return self._rate is None or self._left > 0

    def spend(self, size: int) -> None:
        """It is sent."""
        self._left -= size


class Scans:
    """All snapshots of one instance. `send(learner, chunk, batch)` returns False when there is no credit.

    `announce(learner, chunk)` sends what has no rows, ahead of all that waits.
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
        self._budget = Allowance(bytes_per_second)
        self.sent_bytes = 0
        self._scans: dict[tuple[InstanceId, int], SnapshotScan] = {}

    def __bool__(self) -> bool:
        return bool(self._scans)

    def begin(self, scan: SnapshotScan) -> None:
        """Add a snapshot. The learner hears of its base at once: what comes an epoch late begins again.

        Chunks wait for credit and bandwidth; were the first one of them to say the base, a chunk that takes longer than an
        epoch would begin the next snapshot anew again and again.
        """
        self._announce(scan.learner, m.Chunk(self._me, scan.session, 0, scan.base, False, 0, limits.WATERMARK_NONE))
        scan.number = 1
        self._scans[(scan.learner, scan.session)] = scan

    def stop(self, learner: InstanceId, session: int) -> None:
        """Forget a snapshot."""
        self._scans.pop((learner, session), None)

    def pump(self, chunks: int) -> bool:
        """Send up to `chunks` chunks of every snapshot; False when nothing could be sent (no credit, no bandwidth)."""
        progress = False
        for key, scan in list(self._scans.items()):
            for _ in range(chunks):
                if not self._budget.allows():
                    return progress
                if scan.waiting is None:
                    scan.waiting = next(scan.chunks)
                operator, floor, batch = scan.waiting
                chunk = m.Chunk(self._me, scan.session, scan.number, scan.base, batch is None, operator, floor)
                if not self._send(scan.learner, chunk, batch):
                    break
                progress = True
                size = batch.nbytes if batch is not None else 0
                self.sent_bytes += size
                self._budget.spend(size)
                scan.number += 1
                scan.waiting = None
                if batch is None:
                    del self._scans[key]
                    break
        return progress
