"""Immutable segments of rows: Arrow files sorted by hash, in parts of bounded size, mapped when read.

Named `SEQUENCE.LEVEL.arrow`; written under another name, then renamed. The schema's metadata names the delta of a
segment and the older segments that it replaces, so that a crash between the rename and their removal is harmless.
"""

from __future__ import annotations

import errno
import json
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ferry.contract.errors import Exhausted, StateUnavailable
from ferry.contract.names import vnode_shift
from ferry.kernels import columns
from ferry.kernels.digests import digest
from ferry.kernels.grouping import Hashes, Ints
from ferry.store import mapped
from ferry.store.inventory import Inventory

PART_BYTES = 1024 * 1024
"""Approximate bytes that are read, merged or written at a time: a few milliseconds."""

_METADATA = b"ferry"


@dataclass(frozen=True, slots=True)
class About:
    """The metadata of a segment."""

    epoch: int
    """of the newest delta among its rows; -1: rows of a snapshot only"""
    sources: tuple[str, ...]
    """of that epoch"""
    replaces: tuple[str, ...]
    """names of older segments"""
    last_slice: int
    """no row has a later slice"""


@dataclass(frozen=True, slots=True)
class Adoptions:
    """Segments that were written for operators with other columns, and the columns of them that count.

    A segment has all columns that it was written with for ever. Columns that an operator has lost do not return with a later
    one that has the same names.
    """

    each: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """Segments up to this number have no other columns than these."""

    def shift(self, by: int) -> Adoptions:
        """The same for segments whose numbers are greater."""
        return Adoptions(tuple((number + by, names) for number, names in self.each))

    def names(self, sequence: int, schema: pa.Schema) -> frozenset[str]:
        """The columns of this schema that count in a segment."""
        return frozenset(schema.names).intersection(*(names for number, names in self.each if sequence <= number))

    def __contains__(self, sequence: int) -> bool:
        return any(sequence <= number for number, _ in self.each)


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """One batch, sorted by hash. Its columns are as they were written (`Segment.rows_of`)."""

    stored: pa.RecordBatch
    hashes: Hashes = field(repr=False)

    @staticmethod
    def of(batch: pa.RecordBatch) -> SegmentPart:
        """The part for a batch with rows."""
        return SegmentPart(batch.replace_schema_metadata(None), hashes_of(batch))

    def rows_between(self, begins: Hashes, lasts: Hashes) -> Ints:
        """Row numbers of the hashes in these ranges, which are in order; `lasts` are inclusive."""
        # Only ranges that overlap this part.
        low, high = np.searchsorted(lasts, self.hashes[0]), np.searchsorted(begins, self.hashes[-1], side="right")
        froms = np.searchsorted(self.hashes, begins[low:high])
        return columns.indices(froms, np.searchsorted(self.hashes, lasts[low:high], side="right"))


@dataclass(frozen=True, slots=True)
class Segment:
    """One open file; its parts refer to the mapped file and stay valid when it is unlinked."""

    path: Path
    sequence: int
    level: int
    about: About
    parts: tuple[SegmentPart, ...] = field(repr=False)
    counts: np.ndarray[Any, np.dtype[np.int32]] = field(repr=False)
    """rows of each virtual node"""
    slices: Ints = field(repr=False)
    """distinct slices of its rows, in order"""
    rows: int
    bytes: int
    digest: int
    """digest of its file"""
    adopted_as: tuple[pa.Schema, frozenset[str]] | None = None
    """the schema of its rows here, and the columns with values; others are null. None: as they were written"""

    def parts_between(self, begins: Hashes, lasts: Hashes) -> Sequence[SegmentPart]:
        """Parts that may have rows in these ranges, which are in order."""
        if not begins.size:
            return ()
        first = bisect_left(self.parts, begins[0], key=lambda part: part.hashes[-1])
        return self.parts[first : bisect_right(self.parts, lasts[-1], key=lambda part: part.hashes[0])]

    @property
    def row_bytes(self) -> int:
        """Average bytes of a row, at least 1."""
        return max(1, self.bytes // max(1, self.rows))

    def rows_of(self, part: SegmentPart) -> pa.RecordBatch:
        """The rows of one of its parts."""
        return part.stored if self.adopted_as is None else columns.projected(part.stored, *self.adopted_as)

    def adopted(self, path: Path, sequence: int, schema: pa.Schema, names: frozenset[str]) -> Segment:
        """The same rows under another name, with another schema, in which these columns have values."""
        about = replace(self.about, replaces=())
        return replace(self, path=path, sequence=sequence, about=about, adopted_as=(schema, names))


def path_of(directory: Path, sequence: int, level: int) -> Path:
    """The file of a segment."""
    return directory / f"{sequence:012d}.{level}.arrow"


class Writer:
    """A segment that is written a part at a time. Segments that it replaces stay until it is finished."""

    def __init__(
        self, directory: Path, sequence: int, level: int, schema: pa.Schema, about: About, virtual_nodes: int
    ) -> None:
        self._path = path_of(directory, sequence, level)
        self._unfinished = self._path.with_suffix(".tmp")
        self._about = about
        self._sequence = sequence
        self._level = level
        self._counts = np.zeros(virtual_nodes, np.int32)
        self._slices: set[int] = set()
        self._bytes = self._rows = 0
        self._schema = schema
        described = {
            "epoch": about.epoch,
            "sources": about.sources,
            "replaces": about.replaces,
            "last": about.last_slice,
        }
        with self._full_disk():
            self._sink = pa.OSFile(str(self._unfinished), "wb")
            self._writer = pa.ipc.new_file(self._sink, schema.with_metadata({_METADATA: json.dumps(described)}))

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows sorted by hash, not before earlier ones. Raises Exhausted before the disk is full."""
        step = max(1, PART_BYTES * batch.num_rows // max(1, batch.nbytes))
        with self._full_disk():
            mapped.require_room(self._path.parent, batch.nbytes + 4096)
            for begin in range(0, batch.num_rows, step):
                self._writer.write_batch(columns.narrowed(batch.slice(begin, step), self._schema))
        self._counts += np.diff(columns.split_by_vnode(batch, self._counts.size)).astype(np.int32)
        self._slices.update(np.unique(batch.column("slice").to_numpy(zero_copy_only=True)).tolist())
        self._rows, self._bytes = self._rows + batch.num_rows, self._bytes + batch.nbytes

    def finish(self) -> Segment | None:
        """The segment, with its final name; None, and no file, when it has no rows."""
        with self._full_disk():
            self._writer.close()
            self._sink.close()
        if not self._rows:
            self._unfinished.unlink()
            return None
        os.replace(self._unfinished, self._path)
        slices = np.array(sorted(self._slices), np.int64)
        parts = tuple(SegmentPart.of(batch) for batch in _batches(self._path))
        size, found = self._bytes, _digest(self._path)
        return Segment(
            self._path, self._sequence, self._level, self._about, parts, self._counts, slices, self._rows, size, found
        )

    def _full_disk(self) -> _FullDisk:
        return _FullDisk(self._unfinished)


class _FullDisk:
    """Turns errors of the file system into Exhausted, and removes the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError | Exhausted):
            self._path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise Exhausted(f"{self._path}: could not be written: {error}") from error


def hashes_of(batch: pa.RecordBatch) -> Hashes:
    """The column of hashes."""
    return np.require(batch.column("hash").to_numpy(zero_copy_only=True), np.uint64, ["C", "W"])


def hash_ranges(vnodes: Ints, virtual_nodes: int) -> tuple[Hashes, Hashes]:
    """First and last hash of each of these virtual nodes."""
    if virtual_nodes == 1:
        return np.zeros(vnodes.size, np.uint64), np.full(vnodes.size, np.iinfo(np.uint64).max)
    shift = np.uint64(vnode_shift(virtual_nodes))
    begins = vnodes.astype(np.uint64) << shift
    return begins, begins + ((np.uint64(1) << shift) - np.uint64(1))


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    try:
        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_file(source)
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
    except OSError as e:
        if e.errno == errno.ENOMEM:
            raise mapped.no_maps_left(path) from e
        raise


def _digest(path: Path) -> int:
    try:
        with pa.memory_map(str(path)) as source:
            return digest(np.frombuffer(source.read_buffer(), np.uint8))
    except OSError as e:
        if e.errno == errno.ENOMEM:
            raise mapped.no_maps_left(path) from e
        raise


def read(path: Path, virtual_nodes: int, expected: int) -> Segment:
    """Open a segment; raises StateUnavailable when it is damaged."""
    sequence, level, _ = path.name.split(".")
    try:
        if _digest(path) != expected:
            raise ValueError("its content is damaged")
        batches = list(_batches(path))
        described = json.loads(batches[0].schema.metadata[_METADATA])
        about = About(described["epoch"], tuple(described["sources"]), tuple(described["replaces"]), described["last"])
    except (pa.ArrowInvalid, IndexError, KeyError, TypeError, ValueError) as e:
        raise StateUnavailable(f"{path}: not a segment that can be read ({e}); warm this instance again") from e
    counts = np.zeros(virtual_nodes, np.int32)
    slices: set[int] = set()
    for batch in batches:
        counts += np.diff(columns.split_by_vnode(batch, virtual_nodes)).astype(np.int32)
        slices.update(np.unique(batch.column("slice").to_numpy(zero_copy_only=True)).tolist())
    parts = tuple(SegmentPart.of(batch) for batch in batches)
    rows, size = sum(b.num_rows for b in batches), sum(b.nbytes for b in batches)
    return Segment(
        path, int(sequence), int(level), about, parts, counts, np.array(sorted(slices), np.int64), rows, size, expected
    )


def read_all(
    directory: Path, virtual_nodes: int, inventory: Inventory, adoptions: Adoptions, schema: pa.Schema
) -> list[Segment]:
    """All segments in order; unfinished files and replaced segments are removed.

    Raises StateUnavailable when a segment is missing or damaged.
    """
    for path in directory.glob("*.tmp"):
        path.unlink()
    there = {int(path.name.partition(".")[0]): path for path in sorted(directory.glob("*.arrow"))}
    if missing := inventory.digests.keys() - there.keys():
        raise StateUnavailable(f"{directory}: segment {min(missing)} is missing; warm this instance again")
    for number in inventory.require_known(there):
        there.pop(number).unlink()
    segments = [read(path, virtual_nodes, inventory.digests[number]) for number, path in there.items()]
    segments = [
        s.adopted(s.path, s.sequence, schema, adoptions.names(s.sequence, schema)) if s.sequence in adoptions else s
        for s in segments
    ]
    replaced = {name for segment in segments for name in segment.about.replaces}
    inventory.remove(segment.sequence for segment in segments if segment.path.name in replaced)
    for segment in segments:
        if segment.path.name in replaced:
            segment.path.unlink()
    return [s for s in segments if s.path.name not in replaced]


def joined_about(inputs: Sequence[Segment]) -> About:
    """Metadata of the merge of these segments."""
    epoch = max(s.about.epoch for s in inputs)
    sources = tuple(sorted({source for s in inputs if s.about.epoch == epoch for source in s.about.sources}))
    replaces = tuple(s.path.name for s in inputs)
    return About(epoch, sources, replaces, max(s.about.last_slice for s in inputs))
