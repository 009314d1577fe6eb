"""Uploads of one life of an instance to the store, one after the other: chunks of scans, and frozen shadows.

Must never end before the process does, whatever error the store or the disk reports: a request waits for an answer.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from ferry.contract.errors import Unreachable
from ferry.contract.manifest import StoredFile, file_name
from ferry.durable.copies import Copies
from ferry.durable.location import Location
from ferry.durable.parts import PartWriter
from ferry.kernels.grouping import Floats, Ints
from ferry.sidecar.scans import Chunks
from ferry.sidecar.shadows import FrozenChanges

log = logging.getLogger("ferry.sidecar")

RETRY_SECONDS, RETRY_SECONDS_MAX = 0.5, 15.0
"""Pauses between attempts to write to a failing store."""

RESTS, REST_SECONDS = 2.0, 5.0
"""It rests this many times as long as it has worked, because uploads use processors that epochs need; at most this long
at a time, because a request may wait for the checkpoint."""


@dataclass(slots=True, eq=False)
class Scan:
    """Virtual nodes as of one time, on their way to the store."""

    chunks: Chunks
    epoch: int
    first: int
    """the number of the changes that were collected when it began"""
    sizes: Ints
    """bytes of each virtual node in their stored form, when it began"""
    before: Floats | None = None
    """bytes of changes collected before it began, by virtual node"""
    ended: bool = False
    """all of it was read"""
    failed: bool = False
    """it failed or was abandoned: its chunks are lost"""
    files: list[StoredFile] | None = None
    """in the store"""


class Uploads:
    """A thread that writes; it calls `done()` after each piece."""

    def __init__(
        self,
        location: Location,
        run: str,
        name: str,
        virtual_nodes: int,
        done: Callable[[], None],
        copies: Copies | None,
    ) -> None:
        """`name` is the instance's."""
        self._location = location
        self._run = run
        self._name = name
        self._virtual_nodes = virtual_nodes
        self._done = done
        self._copies = copies
        self._queue: queue.SimpleQueue[tuple[Scan, int, pa.RecordBatch | None] | FrozenChanges] = queue.SimpleQueue()
        self._writers: dict[Scan, dict[int, PartWriter]] = {}
        self._worked_from = 0.0
        self._may_rest = 0.0
        threading.Thread(target=self._work, name="archive-upload", daemon=True).start()

    @property
    def waiting(self) -> int:
        """Pieces that have not begun."""
        return self._queue.qsize()

    def scanned(self, scan: Scan, operator: int, batch: pa.RecordBatch | None) -> None:
        """A chunk; None ends the scan."""
        self._queue.put((scan, operator, batch))

    def frozen(self, changes: FrozenChanges) -> None:
        """All changes of a checkpoint."""
        self._queue.put(changes)

    def _work(self) -> None:
        while True:
            item = self._queue.get()
            self._worked_from = time.monotonic()
            if isinstance(item, FrozenChanges):
                self._may_rest = REST_SECONDS
                self._write_changes(item)
            else:
                self._write_chunk(*item)
                self._rest()
            self._done()

    def _rest(self) -> None:
        seconds = min(RESTS * (time.monotonic() - self._worked_from), self._may_rest)
        self._may_rest -= seconds
        time.sleep(seconds)
        self._worked_from = time.monotonic()

    def _write_chunk(self, scan: Scan, operator: int, batch: pa.RecordBatch | None) -> None:
        """Write a chunk; the loop restarts a scan that fails."""
        mine = self._writers.setdefault(scan, {})
        try:
            if scan.failed:
                self._abort(mine)
            elif batch is None:
                scan.files = [writer.finish() for writer in mine.values()]
            elif batch.num_rows:
                if operator not in mine:
                    mine[operator] = self._writer(operator, "scan", scan.epoch)
                mine[operator].add(batch)
        except Exception as error:
            log.warning("a scan for checkpoints failed: %s", error)
            scan.failed = True
            self._abort(mine)
        if batch is None:
            self._writers.pop(scan)

    def _writer(self, operator: int, kind: Literal["scan", "changes"], epoch: int) -> PartWriter:
        unique = f"{self._name}-{operator}-{kind}-{secrets.token_hex(4)}"
        name = file_name(self._run, time.time(), unique)
        return PartWriter(self._location, name, operator, kind, epoch, self._virtual_nodes, self._copies)

    def _write_changes(self, changes: FrozenChanges) -> None:
        """Retried until the store takes them; changes that cannot be read here are lost."""
        files: list[StoredFile] = []
        wait = RETRY_SECONDS
        operators = iter(range(len(changes.shadows)))
        operator = next(operators, None)
        while operator is not None and not changes.lost:
            mine: dict[int, PartWriter] = {}
            try:
                for batch in changes.chunks(operator, self._virtual_nodes):
                    if batch.num_rows:
                        if operator not in mine:
                            mine[operator] = self._writer(operator, "changes", changes.epoch)
                        mine[operator].add(batch)
                        self._rest()
                files += [writer.finish() for writer in mine.values()]
                operator = next(operators, None)
            except Unreachable as error:
                log.warning("changes for a checkpoint wait: %s", error)
                self._abort(mine)
                time.sleep(wait)
                wait = min(2 * wait, RETRY_SECONDS_MAX)
            except Exception as error:
                log.warning("changes for checkpoints are lost: %s: %s", type(error).__name__, error)
                self._abort(mine)
                changes.lost = True
        changes.forget()
        changes.files = files

    def _abort(self, writers: dict[int, PartWriter]) -> None:
        for writer in writers.values():
            writer.abort()
        writers.clear()
