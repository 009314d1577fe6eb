"""What one ingest task contributes: partial aggregates by (slice, key), or rows with slice, hash and key.

Runs inside the Spark task. Imports contract and kernels; never pyspark, never a socket. Nothing is routed here: the helper
beside the task sorts by virtual node. Memory is bounded: a full table becomes an output batch.
"""

from __future__ import annotations

from typing import assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ferry.contract import limits
from ferry.contract.descriptors import Aggregate, KeyType, Number, OperatorDescriptor
from ferry.contract.errors import SpecRefused
from ferry.kernels import aggregates, columns, hashing, panes, schemas
from ferry.kernels.aggregates import INT_MAX, NUMBER_TYPES, StateColumn, merge_codes, reads_values
from ferry.kernels.grouping import NO_BYTES, NO_INTS, Bytes, Groups, Hashes, Ints

GROUPS_MAX = 1 << 18
"""Groups of one task before they become an output batch: 8 MiB for count()."""

KEY_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of keys of one task before they become an output batch."""

EVENT_TIME_MAX = limits.WATERMARK_END // 2
"""Event times beyond this (either sign) are malformed: no window arithmetic may overflow."""

Has = np.bool_ | npt.NDArray[np.bool_]

_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_dictionary)
_UNIT_PER_MS = {"s": 0, "ms": 1, "us": 1_000, "ns": 1_000_000}


class Fragmenter:
    """Turns the record batches of one task and one input into fragments of one operator."""

    def __init__(self, descriptor: OperatorDescriptor, side: int = 0, groups_max: int = GROUPS_MAX) -> None:
        """`side` is 0 or 1: left or right input of a join."""
        assert side in (0, 1) and (side == 0 or descriptor.kind == "join"), (descriptor.kind, side)
        self.descriptor = descriptor
        self.side = side
        self.rows = 0
        """records taken into fragments"""
        self.rows_malformed = 0
        self.event_time_max = limits.WATERMARK_NONE
        self._full: list[pa.RecordBatch] = []
        self._malformed: list[pa.RecordBatch] = []
        if descriptor.kind == "aggregate":
            self._groups = Groups(merge_codes(descriptor), not descriptor.int_key, groups_max, KEY_BYTES_MAX)

    def add(
        self, batch: pa.RecordBatch, key_columns: list[str], time_column: str, latest: int = EVENT_TIME_MAX
    ) -> None:
        """Take records; event time is int64 milliseconds or a timestamp, `latest` at most.

        Raises SpecRefused for columns that do not fit.
        """
        self._check(batch, [*key_columns, time_column, *self._sources()])
        if len(key_columns) != len(self.descriptor.key):
            raise SpecRefused(
                f"operator {self.descriptor.name}: key has {len(self.descriptor.key)} elements, not {key_columns}"
            )
        batch = self._without(batch, self._too_great(batch, [*key_columns, time_column]))
        keys = [self._key(batch, c, kind) for c, (_, kind) in zip(key_columns, self.descriptor.key, strict=True)]
        times = self._time(batch, time_column)
        bad = self._bad(keys, times, latest)
        if bad is not None:
            batch, good = self._without(batch, bad), pa.array(~bad)
            keys, times = [k.filter(good) for k in keys], times.filter(good)
        if batch.num_rows:
            self._take(batch, keys, times)

    def _without(self, batch: pa.RecordBatch, bad: npt.NDArray[np.bool_] | None) -> pa.RecordBatch:
        """Set these records aside as malformed; the others."""
        if bad is None or not bad.any():
            return batch
        self._malformed.append(batch.filter(pa.array(bad)))
        self.rows_malformed += int(bad.sum())
        return batch.filter(pa.array(~bad))

    def _take(self, batch: pa.RecordBatch, keys: list[pa.Array], times: pa.Array) -> None:
        slices, greatest = panes.slices_of(columns.integers(times), self.descriptor.window.pane_ms)
        ints, offsets, data = NO_INTS, NO_INTS, NO_BYTES
        if self.descriptor.int_key:
            ints = columns.integers(keys[0])
            hashes = hashing.hash_ints(ints)
        else:
            offsets, data = columns.encode_keys(keys, [kind for _, kind in self.descriptor.key])
            hashes = hashing.hash_bytes(offsets, data)
        if self.descriptor.kind == "aggregate":
            self._aggregate(batch, times, slices, hashes, ints, offsets, data)
        else:
            self._full.append(self._join_rows(batch, slices, hashes, ints, offsets, data))
        self.event_time_max = max(self.event_time_max, int(greatest))
        self.rows += batch.num_rows

    def take_full(self) -> list[pa.RecordBatch]:
        """Output batches that are complete: call it after every `add`, for they are kept in memory until then."""
        full, self._full = self._full, []
        return full

    def drain(self) -> list[pa.RecordBatch]:
        """All remaining output; the fragmenter is empty afterwards."""
        if self.descriptor.kind == "aggregate":
            self._flush()
        return self.take_full()

    def malformed(self) -> pa.Table | None:
        """Records refused since the last call: a null key or event time, a time out of bounds, an integer beyond 64 bits."""
        refused, self._malformed = self._malformed, []
        return pa.Table.from_batches(refused) if refused else None

    def _sources(self) -> list[str]:
        if self.descriptor.kind == "aggregate":
            return [c for a in self.descriptor.aggregates for c in (a.column, a.by) if c is not None]
        side = self.descriptor.left if self.side == 0 else self.descriptor.right
        assert side is not None
        return [source for _, source, _ in side.columns]

    def _check(self, batch: pa.RecordBatch, wanted: list[str]) -> None:
        missing = [c for c in wanted if c not in batch.schema.names]
        if missing:
            raise SpecRefused(f"operator {self.descriptor.name}: no column {missing} in {batch.schema.names}")

    def _cast(self, column: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
        if column.type == kind:
            return column
        try:
            return pc.cast(column, kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
            raise SpecRefused(
                f"operator {self.descriptor.name}: column {name} is {column.type}, {kind} is needed: {e}"
            ) from e

    def _key(self, batch: pa.RecordBatch, name: str, kind: KeyType) -> pa.Array:
        column = batch.column(name)
        if kind == "string" and not any(is_text(column.type) for is_text in _TEXTS):
            raise SpecRefused(
                f"operator {self.descriptor.name}: key column {name} is {column.type}, a string is needed"
            )
        return self._cast(column, pa.int64() if kind == "int" else pa.string(), name)

    def _time(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        column = batch.column(name)
        if not pa.types.is_timestamp(column.type):
            return self._cast(column, pa.int64(), name)
        per_ms = _UNIT_PER_MS[column.type.unit]
        raw = column.cast(pa.int64())
        if per_ms == 1:
            return raw
        if per_ms == 0:
            # Seconds too great for milliseconds stay too great, so that they are refused below.
            clipped = pc.min_element_wise(pc.max_element_wise(raw, -(2**53), skip_nulls=False), 2**53, skip_nulls=False)
            return pc.multiply(clipped, 1000)
        values = np.floor_divide(raw.fill_null(0).to_numpy(zero_copy_only=False), per_ms)
        return pa.array(values, mask=np.asarray(raw.is_null()) if raw.null_count else None)

    def _too_great(self, batch: pa.RecordBatch, names: list[str]) -> npt.NDArray[np.bool_] | None:
        """Which records have an unsigned integer that no signed one can hold, where one is needed."""
        if self.descriptor.kind == "aggregate":
            names = names + [c for a in self.descriptor.aggregates if reads_values(a) for c in (a.column, a.by) if c]
        bad: npt.NDArray[np.bool_] | None = None
        for column in (batch.column(name) for name in dict.fromkeys(names)):
            if column.type == pa.uint64() and (pc.max(column).as_py() or 0) > INT_MAX:
                great = pc.greater(column, pa.scalar(INT_MAX, pa.uint64())).fill_null(False)
                values = great.to_numpy(zero_copy_only=False)
                bad = values if bad is None else bad | values
        return bad

    def _bad(self, keys: list[pa.Array], times: pa.Array, latest: int) -> npt.NDArray[np.bool_] | None:
        bad: npt.NDArray[np.bool_] | None = None
        for column in (*keys, times):
            if column.null_count:
                null = column.is_null().to_numpy(zero_copy_only=False)
                bad = null if bad is None else bad | null
        latest = min(latest, EVENT_TIME_MAX)
        extremes = pc.min_max(times).as_py()
        if extremes["min"] is not None and (extremes["min"] < -EVENT_TIME_MAX or extremes["max"] > latest):
            values = times.fill_null(0).to_numpy(zero_copy_only=False)
            absurd = (values < -EVENT_TIME_MAX) | (values > latest)
            bad = absurd if bad is None else bad | absurd
        return bad

    def _number(self, batch: pa.RecordBatch, name: str | None, number: Number, valid: pa.Array, neutral: float) -> Ints:
        """A column's cells, with `neutral` where the record is left out."""
        assert name is not None
        column = batch.column(name)
        if number == "int" and pa.types.is_floating(column.type):
            raise SpecRefused(
                f"operator {self.descriptor.name}: column {name} is {column.type}: declare the aggregate as float"
            )
        kind = NUMBER_TYPES[number]
        if number == "float" and pa.types.is_integer(column.type):
            column = column.cast(kind, safe=False)  # A mean of great integers is as exact as a double is.
        column = self._cast(column, kind, name)
        if valid is not None:
            column = pc.if_else(valid, column, pa.scalar(neutral, kind))
        values: npt.NDArray[np.int64] = column.to_numpy(zero_copy_only=True).view(np.int64)
        return values

    def _cells(self, batch: pa.RecordBatch, times: pa.Array) -> Ints:
        cells = np.empty((batch.num_rows, len(aggregates.state_types(self.descriptor))), np.int64)
        if aggregates.flagged(self.descriptor):
            cells[:, -1] = 0
        for place in aggregates.places(self.descriptor):
            valid = _valid(batch, place.aggregate)
            has = np.True_ if valid is None else valid.to_numpy(zero_copy_only=False)
            for at, state in enumerate(place.columns, place.first):
                cells[:, at] = self._contribution(batch, times, place.aggregate, state, valid, has)
            if place.function.nullable:
                cells[:, -1] |= np.int64(1 << place.first) * has
        return cells

    def _contribution(
        self, batch: pa.RecordBatch, times: pa.Array, a: Aggregate, state: StateColumn, valid: pa.Array, has: Has
    ) -> Ints | Has | int:
        match state.source:
            case "column":
                return self._number(batch, a.column, state.number, valid, state.neutral)
            case "by":
                return self._number(batch, a.by, state.number, valid, state.neutral)
            case "one":
                return has
            case "zero":
                return 0
            case "time" | "-time":
                values = columns.integers(times) if state.source == "time" else -columns.integers(times)
                return values if valid is None else np.where(has, values, np.int64(state.neutral))
            case _:
                assert_never(state.source)

    def _aggregate(
        self,
        batch: pa.RecordBatch,
        times: pa.Array,
        slices: Ints,
        hashes: Hashes,
        ints: Ints,
        offsets: Ints,
        data: Bytes,
    ) -> None:
        cells, start = self._cells(batch, times), 0
        while True:
            start = self._groups.add(slices, hashes, ints, offsets, data, NO_INTS, cells, start)
            if start == hashes.size:
                return
            self._flush()

    def _flush(self) -> None:
        if self._groups.count:
            self._full.append(columns.from_groups(self.descriptor, self._groups.rows(), self._groups.heap))
            self._groups.clear()

    def _join_rows(
        self, batch: pa.RecordBatch, slices: Ints, hashes: Hashes, ints: Ints, offsets: Ints, data: Bytes
    ) -> pa.RecordBatch:
        schema = schemas.rows_schema(self.descriptor)
        key = pa.array(ints) if self.descriptor.int_key else columns.binary_array(offsets, data, pa.binary())
        out = [pa.array(slices), pa.array(hashes), key, pa.array(np.full(batch.num_rows, self.side, np.int8))]
        for number, side in enumerate((self.descriptor.left, self.descriptor.right)):
            assert side is not None
            for name, source, kind in side.columns:
                arrow = pa.type_for_alias(kind)
                if number == self.side:
                    out.append(self._cast(batch.column(source), arrow, f"{source} (as {name})"))
                else:
                    out.append(pa.nulls(batch.num_rows, arrow))
        return pa.RecordBatch.from_arrays(out, schema=schema)


def _valid(batch: pa.RecordBatch, aggregate: Aggregate) -> pa.Array | None:
    """Which records have all columns of an aggregate; None: all have."""
    used = (batch.column(name) for name in (aggregate.column, aggregate.by) if name is not None)
    valid = None
    for column in used:
        if column.null_count:
            valid = column.is_valid() if valid is None else pc.and_(valid, column.is_valid())
    return valid
