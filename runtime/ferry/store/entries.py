"""Entries of one operator in one LMDB file: ordered, may exceed memory, changed atomically.

    state    vnode, life, place -> value       entries of all tables, and timers (places: `ferry.kernels.places`)
    timers   table, time, vnode, life, hash and key -> value         the same timers in the order of their times
    emitted  epoch, vnode, life, number, rows -> rows of an epoch until it is released, as Arrow messages
    removed  as state -> nothing               entries removed by deltas while a snapshot is still on its way
    about    vnode -> life, entries, used      and the last epoch that is released
    litter   vnode, life -> which part         garbage that is still on disk

A drop of a virtual node begins its next life: entries of the previous life are invisible at once, and leave the disk in
pieces (`work`). Nothing is synced before a clean end: the file survives the process, not a power cut. A reader sees one
state of the file, and never waits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import numpy as np
import pyarrow as pa

from ferry.contract import limits, names
from ferry.contract.errors import Exhausted, StateUnavailable
from ferry.kernels import columns
from ferry.kernels.changes import EMIT, EVENT_TIMERS, PUT, REMOVE
from ferry.kernels.grouping import Hashes, Ints
from ferry.kernels.places import ints_of, ordered_int, parsed, texts
from ferry.store import entry_file, mapped
from ferry.store.entry_scan import EntryScan, keys_from
from ferry.store.expiry import PriorEntries, PriorEntriesTracker
from ferry.store.inventory import Inventory
from ferry.store.sealing import sealed, unsealed

MAP_BYTES = 1 << 38
"""Address space, not bytes: the file is as large as its content. `require_room` checks the disk."""

WORK_ENTRIES = 2_000
"""Entries of a dropped virtual node removed per cleanup step (a few ms)."""

_LIFE = struct.Struct(">HI")
_ABOUT = struct.Struct(">IQ?")
_RELEASED = b"released"
_ALL, _REMOVED_ONLY = b"", b"removed"
"""The part of a life that is to be removed: values of `litter`."""


class Due(NamedTuple):
    """Timers in the order of their times."""

    times: Ints
    keys: list[bytes]
    """hash, length and key, as in a place"""
    values: list[bytes]


class EntryStore:
    """The entries of one operator in one instance, for all its virtual nodes, in the file below `directory`."""

    def __init__(self, directory: Path, virtual_nodes: int) -> None:
        """Open the file, or create an empty one. Raises StateUnavailable when it cannot be read."""
        self._directory = directory
        self._virtual_nodes = virtual_nodes
        directory.mkdir(parents=True, exist_ok=True)
        inventory, path = Inventory(directory), directory / "data.mdb"
        there = path.exists() and path.stat().st_size > 0
        if inventory.digests and not there:
            raise StateUnavailable(f"{path}: it is missing or empty; warm this instance again")
        inventory.require_known([0]) if there else inventory.begins(0)
        try:
            self._env = lmdb.open(
                str(directory), map_size=MAP_BYTES, max_dbs=8, sync=False, metasync=False, readahead=False
            )
            self._state, self._timers, self._emitted, self._removed, self._about, self._litter = (
                self._env.open_db(name) for name in (b"state", b"timers", b"emitted", b"removed", b"about", b"litter")
            )
            self._env.reader_check()
            entry_file.require_whole(self._env, self._state, path)
            inventory.add(0)
        except lmdb.Error as e:
            raise StateUnavailable(f"{directory}: cannot be read ({e}); warm this instance again") from e
        self._lives = np.zeros(virtual_nodes, np.int64)
        self._counts = np.zeros(virtual_nodes, np.int64)
        self._used = np.zeros(virtual_nodes, np.bool_)
        """whether the present life has any entry"""
        self._learning = np.zeros(virtual_nodes, np.bool_)
        """dropped since it was last complete: chunks of a snapshot may come"""
        self._tracker = PriorEntriesTracker()
        self._length = (directory / "data.mdb").stat().st_size
        self.released = -1
        """Rows of epochs up to this one are deleted."""
        with self._env.begin() as txn:
            for vnode, about in txn.cursor(self._about):
                if vnode == _RELEASED:
                    self.released = int.from_bytes(about)
                else:
                    number = int.from_bytes(vnode)
                    self._lives[number], self._counts[number], self._used[number] = _ABOUT.unpack(about)

    def close(self) -> None:
        """No other method may be called afterwards."""
        self._env.close()

    # -- reading ----------------------------------------------------------------------------------------------------

    def values(self, hashes: Hashes, places: Sequence[bytes]) -> list[bytes | None]:
        """The value at each place, or None. Fastest in the order of the places."""
        lives = self._prefixes(hashes)
        with self._env.begin(db=self._state) as txn:
            get = txn.get
            found = [(place, get(life + place)) for life, place in zip(lives, places, strict=True)]
            return [None if value is None else unsealed(place, value) for place, value in found]

    def below(self, hashes: Hashes, places: Sequence[bytes]) -> tuple[Ints, list[bytes], list[bytes]]:
        """All entries whose places begin with one of these: (number of the prefix, rest of the place, value), in
        order."""
        numbers: list[int] = []
        rests: list[bytes] = []
        values: list[bytes] = []
        lives = self._prefixes(hashes)
        with self._env.begin(db=self._state) as txn, txn.cursor() as cursor:
            for number, (life, place) in enumerate(zip(lives, places, strict=True)):
                begin = life + place
                size = len(begin)
                if not cursor.set_range(begin):
                    continue
                for key, value in cursor.iternext():
                    if not key.startswith(begin):
                        break
                    numbers.append(number)
                    rests.append(key[size:])
                    values.append(unsealed(key[6:], value))
        return np.array(numbers, np.int64), rests, values

    def due(self, table: int, until: int, vnodes: Ints) -> Due:
        """Timers of these virtual nodes up to this time."""
        begin, last = bytes([table]), bytes([table]) + ordered_int(until)
        lives = {_LIFE.pack(v, int(self._lives[v])) for v in vnodes.tolist()}
        items: list[tuple[bytes, bytes]] = []
        with self._env.begin(db=self._timers) as txn, txn.cursor() as cursor:
            if cursor.set_range(begin):
                for item in cursor.iternext():
                    key = item[0]
                    if key[:9] > last or key[:1] != begin:
                        break
                    if key[9:15] in lives:
                        items.append(item)
        values = [unsealed(key[15:] + key[:9], value) for key, value in items]
        return Due(ints_of([k[1:9] for k, _ in items]), [k[15:] for k, _ in items], values)

    def next_timer(self, table: int) -> int | None:
        """The earliest time of a table of timers; None: it has no timer."""
        first = self._next(self._timers, bytes([table]), bytes([table]))
        return None if first is None else int(ints_of([first[0][1:9]])[0])

    def emitted(self, epoch: int, vnodes: Ints) -> Iterator[bytes]:
        """Rows of the epoch, one message at a time, as they were stored."""
        for vnode in vnodes.tolist():
            at = begin = self._emitted_of(epoch, vnode)
            while (item := self._next(self._emitted, at, begin)) is not None:
                yield unsealed(item[0][14:], item[1])
                at = item[0] + b"\0"

    def emitted_count(self, epoch: int, vnodes: Ints) -> int:
        """Number of rows in `emitted`."""
        count = 0
        with self._env.begin(db=self._emitted) as txn, txn.cursor() as cursor:
            for vnode in vnodes.tolist():
                begin = self._emitted_of(epoch, vnode)
                keys = takewhile(lambda key: key.startswith(begin), keys_from(cursor, begin))  # noqa: B023
                count += sum(int.from_bytes(key[-4:]) for key in keys)
        return count

    def _emitted_of(self, epoch: int, vnode: int) -> bytes:
        return epoch.to_bytes(8) + self._life(vnode)

    def _next(self, db: Any, at: bytes, begin: bytes) -> tuple[bytes, bytes] | None:
        with self._env.begin(db=db) as txn, txn.cursor() as cursor:
            if cursor.set_range(at) and cursor.key().startswith(begin):
                return cursor.item()
        return None

    def statistics(self, vnodes: Ints | None = None) -> dict[str, Any]:
        """`entries` and `bytes`, int64 by virtual node; bytes are each entry's share of the file's pages."""
        chosen = self._counts if vnodes is None else self._counts[vnodes]
        with self._env.begin() as txn:
            found = [txn.stat(db) for db in (self._state, self._timers)]
        pages = sum((s["branch_pages"] + s["leaf_pages"] + s["overflow_pages"]) * s["psize"] for s in found)
        each = -(-pages // max(1, found[0]["entries"]))
        return {"entries": chosen.copy(), "bytes": chosen * each}

    # -- changing ---------------------------------------------------------------------------------------------------

    def apply(self, changes: pa.RecordBatch) -> None:
        """Make these changes; idempotent. Raises Exhausted without room: then no entry is changed."""
        self._apply(changes, absent=False)
        self._tracker.changed(changes.column("place").to_pylist)

    def apply_absent(self, chunk: pa.RecordBatch) -> None:
        """Set the entries that are missing here, unless a delta has removed them since the virtual node was dropped.

        A later chunk does not set an entry that an earlier chunk lists as removed.
        """
        self._apply(chunk, absent=True)

    def _apply(self, changes: pa.RecordBatch, absent: bool) -> None:
        if not changes.num_rows:
            return
        _, tables, _ = parsed(*columns.binary(changes.column("place")))
        items = list(zip(changes.column("place").to_pylist(), changes.column("value").to_pylist(), strict=True))
        kinds = changes.column("change").to_numpy()
        offsets = columns.split_by_vnode(changes, self._virtual_nodes)
        with self._writing(2 * changes.nbytes) as txn:
            for vnode in np.flatnonzero(np.diff(offsets)).tolist():
                rows = np.arange(offsets[vnode], offsets[vnode + 1])
                put, gone, kept = (rows[kinds[rows] == kind] for kind in (PUT, REMOVE, EMIT))
                self._put(txn, vnode, [items[i] for i in put.tolist()], tables[put], absent)
                self._remove(txn, vnode, [items[i] for i in gone.tolist()], tables[gone], absent)
                self._emit(txn, vnode, [items[i] for i in kept.tolist()])
                self._write_about(txn, vnode)

    def _put(self, txn: Any, vnode: int, items: list[tuple[bytes, bytes]], tables: Any, absent: bool) -> None:
        life = self._life(vnode)
        timers = tables >= EVENT_TIMERS
        if absent:
            removed = txn.cursor(self._removed)
            keep = [not removed.set_key(life + place) for place, _ in items]
            timers = timers[keep]
            items = [item for item, kept in zip(items, keep, strict=True) if kept]
        items = [(place, sealed(place, value)) for place, value in items]
        state = [(life + place, value) for place, value in items]
        before = txn.stat(self._state)["entries"]
        txn.cursor(self._state).putmulti(state, overwrite=not absent)
        self._counts[vnode] += txn.stat(self._state)["entries"] - before
        if timers.any():
            times = [(_by_time(life, items[i][0]), items[i][1]) for i in np.flatnonzero(timers).tolist()]
            txn.cursor(self._timers).putmulti(sorted(times))

    def _remove(self, txn: Any, vnode: int, items: list[tuple[bytes, bytes]], tables: Any, absent: bool) -> None:
        life = self._life(vnode)
        if absent:
            # The newest changes of a checkpoint come first: an existing entry is newer than this one.
            gone = np.flatnonzero([txn.get(life + place, db=self._state) is None for place, _ in items])
            items, tables = [items[i] for i in gone.tolist()], tables[gone]
        for (place, _), table in zip(items, tables.tolist(), strict=True):
            self._counts[vnode] -= txn.delete(life + place, db=self._state)
            if table >= EVENT_TIMERS:
                txn.delete(_by_time(life, place), db=self._timers)
        if self._learning[vnode]:
            txn.cursor(self._removed).putmulti([(life + place, sealed(place, b"")) for place, _ in items])

    def _emit(self, txn: Any, vnode: int, items: list[tuple[bytes, bytes]]) -> None:
        for place, value in items:
            epoch = int.from_bytes(place[:8])
            if epoch > self.released:
                txn.put(self._emitted_of(epoch, vnode) + place[8:], sealed(place[8:], value), db=self._emitted)

    def release(self, epoch: int) -> None:
        """Delete the rows of epochs up to this one."""
        if epoch <= self.released:
            return
        with self._writing(0) as txn:
            with txn.cursor(self._emitted) as cursor:
                while cursor.first() and int.from_bytes(cursor.key()[:8]) <= epoch:
                    cursor.delete()
            txn.put(_RELEASED, epoch.to_bytes(8), db=self._about)
        self.released = epoch

    def drop(self, vnodes: Ints) -> None:
        """Forget these virtual nodes at once; their bytes leave the disk later. Chunks of a snapshot may come then."""
        self._learning[vnodes] = True
        used = vnodes[self._used[vnodes]]
        if not used.size:
            return
        with self._writing(0) as txn:
            for vnode in used.tolist():
                txn.put(self._life(vnode), _ALL, db=self._litter)
                self._lives[vnode] += 1
                self._counts[vnode] = 0
                self._write_about(txn, vnode, used=False)

    def whole(self, vnodes: Ints) -> None:
        """These virtual nodes are complete: no chunk comes any more, so removed entries need not be remembered."""
        found = vnodes[self._learning[vnodes]]
        self._learning[found] = False
        if self._used[found].any():
            with self._writing(0) as txn:
                for vnode in found[self._used[found]].tolist():
                    txn.put(self._life(vnode), _REMOVED_ONLY, db=self._litter)

    def work(self) -> bool:
        """Remove a piece of garbage; False when there was none."""
        litter = self._next(self._litter, b"\0", b"")
        if litter is None:
            return False
        life, what = litter
        with self._writing(0) as txn:
            gone = _cut(txn.cursor(self._removed), life)
            if what == _ALL and not gone:
                gone = _cut(txn.cursor(self._state), life)
                _, tables, _ = parsed(*texts(gone))
                for i in np.flatnonzero(tables >= EVENT_TIMERS).tolist():
                    txn.delete(_by_time(life, gone[i]), db=self._timers)
            if not gone:
                txn.delete(life, db=self._litter)
        return True

    # -- snapshots --------------------------------------------------------------------------------------------------

    def snapshot(self, vnodes: Ints, chunk_bytes: int = limits.CHUNK_BYTES) -> Iterator[pa.RecordBatch]:
        """All entries of these virtual nodes, in chunks of CHANGES; each chunk is as of its own read.

        Entries that exist from begin to end are yielded. Some chunks have no rows: the caller has other work between
        chunks.
        """
        scan = self._scan()
        yield from scan.emitted(vnodes)
        yield from scan.entries(vnodes, chunk_bytes)

    def changes(self, vnodes: Ints, chunk_bytes: int = limits.CHUNK_BYTES) -> Iterator[pa.RecordBatch]:
        """The snapshot, and for virtual nodes that were dropped first the entries that deltas have removed since
        then."""
        yield from self._scan().removed(vnodes, chunk_bytes)
        yield from self.snapshot(vnodes, chunk_bytes)

    def prior_state(self, vnodes: Ints) -> PriorEntries | None:
        """The present entries of these virtual nodes, until they change; None: they are too many."""
        scan = self._scan()
        places = (piece.column("place").to_pylist() for piece in scan.entries(vnodes, limits.CHUNK_BYTES))
        last = max(scan.epochs(), default=-1)
        return self._tracker.watch(places, lambda: self.released >= last)

    def _scan(self) -> EntryScan:
        return EntryScan(self._env, (self._state, self._emitted, self._removed), self._life, self._virtual_nodes)

    # -- parts ------------------------------------------------------------------------------------------------------

    def _life(self, vnode: int) -> bytes:
        return _LIFE.pack(vnode, int(self._lives[vnode]))

    def _prefixes(self, hashes: Hashes) -> list[bytes]:
        if self._virtual_nodes == 1:
            return [self._life(0)] * hashes.size
        vnodes = (hashes >> np.uint64(names.vnode_shift(self._virtual_nodes))).astype(np.int64).tolist()
        lives = {v: self._life(v) for v in set(vnodes)}
        return [lives[v] for v in vnodes]

    def _write_about(self, txn: Any, vnode: int, used: bool = True) -> None:
        self._used[vnode] = used
        about = _ABOUT.pack(int(self._lives[vnode]), int(self._counts[vnode]), used)
        txn.put(vnode.to_bytes(2), about, db=self._about)

    @contextmanager
    def _writing(self, needed: int) -> Iterator[Any]:
        """A transaction on the file. Raises Exhausted without room; deletions may use the reserve."""
        if needed:
            mapped.require_room(self._directory, needed)
        before = self._lives.copy(), self._counts.copy(), self._used.copy()
        try:
            with self._env.begin(write=True) as txn:
                self._length = entry_file.lengthened(self._env, self._length, self._directory / "data.mdb", needed)
                yield txn
        except BaseException as e:
            self._lives, self._counts, self._used = before
            if isinstance(e, lmdb.MapFullError | lmdb.DiskError | OSError):
                raise Exhausted(f"{self._directory}: could not be written: {e}") from e
            raise


def _by_time(life: bytes, place: bytes) -> bytes:
    """Key of a timer in the order of times."""
    return place[-9:] + life + place[:-9]


def _cut(cursor: Any, life: bytes) -> list[bytes]:
    """Remove up to WORK_ENTRIES of a life; returns their places. Values, of any size, are not read."""
    gone: list[bytes] = []
    while len(gone) < WORK_ENTRIES and cursor.set_range(life) and cursor.key().startswith(life):
        gone.append(cursor.key()[6:])
        cursor.delete()
    return gone
