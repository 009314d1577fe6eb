"""The log of prepared deltas of one instance: one file per (commit id, source), and an arena from which deltas can be
sent.

Prepared deltas must survive the process, so that a commit can be finished after a restart: a delta is logged before it
is acknowledged, and deleted when a later step proves that it is final. Files are written under another name and
renamed; no fsync before a clean end, because replicas cover the loss of the machine. A file with a wrong checksum
counts as absent.

    own file      | header | meta | the delta as an Arrow stream |
    in the arena  | header | meta | place | - - - - - - - - - - - > the delta as an Arrow stream

The checksum of a delta in the arena covers its bytes there, too. They are written before the file, and are not reused
until the file is gone and no buffer refers to them (see `arena`).
"""

from __future__ import annotations

import mmap
import re
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import msgpack
import pyarrow as pa

from ferry.contract.errors import Exhausted
from ferry.contract.names import Attempt, CommitId, Step
from ferry.store import mapped
from ferry.store.arena import Arena, Block
from ferry.system import files

_HEADER = struct.Struct("<8sII")
"""magic, checksum of all bytes after it, bytes of the meta document"""
_PLACE = struct.Struct("<QQ")
"""offset and bytes in the arena"""
_MAGIC, _MAGIC_PLACED = b"FERRYLG1", b"FERRYLGA"
_NAME = re.compile(r"^(\d{20})-(\d{6})-(\d{10})-(\d{10})-(.*)\.delta$")
_ARENA = "arena"
_END_BYTES = 8
"""of a stream, after its last message"""


class _Entry(NamedTuple):
    meta: dict[str, Any]
    batch: pa.RecordBatch
    block: pa.Buffer | None
    """in the arena, whose bytes are not reused as long as this object exists"""


class _Read(NamedTuple):
    about: pa.Buffer
    stream: pa.Buffer
    offset: int | None
    """in the arena; None: in the file itself"""


class DeltaLog:
    """Prepared deltas as files below `directory`."""

    def __init__(self, directory: Path, arena_bytes: int = 0) -> None:
        """Open the existing log; unfinished and torn files are removed.

        `arena_bytes`: size of the mapped file for deltas that fit, in whole pages; 0: no arena. Raises Exhausted
        without room.
        """
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._sources: dict[CommitId, dict[str, Path]] = {}
        self._fresh: dict[Path, _Entry] = {}
        """Deltas that this life appended, or found in the arena: not read again from their files. A delta lives for one
        epoch."""
        self._arena = self._open_arena(arena_bytes // mapped.PAGE_BYTES * mapped.PAGE_BYTES)
        for path in sorted(directory.iterdir()):
            if path.suffix == ".tmp":
                path.unlink()
            elif found := _NAME.match(path.name):
                epoch, operator, generation, number = (int(g) for g in found.groups()[:4])
                commit_id = CommitId(Step(epoch, operator), Attempt(generation, number))
                if self._find(path):
                    self._sources.setdefault(commit_id, {})[unquote(found[5])] = path
                else:
                    path.unlink()

    @property
    def arena(self) -> mmap.mmap | None:
        """Memory that may be lent to a device."""
        return None if self._arena is None else self._arena.mapping

    def _open_arena(self, size: int) -> Arena | None:
        """Open the arena. One of another size is replaced, after its deltas have got files of their own."""
        path = self.directory / _ARENA
        there = path.stat().st_size if path.exists() else 0
        if there != size:
            if there:
                old = mapped.open_mapped(path)
                for delta in sorted(self.directory.glob("*.delta")):  # each is replaced in the loop
                    found = _read(delta, old)
                    if found is not None and found.offset is not None:
                        self._write(delta, found.about, found.stream, None)
            path.unlink(missing_ok=True)
        return Arena(path, size) if size else None

    def _find(self, path: Path) -> bool:
        """Whether a complete delta is there; its block in the arena is taken."""
        delta = _read(path, self.arena)
        if delta is None:
            return False
        if delta.offset is not None:
            assert self._arena is not None
            block = self._arena.claim(delta.offset, delta.stream.size)
            if block is None:
                return False
            self._fresh[path] = _Entry(*_decoded(delta.about, block.buffer), block.buffer)
        return True

    def append(self, commit_id: CommitId, source: str, meta: dict[str, Any], batch: pa.RecordBatch) -> pa.Buffer:
        """Log one delta; the same commit id and source again replaces it. Raises Exhausted without room.

        Returns the batch as `RecordBatch.serialize` makes it, in place: in the arena as long as a buffer refers to it.
        """
        (epoch, operator), (generation, number) = commit_id
        name = f"{epoch:020d}-{operator:06d}-{generation:010d}-{number:010d}-{quote(source, safe='')}.delta"
        path = self.directory / name
        block = self._block(batch)
        sink = pa.BufferOutputStream() if block is None else pa.FixedSizeBufferWriter(block.buffer)
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        stream = sink.getvalue() if block is None else block.buffer
        self._write(path, msgpack.packb(meta), stream, None if block is None else block.offset)
        self._sources.setdefault(commit_id, {})[source] = path
        self._fresh[path] = _Entry(meta, batch, None if block is None else stream)
        schema_bytes = 8 + int.from_bytes(stream.slice(4, 4), "little")
        return stream.slice(schema_bytes, stream.size - schema_bytes - _END_BYTES)

    def _block(self, batch: pa.RecordBatch) -> Block | None:
        """A block of the arena for the stream of this batch."""
        if self._arena is None:
            return None
        return self._arena.take(batch.schema.serialize().size + pa.ipc.get_record_batch_size(batch) + _END_BYTES)

    def _write(self, path: Path, about: bytes | pa.Buffer, stream: pa.Buffer, offset: int | None) -> None:
        """`offset`: place of the stream in the arena; None: the stream goes into the file."""
        place = b"" if offset is None else _PLACE.pack(offset, stream.size)
        checksum = _checksum(len(about).to_bytes(4, "little"), about, place, stream)
        parts = [about, stream] if offset is None else [about, place]
        mapped.require_room(self.directory, sum(map(len, parts)))
        try:
            with files.replacing(path) as new, new.open("wb") as f:
                f.write(_HEADER.pack(_MAGIC if offset is None else _MAGIC_PLACED, checksum, len(about)))
                f.writelines(parts)
        except OSError as e:
            raise Exhausted(f"{path}: delta of {stream.size} bytes could not be written: {e}") from e

    def entries(self, commit_id: CommitId) -> list[tuple[str, dict[str, Any], pa.RecordBatch]]:
        """(source, meta, batch) of every delta of this commit id, by source; torn ones are left out."""
        out = []
        for source, path in sorted(self._sources.get(commit_id, {}).items()):
            entry = self._fresh.get(path)
            if entry is not None:
                out.append((source, entry.meta, entry.batch))
            elif (found := _read(path, None)) is not None:
                out.append((source, *_decoded(found.about, found.stream)))
        return out

    def commit_ids(self, step: Step | None = None) -> list[CommitId]:
        """Commit ids (of this step) with a logged delta, in order of steps and attempts."""
        return sorted(commit_id for commit_id in self._sources if step is None or commit_id.step == step)

    def forget(self, upto: Step) -> None:
        """Remove the deltas of all steps up to and including `upto`."""
        for commit_id in [commit_id for commit_id in self._sources if commit_id.step <= upto]:
            for path in self._sources.pop(commit_id).values():
                path.unlink(missing_ok=True)
                self._fresh.pop(path, None)  # after the unlink: then its block may be reused


def _checksum(*parts: bytes | pa.Buffer) -> int:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum


def _read(path: Path, arena: mmap.mmap | None) -> _Read | None:
    """Content of the file, with its bytes in the arena; None when they are damaged."""
    try:
        with pa.memory_map(str(path)) as source:
            content = source.read_buffer()
    except (FileNotFoundError, pa.ArrowInvalid):
        return None
    if content.size < _HEADER.size:
        return None
    magic, checksum, about_bytes = _HEADER.unpack(content.slice(0, _HEADER.size))
    about, rest = content.slice(_HEADER.size, about_bytes), content.slice(min(_HEADER.size + about_bytes, content.size))
    if magic == _MAGIC:
        return _Read(about, rest, None) if _checksum(content.slice(12)) == checksum else None
    if magic != _MAGIC_PLACED or rest.size != _PLACE.size or arena is None:
        return None
    offset, size = _PLACE.unpack(rest)
    if offset + size > len(arena):
        return None
    stream = pa.py_buffer(arena).slice(offset, size)
    return _Read(about, stream, offset) if _checksum(content.slice(12), stream) == checksum else None


def _decoded(about: pa.Buffer, stream: pa.Buffer) -> tuple[dict[str, Any], pa.RecordBatch]:
    return msgpack.unpackb(about), pa.ipc.open_stream(stream).read_next_batch()
