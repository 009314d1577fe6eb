"""Well-formed records of one input of an operator: each with its key, the hash of the key, and its slice.

Malformed records are set aside unchanged. Must never depend on the kind of the operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ferry.contract import limits
from ferry.contract.descriptors import NEVER, KeyType, OperatorDescriptor, Span
from ferry.contract.errors import SpecRefused
from ferry.kernels import columns, keys, panes
from ferry.kernels.grouping import Bytes, Hashes, Ints
from ferry.kernels.kinds import key_kind_of, type_of
from ferry.kernels.values import INT_MAX

EVENT_TIME_MAX = limits.WATERMARK_END // 2
"""Event times beyond this (either sign) are malformed: no window arithmetic may overflow."""

Flags = npt.NDArray[np.bool_]
_UNIT_PER_MS = {"s": 0, "ms": 1, "us": 1_000, "ns": 1_000_000}


@dataclass(frozen=True, slots=True)
class KeyedRecords:
    """Unchanged well-formed records with their keys. An integer key is in `keys`, other keys in `offsets` and `data`."""

    batch: pa.RecordBatch
    times: pa.Array
    slices: Ints
    hashes: Hashes
    keys: Ints
    offsets: Ints
    """int64[n + 1] into `data`"""
    data: Bytes
    nulls: Flags | None
    """the records with a null in their key; None: no record"""

    def slice(self, begin: int, count: int) -> KeyedRecords:
        """`count` records from `begin` on, without a copy."""
        end = begin + count
        return KeyedRecords(
            self.batch.slice(begin, count),
            self.times.slice(begin, count),
            self.slices[begin:end],
            self.hashes[begin:end],
            self.keys[begin:end],
            self.offsets[begin : end + 1],
            self.data,
            None if self.nulls is None else self.nulls[begin:end],
        )


class RecordReader:
    """Computes keys and slices of records, and separates malformed records."""

    def __init__(self, descriptor: OperatorDescriptor, wanted: Sequence[str], numbers: Sequence[str]) -> None:
        """`wanted`: required columns besides key and time; `numbers`: columns whose integers are kept."""
        self.descriptor = descriptor
        self._wanted = wanted
        self._numbers = numbers
        self._malformed: list[tuple[pa.RecordBatch, str]] = []

    def read(
        self,
        batch: pa.RecordBatch,
        key_columns: list[str],
        time_column: str | None,
        latest: int,
        span: Span | None = None,
    ) -> tuple[KeyedRecords | None, int]:
        """The well-formed records in `span`, None without such a record; and the greatest event time, also out of `span`.

        Raises SpecRefused for columns of wrong types.
        """
        time_columns = [] if time_column is None else [time_column]
        self._check(batch, [*key_columns, *time_columns, *self._wanted])
        if len(key_columns) != len(self.descriptor.key):
            raise SpecRefused(
                f"operator {self.descriptor.name}: key has {len(self.descriptor.key)} elements, not {key_columns}"
            )
        for name in dict.fromkeys([*key_columns, *time_columns, *self._numbers]):
            batch = self._without(
                batch, _too_great(batch, name), f"column {name!r}: more than a signed 64-bit integer holds"
            )
        elements = [self._key(batch, c, kind) for c, (_, kind) in zip(key_columns, self.descriptor.key, strict=True)]
        times = self._time(batch, time_column) if time_column is not None else pa.array(np.zeros(len(batch), np.int64))
        for bad, reason in _bad(times, latest):
            batch, good = self._without(batch, bad, f"event time {time_column!r} {reason}"), pa.array(~bad)
            elements, times = [e.filter(good) for e in elements], times.filter(good)
        greatest = limits.WATERMARK_NONE
        if batch.num_rows and span is not None and (time_column is not None or span == NEVER):
            greatest = pc.max(times).as_py() if time_column is not None else greatest
            within = pc.and_(pc.greater_equal(times, span.low), pc.less(times, span.high))
            batch, times = batch.filter(within), times.filter(within)
            elements = [element.filter(within) for element in elements]
        if not batch.num_rows:
            return None, greatest
        slices, newest = panes.slices_of(columns.integers(times), self.descriptor.window.pane_ms)
        if time_column is not None:
            greatest = max(greatest, int(newest))
        return self._keyed(batch, elements, times, slices), greatest

    def malformed(self) -> list[tuple[pa.RecordBatch, str]]:
        """Records refused since the last call, with reasons: a null event time, one out of bounds, a too large integer."""
        refused, self._malformed = self._malformed, []
        return refused

    def _keyed(self, batch: pa.RecordBatch, elements: list[pa.Array], times: pa.Array, slices: Ints) -> KeyedRecords:
        if not self.descriptor.windowed:
            slices[:] = 0  # times before 1970 have negative slices
        stored = keys.stored(self.descriptor, elements)
        return KeyedRecords(batch, times, slices, *stored, _nulls(elements))

    def _without(self, batch: pa.RecordBatch, bad: Flags | None, reason: str) -> pa.RecordBatch:
        """Set bad records aside as malformed; returns the other records."""
        if bad is None or not bad.any():
            return batch
        self._malformed.append((batch.filter(pa.array(bad)), reason))
        return batch.filter(pa.array(~bad))

    def _check(self, batch: pa.RecordBatch, wanted: list[str]) -> None:
        missing = [c for c in wanted if c not in batch.schema.names]
        if missing:
            raise SpecRefused(f"operator {self.descriptor.name}: no column {missing} in {batch.schema.names}")

    def _key(self, batch: pa.RecordBatch, name: str, kind: KeyType) -> pa.Array:
        column, wanted = batch.column(name), type_of(kind)
        if kind != "int" and not _fits(column.type, wanted):
            raise SpecRefused(
                f"operator {self.descriptor.name}: key column {name} is {column.type}, a {wanted} is needed"
            )
        return columns.cast(self.descriptor, column, wanted, name)

    def _time(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        column = batch.column(name)
        if not pa.types.is_timestamp(column.type):
            return columns.cast(self.descriptor, column, pa.int64(), name)
        per_ms = _UNIT_PER_MS[column.type.unit]
        raw = column.cast(pa.int64())
        if per_ms == 1:
            return raw
        if per_ms == 0:
            # Clipped seconds stay too great for an event time, so they are refused later.
            clipped = pc.min_element_wise(pc.max_element_wise(raw, -(2**53), skip_nulls=False), 2**53, skip_nulls=False)
            return pc.multiply(clipped, 1000)
        values = np.floor_divide(raw.fill_null(0).to_numpy(zero_copy_only=False), per_ms)
        return pa.array(values, mask=np.asarray(raw.is_null()) if raw.null_count else None)


def _too_great(batch: pa.RecordBatch, name: str) -> Flags | None:
    """The records whose unsigned integer in this column exceeds a signed 64-bit integer; None: no record."""
    column = batch.column(name)
    if column.type != pa.uint64() or (pc.max(column).as_py() or 0) <= INT_MAX:
        return None
    great: Flags = pc.greater(column, pa.scalar(INT_MAX, pa.uint64())).fill_null(False).to_numpy(zero_copy_only=False)
    return great


def _fits(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether keys may be cast to the other type: the values stay the same, or all are null."""
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(wanted):
        return (kind.tz is None) == (wanted.tz is None)
    if pa.types.is_decimal(kind) and pa.types.is_decimal(wanted):
        return True
    return pa.types.is_null(kind) or key_kind_of(kind) == key_kind_of(wanted)


def _nulls(elements: list[pa.Array]) -> Flags | None:
    """The records with a null in their key; None: no record."""
    nulls: Flags | None = None
    for column in elements:
        if column.null_count:
            null = column.is_null().to_numpy(zero_copy_only=False)
            nulls = null if nulls is None else nulls | null
    return nulls


def _bad(times: pa.Array, latest: int) -> Iterator[tuple[Flags, str]]:
    """The records without a time, then the records whose time is out of bounds; each with the reason."""
    if times.null_count:
        yield times.is_null().to_numpy(zero_copy_only=False), "is null"
        times = times.drop_null()
    latest = min(latest, EVENT_TIME_MAX)
    extremes = pc.min_max(times).as_py()
    if extremes["min"] is not None and (extremes["min"] < -EVENT_TIME_MAX or extremes["max"] > latest):
        values = times.to_numpy(zero_copy_only=False)
        ahead = (
            "" if latest == EVENT_TIME_MAX else f", or later than {latest}, which is `ahead` of this machine's clock"
        )
        yield (values < -EVENT_TIME_MAX) | (values > latest), f"is out of bounds{ahead} (milliseconds since 1970)"
