"""What an instance writes for durable checkpoints: a scan of what it leads, and then what changes of it.

    loop     Archive --> scan, chunk by chunk --------.
             Apply ----> delta --> [shadow] --.         v
             WriteCheckpoint --> freeze ------+--> [upload] --> store --> Checkpointed

The shadow of an operator is a state that only the deltas since the last freeze were applied to: its snapshot is what has
changed, each key once. So the store is one more learner: a scan, then every change. All that is known of it here is of one
life of the instance; the next one begins with a scan. Must never make the loop wait for the store.
"""

from __future__ import annotations

import json
import logging
import queue
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.errors import FerryError
from ferry.contract.manifest import Chain, StoredFile, file_name
from ferry.durable.location import Location
from ferry.durable.parts import PartWriter
from ferry.kernels import columns
from ferry.kernels.grouping import Ints
from ferry.protocol.instance.io import WriteCheckpoint
from ferry.sidecar.scans import Budget, Chunks, begun
from ferry.store.process import ProcessState
from ferry.store.state import State, open_state

log = logging.getLogger("ferry.sidecar")

SHADOW_BYTES = 64 * 1024 * 1024
"""Memory of the shadow of one operator; more of it stays in files."""

WAITING_BYTES = 256 * 1024 * 1024
"""Of deltas that wait for the shadow. With more all is scanned anew: the loop does not wait."""

WAITING_CHUNKS = 16
"""Of a scan, that wait for the store."""

REBASE_BYTES = 16 * 1024 * 1024
"""Changes of fewer bytes never make a new scan worth while."""

RETRY_SECONDS, RETRY_SECONDS_MAX = 0.5, 15.0
"""Between two attempts to write what the store did not take."""


@dataclass(slots=True, eq=False)
class Scan:
    """Virtual nodes as they were found, on their way to the store."""

    chunks: Chunks
    epoch: int
    first: int
    """the number of the changes that were collected when it began"""
    ended: bool = False
    """all of it was read"""
    failed: bool = False
    files: list[StoredFile] | None = None
    """in the store"""


@dataclass(slots=True, eq=False)
class Changes:
    """Frozen shadows, on their way to the store."""

    number: int
    epoch: int
    directory: Path
    shadows: list[State]
    files: list[StoredFile] | None = None


@dataclass(slots=True, eq=False)
class Request:
    """A checkpoint that the driver waits for."""

    asked: WriteCheckpoint
    last: int
    """number of the changes that it ends with"""
    groups: list[tuple[Scan, list[int]]] = field(default_factory=list)


class _Delta(NamedTuple):
    operator: int
    epoch: int
    source: str
    batch: pa.RecordBatch


class _Drop(NamedTuple):
    vnodes: Ints


class _Freeze(NamedTuple):
    number: int
    epoch: int
    watermarks: tuple[int, ...]


class Archive:
    """All that one life of an instance writes. Its methods are for the loop of the instance."""

    def __init__(
        self,
        location: Location,
        run: str,
        name: str,
        descriptors: Sequence[OperatorDescriptor],
        states: Sequence[State],
        virtual_nodes: int,
        directory: Path,
        bytes_per_second: int | None,
        tell: Callable[[WriteCheckpoint, bytes], None],
    ) -> None:
        """`name` is the instance's; `tell(asked, chains)` is called on another thread."""
        self._location = location
        self._run = run
        self._name = name
        self._descriptors = descriptors
        self._states = states
        self._virtual_nodes = virtual_nodes
        self._directory = directory
        self._tell = tell
        shutil.rmtree(directory, ignore_errors=True)
        self._of: dict[int, Scan] = {}
        """Of each virtual node that is written: the scan that its chain begins with."""
        self._next: tuple[Scan, dict[int, Scan]] | None = None
        """A scan anew, and the scans in whose place it comes once it has ended."""
        self._scans: list[Scan] = []
        """Those that are read."""
        self._budget = Budget(bytes_per_second)
        self._number = 0
        """of the changes that are collected now"""
        self._lock = threading.Lock()
        self._changes: dict[int, Changes] = {}
        self._requests: list[Request] = []
        self._waiting_bytes = 0
        self._overrun = False
        self._retry_at = 0.0
        self._shadowing: queue.SimpleQueue[_Delta | _Drop | _Freeze] = queue.SimpleQueue()
        self._uploads: queue.SimpleQueue[tuple[Scan, int, pa.RecordBatch | None] | Changes] = queue.SimpleQueue()
        self._chunks_waiting = 0
        self._files = 0
        self.written_bytes = 0
        for target in (self._shadow, self._upload):
            threading.Thread(target=target, name=f"archive-{target.__name__.strip('_')}", daemon=True).start()

    # ---- the loop
    def follow(self, vnodes: Sequence[int], epoch: int) -> None:
        """Write these, and no others. `epoch` is the last one that is committed here."""
        wanted = dict.fromkeys(vnodes)
        gone = [v for v in self._of if v not in wanted]
        for v in gone:
            del self._of[v]
        if gone:
            self._shadowing.put(_Drop(np.array(gone, np.int64)))
        self._begin([v for v in wanted if v not in self._of], epoch)

    def _begin(self, vnodes: list[int], epoch: int) -> None:
        if vnodes:
            scan = self._scan(vnodes, epoch)
            self._of.update(dict.fromkeys(vnodes, scan))

    def _scan(self, vnodes: Sequence[int], epoch: int) -> Scan:
        scan = Scan(begun(self._states, np.array(sorted(vnodes), np.int64)), epoch, self._number)
        self._scans.append(scan)
        return scan

    def applied(self, operator: int, epoch: int, source: str, batch: pa.RecordBatch) -> None:
        """A delta was applied, of virtual nodes that may be written here."""
        if not self._of or not batch.num_rows:
            return
        offsets = columns.split_by_vnode(batch, self._virtual_nodes)
        there = np.flatnonzero(np.diff(offsets))
        mine = np.array([v for v in there.tolist() if v in self._of], np.int64)
        if not mine.size:
            return
        if mine.size < there.size:
            batch = columns.take_vnodes(batch, offsets, mine)
        with self._lock:
            self._waiting_bytes += batch.nbytes
            self._overrun |= self._waiting_bytes > WAITING_BYTES
        if not self._overrun:
            self._shadowing.put(_Delta(operator, epoch, source, batch))

    def write(self, asked: WriteCheckpoint) -> None:
        """Write what has changed until now, if all scans were read before."""
        epoch = asked.epoch
        failed = any(scan.failed for scan in self._of.values())
        if self._overrun or failed or not all(scan.ended for scan in self._of.values()):
            self._tell(asked, b"")
            self._again(epoch)
            return
        if self._next is not None and self._next[0].ended:
            scan, replaced = self._next
            if not scan.failed:
                self._of.update({v: scan for v, before in replaced.items() if self._of.get(v) is before})
            self._next = None
        last = self._number
        self._shadowing.put(_Freeze(last, epoch, asked.watermarks))
        self._number += 1
        groups: dict[Scan, list[int]] = {}
        for v, scan in self._of.items():
            groups.setdefault(scan, []).append(v)
        with self._lock:
            self._requests = [Request(asked, last, list(groups.items()))]
            self._forget()
        self._rebase(epoch)

    def _again(self, epoch: int) -> None:
        """Scan anew what cannot be gone on with."""
        if time.monotonic() < self._retry_at:
            return
        lost = [v for v, scan in self._of.items() if scan.failed or self._overrun]
        if lost:
            log.warning("checkpoints: %d virtual nodes are scanned anew", len(lost))
            self._retry_at = time.monotonic() + RETRY_SECONDS_MAX
            self._shadowing.put(_Drop(np.array(lost, np.int64)))
            self._overrun = False
            self._begin(lost, epoch)

    def _forget(self) -> None:
        """Changes that no chain has any more."""
        used = [*self._of.values(), *([self._next[0]] if self._next is not None else [])]
        first = min((scan.first for scan in used), default=self._number)
        for number in [n for n, changes in self._changes.items() if n < first and changes.files is not None]:
            del self._changes[number]

    def _rebase(self, epoch: int) -> None:
        """Where a restore would read more than twice the state, begin another scan."""
        if self._next is not None:
            return
        with self._lock:
            changed = sum(f.bytes for changes in self._changes.values() for f in changes.files or ())
            scanned = sum(f.bytes for scan in set(self._of.values()) for f in scan.files or ())
        if changed > max(scanned, REBASE_BYTES):
            self._next = self._scan(list(self._of), epoch), dict(self._of)

    def pump(self) -> bool:
        """Read a chunk of a scan; False when there was none to read, or the store has to catch up."""
        if not self._scans or self._chunks_waiting >= WAITING_CHUNKS or not self._budget.allows():
            return False
        scan = self._scans[0]
        operator, _, batch = next(scan.chunks)
        if batch is None or scan.failed:
            scan.ended = True
            self._scans.pop(0)
            batch = None
        else:
            self._budget.spend(batch.nbytes)
        with self._lock:
            self._chunks_waiting += 1
        self._uploads.put((scan, operator, batch))
        return True

    # ---- the shadow
    def _shadow(self) -> None:
        shadows: list[State] = []
        while True:
            match self._shadowing.get():
                case _Delta(operator, epoch, source, batch):
                    try:
                        shadows = shadows or self._open_shadows()
                        shadows[operator].apply(batch, epoch, source)
                    except FerryError as error:
                        log.warning("changes for checkpoints are lost: %s", error)
                        self._overrun = True
                    with self._lock:
                        self._waiting_bytes -= batch.nbytes
                case _Drop(vnodes):
                    for state in shadows:
                        state.drop(vnodes)
                case _Freeze(number, epoch, watermarks):
                    for state, watermark in zip(shadows, watermarks, strict=False):
                        state.release(epoch, watermark)
                    changes = Changes(number, epoch, self._directory / str(self._files), shadows)
                    with self._lock:
                        self._changes[number] = changes
                    shadows = []
                    self._uploads.put(changes)

    def _open_shadows(self) -> list[State]:
        self._files += 1
        shadows = []
        for descriptor in self._descriptors:
            path = self._directory / str(self._files) / str(descriptor.index)
            state = open_state(descriptor, self._virtual_nodes, path, SHADOW_BYTES)
            if isinstance(state, ProcessState):
                state.drop(np.arange(self._virtual_nodes))  # what is removed has to be known
            shadows.append(state)
        return shadows

    # ---- the store
    def _upload(self) -> None:
        writers: dict[Scan, dict[int, PartWriter]] = {}
        while True:
            item = self._uploads.get()
            if isinstance(item, Changes):
                item.files = self._written(item)
                shutil.rmtree(item.directory, ignore_errors=True)
                item.shadows.clear()
            else:
                self._write_chunk(writers, *item)
                with self._lock:
                    self._chunks_waiting -= 1
            self._answer()

    def _write_chunk(
        self, writers: dict[Scan, dict[int, PartWriter]], scan: Scan, operator: int, batch: pa.RecordBatch | None
    ) -> None:
        """A scan that fails on its way is begun anew by the loop: nobody has kept its chunks."""
        mine = writers.setdefault(scan, {})
        try:
            if scan.failed:
                pass
            elif batch is None:
                scan.files = [writer.finish() for writer in mine.values()]
            elif batch.num_rows:
                if operator not in mine:
                    mine[operator] = self._writer(operator, "scan", scan.epoch)
                self.written_bytes += mine[operator].add(batch)
        except FerryError as error:
            log.warning("a scan for checkpoints failed: %s", error)
            scan.failed = True
            for writer in mine.values():
                writer.abort()
        if batch is None:
            writers.pop(scan)

    def _writer(self, operator: int, kind: Literal["scan", "changes"], epoch: int) -> PartWriter:
        unique = f"{self._name}-{operator}-{kind}-{secrets.token_hex(4)}"
        name = file_name(self._run, time.time(), unique)
        return PartWriter(self._location, name, operator, kind, epoch, self._virtual_nodes)

    def _written(self, changes: Changes) -> list[StoredFile]:
        """Its files; tried until the store takes them."""
        files: list[StoredFile] = []
        wait = RETRY_SECONDS
        for operator, state in enumerate(changes.shadows):
            while True:
                writer: PartWriter | None = None
                try:
                    for batch in _chunks(state, self._virtual_nodes):
                        if batch.num_rows:
                            writer = writer or self._writer(operator, "changes", changes.epoch)
                            self.written_bytes += writer.add(batch)
                    files += [writer.finish()] if writer is not None else []
                    break
                except FerryError as error:
                    log.warning("changes for a checkpoint wait: %s", error)
                    if writer is not None:
                        writer.abort()
                    time.sleep(wait)
                    wait = min(2 * wait, RETRY_SECONDS_MAX)
        return files

    def _answer(self) -> None:
        """Say what is complete in the store."""
        with self._lock:
            failed = [request for request in self._requests if any(scan.failed for scan, _ in request.groups)]
            complete = [request for request in self._requests if request not in failed and self._is_complete(request)]
            self._requests = [request for request in self._requests if request not in (*failed, *complete)]
            answers = [(r.asked, b"") for r in failed] + [(r.asked, self._chains(r)) for r in complete]
        for asked, chains in answers:
            self._tell(asked, chains)

    def _is_complete(self, request: Request) -> bool:
        first = min((scan.first for scan, _ in request.groups), default=0)
        changes = [self._changes.get(number) for number in range(first, request.last + 1)]
        return all(scan.files is not None for scan, _ in request.groups) and all(
            one is not None and one.files is not None for one in changes
        )

    def _chains(self, request: Request) -> bytes:
        chains = []
        for scan, vnodes in request.groups:
            numbers = range(scan.first, request.last + 1)
            files = [*(scan.files or ()), *(f for n in numbers for f in self._changes[n].files or ())]
            chains.append(Chain(tuple(sorted(vnodes)), tuple(files)))
        return json.dumps([asdict(chain) for chain in chains]).encode()


def _chunks(state: State, virtual_nodes: int) -> Iterator[pa.RecordBatch]:
    """What was applied to a shadow, each key once."""
    vnodes = np.arange(virtual_nodes)
    return state.changes(vnodes) if isinstance(state, ProcessState) else state.snapshot(vnodes)
