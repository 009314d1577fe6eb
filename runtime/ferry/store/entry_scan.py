"""Scans of all entries of virtual nodes in pieces, while they change: chunks of CHANGES, each as of its own read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from ferry.contract import names
from ferry.kernels.changes import EMIT, PUT, REMOVE, changes_of
from ferry.kernels.grouping import Ints
from ferry.kernels.places import parsed, texts
from ferry.store.sealing import unsealed

SCAN_VNODES = 256
"""Largest number of virtual nodes per chunk of a snapshot: the caller has other work between chunks."""

Items = list[tuple[bytes, bytes]]
"""Places and values."""


class EntryScan:
    """Iterators over the file of an `EntryStore`. `life` returns the present key prefix of a virtual node."""

    def __init__(self, env: Any, dbs: tuple[Any, Any, Any], life: Callable[[int], bytes], virtual_nodes: int) -> None:
        """`dbs`: state, emitted and removed."""
        self._env = env
        self._state, self._emitted, self._removed = dbs
        self._life = life
        self._virtual_nodes = virtual_nodes

    def entries(self, vnodes: Ints, chunk_bytes: int) -> Iterator[pa.RecordBatch]:
        """Entries and timers."""
        return (_chunk(found, PUT) for found in self._pieces(self._state, vnodes, chunk_bytes))

    def removed(self, vnodes: Ints, chunk_bytes: int) -> Iterator[pa.RecordBatch]:
        """Entries that deltas have removed and that were not set again."""
        for found in self._pieces(self._removed, vnodes, chunk_bytes):
            with self._env.begin(db=self._state) as txn:
                gone = [item for item in found if txn.get(self._of(item[0]) + item[0]) is None]
            yield _chunk(gone, REMOVE)

    def _of(self, place: bytes) -> bytes:
        hashes, _, _ = parsed(*texts([place]))
        vnode = 0 if self._virtual_nodes == 1 else int(hashes[0]) >> names.vnode_shift(self._virtual_nodes)
        return self._life(vnode)

    def _pieces(self, db: Any, vnodes: Ints, chunk_bytes: int) -> Iterator[Items]:
        batch: Items = []
        room = chunk_bytes
        for number, vnode in enumerate(vnodes.tolist()):
            at: bytes | None = b""
            while at is not None:
                piece, at = self._piece(db, vnode, at, room)
                batch += piece
                room -= sum(len(place) + len(value) for place, value in piece)
                if room <= 0 or at is not None or number % SCAN_VNODES == SCAN_VNODES - 1:
                    yield batch
                    batch, room = [], chunk_bytes
        yield batch

    def _piece(self, db: Any, vnode: int, at: bytes, room: int) -> tuple[Items, bytes | None]:
        """Entries from this place on, as many as fit, and where to go on."""
        life = self._life(vnode)
        items: Items = []
        with self._env.begin(db=db) as txn, txn.cursor() as cursor:
            if cursor.set_range(life + at):
                for key, value in cursor.iternext():
                    if not key.startswith(life):
                        break
                    if room <= 0:
                        return items, key[6:]
                    items.append((key[6:], unsealed(key[6:], value)))
                    room -= len(key) - 6 + len(value)
        return items, None

    def emitted(self, vnodes: Ints) -> Iterator[pa.RecordBatch]:
        """Rows that are held until their epoch is released."""
        shift = names.vnode_shift(self._virtual_nodes)
        for epoch in self.epochs():
            for vnode in vnodes.tolist():
                at = begin = epoch.to_bytes(8) + self._life(vnode)
                while (item := self._next(at, begin)) is not None:
                    at = item[0] + b"\0"
                    hash_ = vnode << shift if shift < 64 else 0
                    place = item[0][:8] + item[0][14:]
                    value = unsealed(item[0][14:], item[1])
                    yield changes_of(np.array([hash_], np.uint64), EMIT, [place], [value])

    def _next(self, at: bytes, begin: bytes) -> tuple[bytes, bytes] | None:
        with self._env.begin(db=self._emitted) as txn, txn.cursor() as cursor:
            if cursor.set_range(at) and cursor.key().startswith(begin):
                return cursor.item()
        return None

    def epochs(self) -> list[int]:
        """Epochs that have rows."""
        found: list[int] = []
        with self._env.begin(db=self._emitted) as txn, txn.cursor() as cursor:
            while cursor.set_range(((found[-1] if found else -1) + 1).to_bytes(8)):
                found.append(int.from_bytes(cursor.key()[:8]))
        return found


def keys_from(cursor: Any, at: bytes) -> Iterator[bytes]:
    """Keys from this one on, in order."""
    return cursor.iternext(values=False) if cursor.set_range(at) else iter(())


def _chunk(found: Items, change: int) -> pa.RecordBatch:
    places = [place for place, _ in found]
    hashes, _, _ = parsed(*texts(places))
    return changes_of(hashes, change, places, [value for _, value in found])
