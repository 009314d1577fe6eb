"""A file of state in a store: parts sorted by hash, an index of the virtual nodes in each, a footer of fixed size.

    | schema | part | part | ... | end |  index  | footer |
    '------- an Arrow stream ----------'

A part is one Arrow message of about 1 MiB. The index has the virtual nodes, the place and the checksum of each part,
and the schema again, so that a reader of a few virtual nodes reads the end of the file and then their parts. Rows of a
part are sorted by hash, parts are in the order in which they were added. Must never return a row of a damaged file.
"""

from __future__ import annotations

import logging
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ferry.contract.errors import Bug, Fault, StateUnavailable, Unreachable
from ferry.contract.manifest import FILE_FORMAT, StoredFile
from ferry.contract.names import vnode_shift
from ferry.durable.copies import Copies
from ferry.durable.location import READ, Location, Missing
from ferry.kernels import columns
from ferry.kernels.grouping import Hashes, Ints

log = logging.getLogger("ferry.durable")

PART_BYTES = 1024 * 1024
"""Size of a part before compression: a trade-off between the cost of reading one row and the size of the index."""

READ_BYTES = 8 * 1024 * 1024
"""Largest request for adjacent parts."""

READS_AHEAD = 2
"""Number of requests ahead; they bound the memory of a reader."""

TAIL_BYTES = 64 * 1024
"""The end of the file is read first: it includes an index of some 1,000 parts."""

COMPRESSION = pa.Codec("zstd", compression_level=1)
"""As cheap as lz4 for state (1.7 ms for a part, both), and a fifth smaller."""

_FOOTER = struct.Struct("<QII8s")
"""bytes of the index, its CRC-32, format, magic"""
_MAGIC = b"FERRYCP1"
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""end of an Arrow stream"""
_INDEX = pa.schema(
    [
        pa.field("first_vnode", pa.int64()),
        pa.field("last_vnode", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("crc32", pa.int64()),
    ]
)


class Corrupt(StateUnavailable):
    """A file of a checkpoint is damaged."""


class _Output:
    """One output file of a writer's parts, with an index of its own."""

    def __init__(self, write: Callable[[pa.Buffer | bytes], object], codec: pa.Codec | None) -> None:
        self._write = write
        self._options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
        self._index: list[tuple[int, ...]] = []
        self.bytes = 0
        self.checksum = 0
        """of the index, once it is written"""

    def write(self, data: pa.Buffer | bytes) -> None:
        self._write(data)
        self.bytes += len(data)

    def add(self, batch: pa.RecordBatch, schema: pa.Schema, first: int, last: int) -> None:
        """Append a part."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema, options=self._options) as writer:
            writer.write_batch(batch)
        stream, head = sink.getvalue(), schema.serialize().size
        message = stream.slice(head, stream.size - head - len(_END))
        self._index.append((first, last, self.bytes, message.size, batch.num_rows, zlib.crc32(message)))
        self.write(message)

    def end(self, metadata: dict[str, str | bytes]) -> None:
        """Write the index and the footer."""
        index = pa.RecordBatch.from_arrays(
            [pa.array([part[i] for part in self._index], pa.int64()) for i in range(len(_INDEX))],
            schema=_INDEX.with_metadata(metadata),
        )
        packed = _stream_of(index)
        self.checksum = zlib.crc32(packed)
        self.write(_END)
        self.write(packed)
        self.write(_FOOTER.pack(len(packed), self.checksum, FILE_FORMAT, _MAGIC))


class PartWriter:
    """A file that is being written. Full parts go into the store; the file is visible when it is finished."""

    def __init__(
        self,
        location: Location,
        name: str,
        operator: int,
        kind: Literal["scan", "changes"],
        epoch: int,
        virtual_nodes: int,
        copies: Copies | None = None,
    ) -> None:
        """`copies`: where the same parts are kept, uncompressed. Raises Unreachable, as every method does."""
        self._location = location
        self._name = name
        self._operator = operator
        self._kind: Literal["scan", "changes"] = kind
        self._epoch = epoch
        self._virtual_nodes = virtual_nodes
        self._schema: pa.Schema | None = None
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._rows = 0
        self._stream = location.output(name)
        self._stored = _Output(self._stream.write, COMPRESSION)
        self._copy = copies.begin(name) if copies is not None else None
        self._copied = _Output(self._copy.write, None) if self._copy is not None else None

    def add(self, batch: pa.RecordBatch) -> int:
        """Add rows with a column `hash`, in any order, all batches of one schema. Returns the bytes written."""
        if batch.num_rows == 0:
            return 0
        batch, begin = batch.replace_schema_metadata(None), self._stored.bytes
        if self._schema is None:
            self._begin(batch.schema)
        elif batch.schema != self._schema:
            raise Bug(f"{self._name} has rows of {self._schema}, and gets rows of {batch.schema}")
        self._gathered.append(batch)
        self._gathered_bytes += batch.nbytes
        if self._gathered_bytes >= PART_BYTES:
            self._write_parts()
        return self._stored.bytes - begin

    def finish(self) -> StoredFile:
        """Complete the file in the store. After any failure it has to be aborted."""
        if self._schema is None:
            self._begin(pa.schema([]))
        self._write_parts()
        assert self._schema is not None
        about = {
            "operator": self._operator,
            "kind": self._kind,
            "epoch": self._epoch,
            "virtual_nodes": self._virtual_nodes,
        }
        metadata: dict[str, str | bytes] = {name: str(value) for name, value in about.items()}
        metadata["schema"] = self._schema.serialize().to_pybytes()
        out = self._stored
        with self._location.reaching("write", self._name):
            out.end(metadata)
            self._stream.close()
        if self._copied is not None and self._copy is not None:
            self._copied.end(metadata)
            self._copy.finish(out.checksum, self._copied.checksum)
        return StoredFile(self._name, out.bytes, out.checksum, self._operator, self._kind, self._epoch, self._rows)

    def abort(self) -> None:
        """Remove the file, unless the store is unreachable."""
        if self._copy is not None:
            self._copy.abort()
        with suppress(Fault), self._location.reaching("write", self._name):
            self._stream.close()  # The unfinished file does not count in any case.
        with suppress(Fault):
            self._location.remove(self._name)

    def _begin(self, schema: pa.Schema) -> None:
        self._schema = schema
        with self._location.reaching("write", self._name):
            self._stored.write(schema.serialize())
        if self._copied is not None:
            self._copied.write(schema.serialize())

    def _write_parts(self) -> None:
        if not self._gathered:
            return
        batch = columns.narrowed(columns.sorted_by_hash(self._gathered), self._gathered[0].schema)
        self._gathered.clear()
        self._gathered_bytes = 0
        pieces = max(1, round(batch.nbytes / PART_BYTES))
        step = -(-batch.num_rows // pieces)
        for begin in range(0, batch.num_rows, step):
            self._write_part(batch.slice(begin, step))

    def _write_part(self, batch: pa.RecordBatch) -> None:
        assert self._schema is not None
        vnodes = _vnodes(batch, self._virtual_nodes)
        ends = int(vnodes[0]), int(vnodes[-1])
        with self._location.reaching("write", self._name):
            self._stored.add(batch, self._schema, *ends)
        if self._copied is not None:
            self._copied.add(batch, self._schema, *ends)
        self._rows += batch.num_rows


def read_parts(
    location: Location, file: StoredFile, vnodes: Ints, copies: Copies | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of these virtual nodes, a part at a time, from a local copy if there is one.

    Raises Corrupt, Missing and Unreachable, each with the URL.
    """
    read = 0
    if copies is not None and (copy := copies.find(file)) is not None:
        try:
            with copy.open() as stream:
                for batch in _parts_of(location, copy.file, stream, vnodes):
                    read += 1
                    yield batch
            return
        except (Corrupt, Missing, Unreachable, OSError) as error:
            log.warning("a copy cannot be read, falling back to the store: %s", error)
    with location.input(file.name) as stream:
        yield from islice(_parts_of(location, file, stream, vnodes), read, None)


def _parts_of(location: Location, file: StoredFile, stream: pa.NativeFile, vnodes: Ints) -> Iterator[pa.RecordBatch]:
    index = _read_index(location, file, stream)
    about = index.schema.metadata
    virtual_nodes = int(about[b"virtual_nodes"])
    wanted = np.zeros(virtual_nodes, np.bool_)
    wanted[vnodes] = True
    schema = pa.ipc.read_schema(pa.py_buffer(about[b"schema"]))
    for offset, data, parts in _fetched(location, file, stream, _reads(index, wanted)):
        for begin, length, checksum in parts:
            message = data.slice(begin - offset, length)
            if message.size != length or zlib.crc32(message) != checksum:
                raise _corrupt(location, file, f"the part at {begin} is damaged (its checksum differs)")
            batch = pa.ipc.read_record_batch(message, schema)
            mask = wanted[_vnodes(batch, virtual_nodes)]
            if mask.any():
                yield batch if mask.all() else batch.filter(pa.array(mask))


def _fetched(
    location: Location, file: StoredFile, stream: pa.NativeFile, reads: Iterator[_Read]
) -> Iterator[tuple[int, pa.Buffer, list[tuple[int, int, int]]]]:
    """The parts read. Further reads are requested ahead, so that the store works while a processor decompresses."""
    with ThreadPoolExecutor(READS_AHEAD, "fetch") as pool:
        requests = deque([(read, pool.submit(stream.read_at, read[1], read[0])) for read in islice(reads, READS_AHEAD)])
        while requests:
            (offset, _, parts), read = requests.popleft()
            with location.reaching(READ, file.name):
                data = pa.py_buffer(read.result())
            requests.extend((read, pool.submit(stream.read_at, read[1], read[0])) for read in islice(reads, 1))
            yield offset, data, parts


def _read_index(location: Location, file: StoredFile, stream: pa.NativeFile) -> pa.RecordBatch:
    with location.reaching(READ, file.name):
        size = stream.size()
        if size != file.bytes:
            raise _corrupt(location, file, f"it has {size:,} bytes, {file.bytes:,} were written")
        begin = max(0, size - TAIL_BYTES)
        tail = stream.read_at(size - begin, begin)
    if len(tail) < _FOOTER.size:
        raise _corrupt(location, file, "it has no footer")
    length, _, file_format, magic = _FOOTER.unpack(tail[-_FOOTER.size :])
    if magic != _MAGIC or length > size - _FOOTER.size:
        raise _corrupt(location, file, "its footer is damaged")
    if file_format > FILE_FORMAT:
        raise _corrupt(location, file, f"its format is {file_format}, this release reads up to {FILE_FORMAT}")
    if length + _FOOTER.size > len(tail):
        with location.reaching(READ, file.name):
            tail = stream.read_at(length + _FOOTER.size, size - length - _FOOTER.size)
    packed = tail[len(tail) - _FOOTER.size - length : -_FOOTER.size]
    if zlib.crc32(packed) != file.checksum:
        raise _corrupt(location, file, "its index differs from the manifest (its checksum differs)")
    return pa.ipc.open_stream(packed).read_next_batch()


def _reads(index: pa.RecordBatch, wanted: npt.NDArray[np.bool_]) -> Iterator[_Read]:
    """Requests to the store: neighbours among the parts with rows of these virtual nodes."""
    before = np.concatenate([[0], np.cumsum(wanted)])
    first, last = (columns.integers(index.column(i)) for i in (0, 1))
    has = before[last + 1] > before[first]
    chosen: list[tuple[int, int, int]] = []
    for offset, size, checksum in zip(
        *(columns.integers(index.column(i))[has].tolist() for i in (2, 3, 5)), strict=True
    ):
        if chosen and (chosen[-1][0] + chosen[-1][1] != offset or offset + size - chosen[0][0] > READ_BYTES):
            yield chosen[0][0], chosen[-1][0] + chosen[-1][1] - chosen[0][0], chosen
            chosen = []
        chosen.append((offset, size, checksum))
    if chosen:
        yield chosen[0][0], chosen[-1][0] + chosen[-1][1] - chosen[0][0], chosen


_Read = tuple[int, int, list[tuple[int, int, int]]]
"""offset and bytes, and the same of each part in it, with its checksum"""


def _vnodes(batch: pa.RecordBatch, virtual_nodes: int) -> Ints:
    hashes: Hashes = batch.column("hash").to_numpy(zero_copy_only=True)
    if virtual_nodes == 1:
        return np.zeros(hashes.size, np.int64)
    return (hashes >> np.uint64(vnode_shift(virtual_nodes))).astype(np.int64)


def _stream_of(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _corrupt(location: Location, file: StoredFile, what: str) -> Corrupt:
    return Corrupt(f"{location.url_of(file.name)}: {what}; begin from another checkpoint")
