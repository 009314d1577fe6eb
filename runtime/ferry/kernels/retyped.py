"""Converts arrays to another type of the same values, at any depth: plain, wider, or with whole microseconds."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_DAY_MS = 86_400_000


def in_microseconds(kind: pa.DataType) -> pa.DataType:
    """The type with microseconds in place of nanoseconds, as Python's datetime, time and timedelta have them.

    Example:
        >>> in_microseconds(pa.list_(pa.timestamp("ns", "UTC")))
        ListType(list<item: timestamp[us, tz=UTC]>)
    """
    types = pa.types
    if types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if types.is_time64(kind):
        return pa.time64("us")
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        value = in_microseconds(kind.value_type)
        return value if value != kind.value_type else kind
    if types.is_struct(kind):
        return pa.struct([field.with_type(in_microseconds(field.type)) for field in kind])
    if types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(in_microseconds(key.type)), item.with_type(in_microseconds(item.type)))
    if is_list(kind):
        value = in_microseconds(kind.value_type)
        return pa.list_(kind.value_field.with_type(value)) if value != kind.value_type else kind
    return kind


def has_times(kind: pa.DataType) -> bool:
    """Whether the type includes times of the day, which `retyped` rounds to microseconds, even in a type of
    nanoseconds."""
    return pa.types.is_time(kind) or any(has_times(kind.field(i).type) for i in range(kind.num_fields))


def is_list(kind: pa.DataType) -> bool:
    types = pa.types
    views = types.is_list_view(kind) or types.is_large_list_view(kind)
    return views or types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def retyped(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array in this type: times are rounded down. Raises ArrowInvalid for a value outside it."""
    types, own = pa.types, column.type
    if own == kind and not has_times(kind):
        return column
    if isinstance(own, pa.BaseExtensionType):
        return retyped(column.storage, kind)
    if types.is_dictionary(own):
        return retyped(column.dictionary_decode(), kind)
    if types.is_run_end_encoded(own):
        return retyped(pc.run_end_decode(column), kind)
    mask = column.is_null() if column.null_count else None
    if types.is_struct(kind):
        children = [retyped(child, kind.field(i).type) for i, child in enumerate(column.flatten())]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if types.is_map(kind):
        begin, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
        keys, items = (one.slice(begin, end - begin) for one in (column.keys, column.items))
        offsets = pc.subtract(column.offsets, begin)
        return pa.MapArray.from_arrays(
            offsets, retyped(keys, kind.key_type), retyped(items, kind.item_type), kind, mask=mask
        )
    if types.is_list(kind):
        ends = pc.cumulative_sum(pc.list_value_length(column).fill_null(0).cast(pa.int64()))
        offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(pa.int32())
        return pa.ListArray.from_arrays(offsets, retyped(column.flatten(), kind.value_type), type=kind, mask=mask)
    if own == pa.date64():
        return _floor(column, _DAY_MS).cast(pa.int32()).cast(kind)
    if types.is_time(own):
        fine = column.cast(pa.time64("ns"))
        return pc.multiply(_floor(fine, 1000), 1000).cast(pa.time64("ns")).cast(kind)
    if (types.is_timestamp(own) or types.is_duration(own)) and own.unit == "ns":
        micros = _floor(column, 1000)
        return micros.cast(kind)
    return column.cast(kind)


def _floor(column: pa.Array, divisor: int) -> pa.Array:
    """The integers of a temporal column, divided and rounded down."""
    numbers = column.cast(pa.int64())
    down = pc.divide(numbers, divisor)
    return pc.subtract(down, pc.less(pc.subtract(numbers, pc.multiply(down, divisor)), 0).cast(pa.int64()))
