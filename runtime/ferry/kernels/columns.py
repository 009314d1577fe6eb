"""Arrow batches as numpy arrays and back: keys, partials, ranges of virtual nodes.

Arrow's buffers are read-only; compiled functions get writable arrays, so that each is compiled once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferry.contract import names
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.errors import Exhausted, SpecRefused
from ferry.kernels import hashing, schemas, values
from ferry.kernels.aggregates import state_columns, words_of
from ferry.kernels.grouping import (
    CELLS,
    COUNT,
    HASH,
    KEY,
    NO_BYTES,
    NO_INTS,
    SLICE,
    Bytes,
    Hashes,
    Ints,
    heap_keys,
    order_by_hash,
)
from ferry.kernels.parts import add_records

BINARY_BYTES_MAX = 2**31 - 1
"""Arrow's `binary` has 32-bit offsets, so the keys of one batch together stay below this."""


VALUE_SEED = np.uint64(0x9E3779B97F4A7C15)
"""Without it the hash of 0 and the hash of an empty string would be 0."""


@dataclass(frozen=True, slots=True)
class PartialArrays:
    """Rows of `schemas.partials_schema` as arrays; `keys` or (`offsets`, `data`) is in use, by the type of the key.

    Slices, hashes, integer keys and n are Arrow's memory, read-only.
    """

    slices: Ints
    hashes: Hashes
    keys: Ints
    offsets: Ints
    data: Bytes
    n: Ints
    cells: Ints
    """int64[rows, k], floats by bit pattern"""


def integers(column: pa.Array) -> Ints:
    """An int64 column without nulls as a writable array."""
    return np.require(column.to_numpy(zero_copy_only=True), np.int64, ["C", "W"])


def cast(descriptor: OperatorDescriptor, column: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """The column as this type. Raises SpecRefused with its name when the cast fails."""
    if column.type == kind:
        return column
    try:
        return pc.cast(column, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        raise SpecRefused(f"operator {descriptor.name}: column {name} is {column.type}, {kind} is needed: {e}") from e


def binary(column: pa.Array) -> tuple[Ints, Bytes]:
    """A binary or string column without nulls, large or not, as (offsets int64[n + 1] into data, data)."""
    if len(column) == 0:
        return np.zeros(1, np.int64), NO_BYTES
    _, offsets_buffer, data_buffer = column.buffers()
    width = np.int64 if pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type) else np.int32
    at = np.dtype(width).itemsize * column.offset
    offsets = np.frombuffer(offsets_buffer, width, len(column) + 1, at).astype(np.int64)
    begin, end = int(offsets[0]), int(offsets[-1])
    if data_buffer is None or begin == end:
        return np.zeros(len(column) + 1, np.int64), NO_BYTES
    offsets -= begin
    return offsets, np.frombuffer(data_buffer, np.uint8, end - begin, begin).copy()


def binary_array(offsets: Ints, data: Bytes, kind: pa.DataType, valid: pa.Buffer | None = None) -> pa.Array:
    """Inverse of `binary`, where `valid` is Arrow's bitmap of non-null values; raises Exhausted above 2 GiB."""
    if data.size > BINARY_BYTES_MAX:
        raise Exhausted(f"{data.size} bytes of keys in one batch, {BINARY_BYTES_MAX} are possible: use smaller batches")
    buffers = [valid, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(kind, offsets.size - 1, buffers)


def value_hashes(column: pa.Array) -> Hashes:
    """64-bit hashes of values: equal values have equal hashes, whatever the column's width (decimals of one scale); the
    hash of a null is arbitrary. See `hashable`.

    Fixed for ever, as hashes of keys are: stored state depends on them.
    """
    kind = column.type
    assert hashable(kind), kind
    if pa.types.is_dictionary(kind):
        return value_hashes(column.dictionary_decode())
    if pa.types.is_floating(kind):
        floats = same_floats(column.cast(pa.float64())).fill_null(0.0)
        words = floats.to_numpy(zero_copy_only=False).view(np.uint64)
    elif pa.types.is_date32(kind):
        return value_hashes(column.cast(pa.int32()))
    elif pa.types.is_decimal(kind):
        column = column.cast(pa.decimal128(values.DIGITS_MAX, kind.scale))
        high, low = (values.cells(column, word).to_numpy(zero_copy_only=False) for word in (0, 1))
        words = hashing.hash_ints(high) ^ low.view(np.uint64)
    elif _is_bytes(kind):
        words = hashing.hash_bytes(*binary(column if is_text(kind) else column.cast(pa.binary())))
    else:
        words = column.cast(pa.int64(), safe=False).fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64)
    return hashing.hash_ints((words ^ VALUE_SEED).view(np.int64))


def same_floats(column: pa.Array) -> pa.Array:
    """Floats in which equal values have equal bits: -0.0 becomes 0.0, and all NaN become one."""
    zero, nan = (pa.scalar(value, column.type) for value in (0.0, np.nan))
    return pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))


def hashable(kind: pa.DataType) -> bool:
    """Whether `value_hashes` accepts a column of this type."""
    if pa.types.is_dictionary(kind):
        return hashable(kind.value_type)
    return values.value_type(kind) is not None or pa.types.is_date(kind) or _is_bytes(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    views = pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)
    return views or is_text(kind) or pa.types.is_fixed_size_binary(kind)


def to_partials(descriptor: OperatorDescriptor, batch: pa.RecordBatch) -> PartialArrays:
    """The arrays of one batch of partials."""
    cells = np.empty((batch.num_rows, words_of(state_columns(descriptor))), np.int64)
    fill_cells(descriptor, batch.columns[4:], cells)
    slices, hashes, n = (batch.column(i).to_numpy() for i in (0, 1, 3))
    if descriptor.int_key:
        return PartialArrays(slices, hashes, batch.column(2).to_numpy(), NO_INTS, NO_BYTES, n, cells)
    return PartialArrays(slices, hashes, NO_INTS, *binary(batch.column(2)), n, cells)


def cell_arrays(descriptor: OperatorDescriptor, cells: Ints) -> list[pa.Array]:
    """State columns int64[rows, k] as Arrow arrays of their types."""
    columns, at = [], 0
    for column in state_columns(descriptor):
        columns.append(column.array(cells[:, at : at + column.words]))
        at += column.words
    return columns


def fill_cells(descriptor: OperatorDescriptor, arrays: Sequence[pa.Array], cells: Ints) -> None:
    """Inverse of `cell_arrays`."""
    at = 0
    for column, array in zip(state_columns(descriptor), arrays, strict=True):
        cells[:, at : at + column.words] = column.cells(array)
        at += column.words


def key_array(descriptor: OperatorDescriptor, keys: Ints, heap: Bytes) -> pa.Array:
    """The key column: integer keys unchanged, else the keys at these heap offsets."""
    keys = np.ascontiguousarray(keys)
    if descriptor.int_key:
        return pa.array(keys)
    offsets, data = heap_keys(heap, keys)
    return binary_array(offsets, data, pa.binary())


def from_groups(descriptor: OperatorDescriptor, rows: Ints, heap: Bytes) -> pa.RecordBatch:
    """Groups (ferry.kernels.grouping) as a batch of partials, in the order given; a copy of them."""
    if rows.shape[0] == 1:
        rows = rows.copy()  # Its columns are contiguous already, and Arrow would not copy them.
    hashes = np.ascontiguousarray(rows[:, HASH]).view(np.uint64)
    columns = [
        pa.array(np.ascontiguousarray(rows[:, SLICE])),
        pa.array(hashes),
        key_array(descriptor, rows[:, KEY], heap),
        pa.array(np.ascontiguousarray(rows[:, COUNT])),
        *cell_arrays(descriptor, rows[:, CELLS:]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schemas.partials_schema(descriptor))


def empty(schema: pa.Schema) -> pa.RecordBatch:
    """A batch of no rows."""
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def projected(rows: pa.RecordBatch, schema: pa.Schema, among: Collection[str] | None = None) -> pa.RecordBatch:
    """The rows with the columns of a schema. A column is null if the rows lack it, or `among` does not name it."""
    names = {name for name in rows.schema.names if among is None or name in among}
    found = [rows.column(f.name) if f.name in names else pa.nulls(rows.num_rows, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(found, schema=schema)


_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


def is_text(kind: pa.DataType) -> bool:
    """Whether the type has offsets, large or not."""
    return kind in _LARGE or kind in _LARGE.values()


def concatenated(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of all; its texts get 64-bit offsets when 32 bits may be too few (see `narrowed`)."""
    if len(batches) > 1 and sum(b.nbytes for b in batches) > BINARY_BYTES_MAX:
        schema = pa.schema([f.with_type(_LARGE.get(f.type, f.type)) for f in batches[0].schema])
        batches = [b.cast(schema) for b in batches]
    return pa.concat_batches(batches)


def sorted_by_hash(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """All rows as one batch in the order of their hashes; rows with equal hashes stay in order."""
    whole = concatenated(batches)
    hashes = np.require(whole.column("hash").to_numpy(zero_copy_only=True), np.uint64, ["C", "W"])
    return whole if bool(np.all(hashes[:-1] <= hashes[1:])) else whole.take(pa.array(order_by_hash(hashes)))


def narrowed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the types of the schema. Raises Exhausted when it has too much text for them."""
    if batch.schema.equals(schema):
        return batch
    try:
        return batch.cast(schema)
    except pa.ArrowInvalid as e:
        raise Exhausted(
            f"{batch.nbytes} bytes of rows of one epoch for one instance, {BINARY_BYTES_MAX} are possible in a column: "
            "lower epoch.maxRows, or give the job more instances"
        ) from e


def split_by_vnode(batch: pa.RecordBatch, virtual_nodes: int) -> Ints:
    """Row offsets int64[V + 1]: vnode v has rows [v] up to [v + 1]. The batch must be sorted by hash."""
    hashes = batch.column("hash").to_numpy(zero_copy_only=True)
    offsets = np.zeros(virtual_nodes + 1, np.int64)
    offsets[-1] = hashes.size
    if virtual_nodes > 1:
        bounds = np.arange(1, virtual_nodes, dtype=np.uint64) << np.uint64(names.vnode_shift(virtual_nodes))
        offsets[1:-1] = np.searchsorted(hashes, bounds, side="left")
    return offsets


def records_by_vnode(batches: Sequence[pa.RecordBatch], virtual_nodes: int) -> Ints:
    """Number of records behind these rows of fragments, int64[V]: a row of partials has the number of its records."""
    counts = np.zeros(virtual_nodes, np.int64)
    for batch in batches:
        n = batch.column("n").to_numpy() if "n" in batch.schema.names else NO_INTS
        add_records(batch.column("hash").to_numpy(), n, virtual_nodes.bit_length() - 1, counts)
    return counts


def range_indices(offsets: Ints, vnodes: Ints) -> Ints:
    """Row numbers of these vnodes' ranges, concatenated."""
    return indices(offsets[vnodes], offsets[vnodes + 1])


def indices(begins: Ints, ends: Ints) -> Ints:
    """The numbers of these ranges, concatenated."""
    lengths = ends - begins
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if ends.size else 0
    return np.repeat(begins - ends + lengths, lengths) + np.arange(total)


def take_vnodes(batch: pa.RecordBatch, offsets: Ints, vnodes: Ints | Sequence[int]) -> pa.RecordBatch:
    """The ranges of these vnodes, concatenated; without a copy when they are adjacent and in order."""
    wanted = np.asarray(vnodes, np.int64)
    if wanted.size == 0:
        return batch.slice(0, 0)
    if wanted[-1] - wanted[0] == wanted.size - 1 and bool(np.all(np.diff(wanted) == 1)):
        begin = int(offsets[wanted[0]])
        return batch.slice(begin, int(offsets[wanted[-1] + 1]) - begin)
    return batch.take(pa.array(range_indices(offsets, wanted)))


class Shares(NamedTuple):
    """Rows of a batch by owner, gathered once."""

    rows: pa.RecordBatch
    numbers: Ints
    """of the rows, in the batch"""
    bounds: list[int]

    def of(self, owner: int) -> pa.RecordBatch:
        """The rows of an owner."""
        return self.rows.slice(self.bounds[owner], self.bounds[owner + 1] - self.bounds[owner])


def shares_of(batch: pa.RecordBatch, offsets: Ints, owners: Sequence[Sequence[int]]) -> Shares:
    """The rows of the virtual nodes of each owner, one owner after the other."""
    vnodes = np.concatenate([NO_INTS, *(np.asarray(owned, np.int64) for owned in owners)])
    numbers = range_indices(offsets, vnodes)
    ends = np.append(0, np.cumsum(np.diff(offsets)[vnodes]))
    bounds = ends[np.cumsum([0, *map(len, owners)])].tolist()
    in_order = np.array_equal(numbers, np.arange(numbers.size))
    return Shares(batch.slice(0, numbers.size) if in_order else batch.take(pa.array(numbers)), numbers, bounds)


def slice_groups(slices: Ints, pane_ms: int) -> tuple[Ints, Ints, Ints]:
    """Distinct slices in order, their bounds int64[d + 1] in `order`, and the rows by slice (stable)."""
    if slices.size == 0:
        return NO_INTS, np.zeros(1, np.int64), NO_INTS
    low = int(slices.min())
    high = int(slices.max())
    if low == high:
        return slices[:1].copy(), np.array([0, slices.size]), np.arange(slices.size)
    span = (high - low) // pane_ms + 1
    if span < 1 << 16:
        # numpy sorts 16-bit integers by radix, in linear time.
        dense = ((slices - low) // pane_ms).astype(np.uint16)
        order = np.argsort(dense, kind="stable")
        counts = np.bincount(dense, minlength=int(span))
        present = np.flatnonzero(counts)
        distinct, sizes = low + present * pane_ms, counts[present]
    else:
        distinct, inverse, sizes = np.unique(slices, return_inverse=True, return_counts=True)
        order = np.argsort(inverse, kind="stable")
    bounds = np.zeros(distinct.size + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    return distinct, bounds, order


def taken(values: pa.Array, places: pa.Array) -> pa.Array:
    """Values at these places, null for a null place. Arrow cannot take from views, nor from types that contain them."""
    try:
        return values.take(places)
    except pa.ArrowNotImplementedError:
        each = (values.slice(i.as_py(), 1) if i.is_valid else pa.nulls(1, values.type) for i in places)
        return pa.concat_arrays([*each, pa.nulls(0, values.type)])
