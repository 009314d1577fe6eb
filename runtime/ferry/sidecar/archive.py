"""An instance's output for durable checkpoints: a scan of the virtual nodes that it leads, and then their changes.

    loop     Archiver --> scan, chunk by chunk --------.
             Apply ----> delta --> [shadow] --.         v
             WriteCheckpoint --> freeze ------+--> [upload] --> store --> Checkpointed

The shadow of an operator is a state that only gets the deltas since the last freeze: its snapshot is the set of
changes, each key once. So the store is like a learner: a scan, then every change. All of this is of one life of the
instance; the next life begins with a scan. Must never make the loop wait for the store.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.manifest import Chain
from ferry.durable.copies import Copies
from ferry.durable.location import Location
from ferry.kernels import columns
from ferry.protocol.instance.io import WriteCheckpoint
from ferry.sidecar.scans import Allowance, begun
from ferry.sidecar.shadows import FrozenChanges, Shadows, bytes_by_vnode
from ferry.sidecar.uploads import Scan, Uploads
from ferry.store.state import State

log = logging.getLogger("ferry.sidecar")

WAITING_CHUNKS = 16
"""Chunks of a scan that wait for the store."""

REBASE_BYTES = 16 * 1024 * 1024
"""Changes of fewer bytes never justify a new scan."""

FILE_BYTES = 512 * 1024
"""Read cost of a file in bytes, besides its content: many small changes are expensive to read."""

FILES_MAX = 512
"""Files per operator in a chain of even changes: manifests name them all."""

REBASE_SHARE = 1 / 8
"""Share of the allowed changes that a new scan removes: it takes the virtual nodes with most changes."""

LOOK_SECONDS = 0.05
"""Interval at which a leader checks whether an early checkpoint may be requested again."""

AGAIN_SECONDS = 15.0
"""Shortest interval between scans that replace broken chains."""


@dataclass(frozen=True, slots=True, eq=False)
class ChainInMaking:
    """Virtual nodes with a common chain."""

    scan: Scan
    vnodes: list[int]
    changes: list[FrozenChanges]

    @property
    def broken(self) -> bool:
        """Whether it can never be completed."""
        return self.scan.failed or any(one.lost for one in self.changes)

    @property
    def written(self) -> bool:
        """Whether all of it is in the store."""
        return self.scan.files is not None and all(one.files is not None for one in self.changes)

    def chain(self) -> Chain:
        """The chain in the form of a manifest."""
        files = [file for files in (self.scan.files, *(one.files for one in self.changes)) for file in files or ()]
        return Chain(tuple(sorted(self.vnodes)), tuple(files))


@dataclass(frozen=True, slots=True, eq=False)
class PendingAnswer:
    """A checkpoint that the driver waits for."""

    asked: WriteCheckpoint
    groups: list[ChainInMaking]


class Archiver:
    """All output of one life of an instance. Its methods are for the instance's loop."""

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
        copies: Copies | None = None,
        left_out: Callable[[], Collection[int]] = lambda: (),
    ) -> None:
        """`name` is the instance's; `tell(request, chains)` is also called on another thread. `left_out()`: operators whose
        state is not in force yet."""
        self._left_out = left_out
        self._copies = copies
        self._states = states
        self._virtual_nodes = virtual_nodes
        self._tell = tell
        self._of: dict[int, Scan] = {}
        """By virtual node: the scan with which its chain begins."""
        self._next: tuple[Scan, dict[int, Scan]] | None = None
        """A new scan, and the scans that it replaces once it is in the store."""
        self._scans: list[Scan] = []
        """Scans that are being read."""
        self.budget = Allowance(bytes_per_second)
        self._number = 0
        """number of the changes that are collected now"""
        self._epoch = -1
        """the last epoch with changes here"""
        self._changes: list[FrozenChanges] = []
        """Frozen changes in some chain."""
        self._changed = np.zeros(virtual_nodes)
        """Bytes of all changes ever frozen, by virtual node; and the read cost of their files."""
        self._lock = threading.Lock()
        self._request: PendingAnswer | None = None
        self._later: WriteCheckpoint | None = None
        """An early request. The answer says when the driver may repeat it: an earlier answer would make it repeat at
        once."""
        self._anew = -1
        """The last checkpoint for which everything had to be scanned again."""
        self._look_at = self._again_at = 0.0
        self._uploads = Uploads(location, run, name, virtual_nodes, self._answer, copies)
        self._shadows = Shadows(descriptors, virtual_nodes, directory, self._uploads.frozen)

    def follow(self, vnodes: Sequence[int], epoch: int) -> None:
        """Write these virtual nodes, and no others. `epoch` is the last one that is committed here."""
        self._epoch = max(self._epoch, epoch)
        wanted = dict.fromkeys(vnodes)
        gone = [v for v in self._of if v not in wanted]
        for v in gone:
            del self._of[v]
        if gone:
            self._shadows.drop(gone)
        self._begin([v for v in wanted if v not in self._of])

    def _begin(self, vnodes: list[int]) -> None:
        if vnodes:
            scan = self._scan(vnodes)
            self._of.update(dict.fromkeys(vnodes, scan))
        used = self._used()
        for scan in self._scans:
            scan.failed |= scan not in used

    def _used(self) -> list[Scan]:
        return [*dict.fromkeys(self._of.values()), *([self._next[0]] if self._next is not None else [])]

    def _by_scan(self) -> dict[Scan, list[int]]:
        found: dict[Scan, list[int]] = {}
        for v, scan in self._of.items():
            found.setdefault(scan, []).append(v)
        return found

    def _scan(self, vnodes: Sequence[int]) -> Scan:
        chosen = np.array(sorted(vnodes), np.int64)
        sizes = np.zeros(self._virtual_nodes, np.int64)
        sizes[chosen] = bytes_by_vnode(self._states, self._virtual_nodes)[chosen]
        scan = Scan(begun(self._states, chosen, self._left_out()), self._epoch, self._number, sizes)
        self._scans.append(scan)
        return scan

    def applied(self, operator: int, epoch: int, source: str, batch: pa.RecordBatch) -> None:
        """A delta was applied, to virtual nodes that may be written here."""
        self._epoch = max(self._epoch, epoch)
        if not self._of or not batch.num_rows:
            return
        offsets = columns.split_by_vnode(batch, self._virtual_nodes)
        there = np.flatnonzero(np.diff(offsets))
        mine = np.array([v for v in there.tolist() if v in self._of], np.int64)
        if mine.size:
            share = batch if mine.size == there.size else columns.take_vnodes(batch, offsets, mine)
            self._shadows.apply(operator, epoch, source, share)

    def release(self, epoch: int, watermarks: tuple[int, ...]) -> None:
        """This epoch is final."""
        if self._of:
            self._shadows.release(epoch, watermarks)

    def anew(self) -> None:
        """States have come that no scan has: scan all again."""
        for scan in self._of.values():
            scan.failed = True

    def write(self, request: WriteCheckpoint) -> None:
        """Write all changes until now, if all scans were read before, and the last freeze is in the store."""
        if request.anew and request.number != self._anew:
            self._anew, self._next = request.number, None
            self.anew()
        if self._mend() or self._is_busy():
            self._later = request
            return
        self._later = None
        self._count_changes()
        if self._next is not None and (self._next[0].files is not None or self._next[0].failed):
            scan, replaced = self._next
            if not scan.failed:
                self._of.update({v: scan for v, before in replaced.items() if self._of.get(v) is before})
            self._next = None
        changes = FrozenChanges(self._number, request.epoch, request.watermarks)
        self._number += 1
        first = min((scan.first for scan in self._used()), default=changes.number)
        self._changes = [one for one in (*self._changes, changes) if one.number >= first or one.files is None]
        groups = [
            ChainInMaking(scan, mine, [one for one in self._changes if one.number >= scan.first])
            for scan, mine in self._by_scan().items()
        ]
        with self._lock:
            self._request = PendingAnswer(request, groups)
        self._shadows.freeze(changes)  # After the request is stored: the answer may come at once.
        self._rebase()

    def _is_busy(self) -> bool:
        """One frozen shadow and one growing shadow at most: the disk must not hold more while the store is
        unreachable."""
        return any(not scan.ended for scan in self._of.values()) or any(one.files is None for one in self._changes)

    def _mend(self) -> bool:
        """Scan virtual nodes with broken chains again; returns whether there are any."""
        first = min((scan.first for scan in self._of.values()), default=self._number)
        all_lost = self._shadows.lost or any(one.lost and one.number >= first for one in self._changes)
        lost = [v for v, scan in self._of.items() if scan.failed or all_lost]
        if lost and time.monotonic() >= self._again_at:
            log.warning("checkpoints: %d virtual nodes are scanned again", len(lost))
            self._again_at = time.monotonic() + AGAIN_SECONDS
            if all_lost:
                self._shadows.begin_anew()
                self._next = None
            else:
                self._shadows.drop(lost)
            self._begin(lost)
        return bool(lost)

    def _rebase(self) -> None:
        """If a restore would read more than twice the state, scan the virtual nodes with most changes again.

        Not all at once: then evenly changing state is scanned once while it changes twice, and no checkpoint has a
        large scan.
        """
        if self._next is not None:
            return
        vnodes = np.array([*self._of], np.int64)
        scanned, changed = np.zeros((2, self._virtual_nodes))
        for scan, mine in self._by_scan().items():
            assert scan.before is not None
            scanned[mine] = scan.sizes[mine]
            changed[mine] = self._changed[mine] - scan.before[mine]
        most = max(scanned.sum(), REBASE_BYTES)
        if changed.sum() > most:
            order = vnodes[np.argsort(-changed[vnodes] / np.maximum(scanned[vnodes], 1), kind="stable")]
            rest = changed.sum() - np.cumsum(changed[order])
            chosen = order[: 1 + int(np.argmax(rest <= (1 - REBASE_SHARE) * most))].tolist()
            self._next = self._scan(chosen), {v: self._of[v] for v in chosen}

    def _count_changes(self) -> None:
        """Frozen changes are in the store; later scans include them."""
        scans = self._used()
        file_bytes = max(FILE_BYTES, sum(int(scan.sizes.sum()) for scan in scans) / FILES_MAX)
        for one in self._changes:
            if one.sizes is not None:
                self._changed += one.sizes + file_bytes / max(len(self._of), 1)
                one.sizes = None
        for scan in scans:
            if scan.before is None:
                scan.before = self._changed.copy()

    def pump(self) -> bool:
        """Read a chunk of a scan; False when there was none, or the store has to catch up."""
        if self._later is not None and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_SECONDS
            if not self._mend() and not self._is_busy():
                asked, self._later = self._later, None
                self._tell(asked, b"")
        if not self._scans or self._uploads.waiting >= WAITING_CHUNKS or not self.budget.allows():
            return False
        scan = self._scans[0]
        operator, _, batch = (0, 0, None) if scan.failed else next(scan.chunks)
        if batch is None:
            scan.ended = True
            self._scans.pop(0)
        else:
            self.budget.spend(batch.nbytes)
        self._uploads.scanned(scan, operator, batch)
        return True

    def _answer(self) -> None:
        """Answer a request that is complete in the store. On the thread of the uploads."""
        with self._lock:
            request = self._request
            if request is None:
                return
            broken = any(group.broken for group in request.groups)
            if not broken and not all(group.written for group in request.groups):
                return
            self._request = None
        chains = [] if broken else [group.chain() for group in request.groups]
        if self._copies is not None and not broken:
            self._copies.keep(file.name for chain in chains for file in chain.files)
        self._tell(request.asked, b"" if broken else json.dumps([asdict(chain) for chain in chains]).encode())
