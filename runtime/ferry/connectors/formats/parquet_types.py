"""Columns of a Parquet file in the types of a schema: exactly the file's values, or a refusal with the column's name.

`refuse_misfits` checks the types when a file is taken; `converted` checks the values when the file is read. Types are read
as by Spark: INT96 times are in UTC; dates of the Julian calendar (before 1582) keep their year, month and day.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as t

from ferry.contract.errors import DOES_NOT_FIT, SpecRefused

UTC_TIMES = pa.timestamp("us", "UTC")
"""The type of INT96 times: microseconds, because nanoseconds overflow in 2262."""

VERSION, LEGACY = b"org.apache.spark.version", (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
ZONE = b"org.apache.spark.timeZone"
"""Keys of Spark's metadata in a file."""

SWITCH_DAYS = np.array(
    [
        -719164,
        -682945,
        -646420,
        -609895,
        -536845,
        -500320,
        -463795,
        -390745,
        -354220,
        -317695,
        -244645,
        -208120,
        -171595,
    ]
)
"""Days since 1970 on which the difference between the Julian and the Gregorian calendar grows by a day."""

NEW_CALENDAR_DAY, DAY_US, NEW_CLOCKS_US = -141427, 86_400_000_000, -2_208_988_800_000_000
"""15 October 1582 in days since 1970; a day; the year 1900, from which on the offsets of all time zones are reliable."""


@dataclass(frozen=True, slots=True)
class FileTypes:
    """The columns of a file and the calendar of their dates."""

    schema: pa.Schema
    """The file's schema, with INT96 as times in UTC."""
    int96: frozenset[str] = frozenset()
    """Top-level columns with INT96 times."""
    legacy: bool = False
    """Whether dates and times before 1582 are in the Julian calendar."""
    legacy_int96: bool = False
    """The same for INT96 times."""
    zone: str = "UTC"
    """Time zone of the writer of a legacy file."""

    @staticmethod
    def of(about: pq.FileMetaData) -> FileTypes:
        """The types in a file's footer."""
        columns = (about.schema.column(i) for i in range(about.num_columns))
        int96 = frozenset(c.path.split(".")[0] for c in columns if c.physical_type == "INT96")
        schema = about.schema.to_arrow_schema().remove_metadata()
        fields = [f.with_type(_in_utc(f.type)) if f.name in int96 else f for f in schema]
        facts: Mapping[bytes, bytes] = about.metadata or {}
        old = facts.get(VERSION, b"3").startswith((b"1.", b"2."))
        legacy, legacy_int96 = (old or key in facts for key in LEGACY)
        return FileTypes(pa.schema(fields), int96, legacy, legacy_int96, facts.get(ZONE, b"UTC").decode())


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """The type with INT96 times in UTC. Arrow reads INT96 as nanoseconds without a zone."""
    if t.is_timestamp(kind):
        return UTC_TIMES if kind.tz is None and kind.unit == "ns" else kind
    if t.is_struct(kind):
        return pa.struct([f.with_type(_in_utc(f.type)) for f in kind])
    if t.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    if t.is_map(kind):
        return pa.map_(_in_utc(kind.key_type), kind.item_field.with_type(_in_utc(kind.item_type)))
    return kind


def refuse_misfits(path: str, file: FileTypes, wanted: pa.Schema, first: str = "") -> None:
    """Raise SpecRefused for a column that the file lacks, or whose values the wanted type cannot hold exactly.

    `first`: the file from which the wanted columns are inferred. Empty: the columns are declared.
    """
    names = file.schema.names
    for field in wanted:
        if names.count(field.name) != 1:
            near = [name for name in names if name.lower() == field.name.lower()]
            fault = f"has {len(near)} columns {field.name!r}" if len(near) > 1 else f"has no column {field.name!r}"
            also = f" (but {near[0]!r}, in other case)" if len(near) == 1 else ""
            by = f", unlike {first}, from which the columns are inferred" if first else ""
            remedy = "give schema=" if first else "change schema="
            raise SpecRefused(f"{path} {fault}{also}{by}; it has {', '.join(names)}. Write the file again, or {remedy}")
        mine = file.schema.field(field.name).type
        if why := misfit(mine, field.type, field.name in file.int96):
            change = "" if first else " and change it in the pipeline"
            remedy = f"{_or_declare(mine, first)}{change}, or write the file again"
            raise SpecRefused(f"{path}: column {field.name!r} is {_other(mine, field.type, first)}: {why}. {remedy}")


def _other(mine: pa.DataType, wanted: pa.DataType, first: str) -> str:
    by = f"{wanted} in {first}, from which the columns are inferred" if first else f"declared as {wanted}"
    return f"{mine} in the file, and {by}"


def _or_declare(mine: pa.DataType, first: str) -> str:
    return "Give schema= with a type that all files fit" if first else f"Declare it as {mine}"


def misfit(file: pa.DataType, wanted: pa.DataType, int96: bool = False) -> str:
    """The reason why values of a file's type can never be values of the wanted type. Empty if a value may fit."""
    file, wanted = _plain(file), _plain(wanted)
    if file == wanted or t.is_null(file):
        return ""
    if t.is_nested(file) or t.is_nested(wanted):
        return _nested_misfit(file, wanted, int96)
    for same in (t.is_integer, t.is_floating, t.is_decimal, t.is_time, t.is_date, t.is_duration):
        if same(file) and same(wanted):
            return ""
    if t.is_timestamp(file) and t.is_timestamp(wanted):
        if int96 or (file.tz is None) == (wanted.tz is None):
            return ""
        return "one has a time zone, and the other has none"
    if t.is_integer(file) and (t.is_floating(wanted) or t.is_decimal(wanted)):
        return ""
    if t.is_date(file) and t.is_timestamp(wanted) and wanted.tz is None:
        return ""
    if (t.is_floating(file) or t.is_decimal(file)) and t.is_integer(wanted):
        return ""
    if (_is_text(file) or _is_bytes(file)) and (_is_text(wanted) or _is_bytes(wanted)):
        return ""
    if (t.is_temporal(file) and t.is_integer(wanted)) or (t.is_integer(file) and t.is_temporal(wanted)):
        return "a number does not say its unit"
    return "these are values of another kind"


def _nested_misfit(file: pa.DataType, wanted: pa.DataType, int96: bool) -> str:
    if t.is_struct(file) and t.is_struct(wanted):
        for field in wanted:
            at = file.get_all_field_indices(field.name)
            if len(at) > 1:
                return f"the file has {len(at)} fields {field.name!r}"
            if not at and not field.nullable:
                return f"the file has no field {field.name!r}"
            if at and (why := misfit(file.field(at[0]).type, field.type, int96)):
                return f"field {field.name!r}: {why}"
        return ""
    if t.is_map(file) and t.is_map(wanted):
        return misfit(file.key_type, wanted.key_type, int96) or misfit(file.item_type, wanted.item_type, int96)
    if _is_list(file) and _is_list(wanted):
        return misfit(file.value_type, wanted.value_type, int96)
    return "these are values of another kind"


def _is_text(kind: pa.DataType) -> bool:
    return bool(t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind) or t.is_fixed_size_binary(kind)
    ) and not t.is_decimal(kind)


def _is_list(kind: pa.DataType) -> bool:
    return bool(t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind)) or t.is_list_view(kind)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without extension and dictionary wrappers."""
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    return _plain(kind.value_type) if t.is_dictionary(kind) else kind


def converted(path: str, batch: pa.RecordBatch, file: FileTypes, wanted: pa.Schema, first: str = "") -> pa.RecordBatch:
    """The columns of a batch in the wanted types. `first`: as for `refuse_misfits`.

    Raises SpecRefused for a value that the wanted type cannot hold.
    """
    ordered = batch.select(wanted.names)
    if ordered.schema.equals(wanted) and not (file.int96 or file.legacy):
        return ordered
    columns = []
    for field in wanted:
        column = batch.column(field.name)
        try:
            column = _in_new_calendar(column, file, field.name)
        except ValueError as wrong:
            raise SpecRefused(
                f"{DOES_NOT_FIT}{path}: column {field.name!r} is {column.type} in the Julian calendar, with {wrong}, which "
                "is not supported: write the file again with spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED"
            ) from wrong
        try:
            columns.append(column if column.type == field.type else exact(column, field.type))
        except (pa.ArrowException, ValueError) as wrong:
            mine = file.schema.field(field.name).type
            raise SpecRefused(
                f"{DOES_NOT_FIT}{path}: column {field.name!r} is {_other(mine, field.type, first)}, and {field.type} cannot "
                f"hold a value of it: {' '.join(str(wrong).split())}. {_or_declare(mine, first)}, or write the file again"
            ) from wrong
        if where := _null_in(columns[-1], field, repr(field.name)):
            raise SpecRefused(
                f"{DOES_NOT_FIT}{path}: column {where} is {f'not null in {first}' if first else 'declared not null'}, and "
                "has a null. Declare it nullable in schema=, or write the file again"
            )
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _null_in(column: pa.Array, field: pa.Field, name: str) -> str:
    """The name of a field that has a null but is not nullable. Empty without such a field."""
    if column.null_count and not field.nullable:
        return name
    if t.is_struct(field.type):
        inner = zip(column.drop_null().flatten(), field.type, strict=True)
        return next((where for part, f in inner if (where := _null_in(part, f, f"{name}.{f.name!r}"))), "")
    if _is_list(field.type):
        return _null_in(column.flatten(), field.type.value_field, f"{name}[]")
    if t.is_map(field.type):
        return _null_in(column.items, field.type.item_field, f"{name}[]") if column.null_count == 0 else ""
    return ""


def exact(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The same values in another type. Raises ArrowInvalid or ValueError if the type cannot hold a value exactly."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if t.is_dictionary(column.type) and not t.is_dictionary(wanted):
        column = column.dictionary_decode()
    if isinstance(wanted, pa.BaseExtensionType):
        return wanted.wrap_array(exact(column, wanted.storage_type))
    if t.is_integer(column.type) and t.is_decimal(wanted):
        column = column.cast(pa.decimal256(20 + wanted.scale, wanted.scale))
    converted = column.cast(wanted)
    for before, after in _leaves(column, converted):
        if t.is_floating(after.type) and t.is_floating(before.type) and after.type.bit_width < before.type.bit_width:
            _require_same(before, after)
    return converted


def _require_same(before: pa.Array, after: pa.Array) -> None:
    """Raise ValueError for a value that the narrower floating-point type changes."""
    back = after.cast(before.type)
    same = pc.or_(pc.equal(before, back), pc.is_nan(before))
    if not pc.all(same, min_count=0).as_py():
        raise ValueError(f"{before.filter(pc.invert(same))[0].as_py()!r} cannot be {after.type}")


def _leaves(before: pa.Array, after: pa.Array) -> Iterator[tuple[pa.Array, pa.Array]]:
    """The pairs of leaf arrays of two arrays of the same shape. Fields of structs are matched by name."""
    if t.is_struct(after.type):
        for field, inner in zip(after.type, after.flatten(), strict=True):
            at = before.type.get_field_index(field.name)
            if at >= 0:
                yield from _leaves(before.flatten()[at], inner)
    elif t.is_map(after.type):
        yield from _leaves(before.keys, after.keys)
        yield from _leaves(before.items, after.items)
    elif _is_list(after.type):
        yield from _leaves(before.flatten(), after.flatten())
    else:
        yield before, after


# ---- the Julian calendar
def _in_new_calendar(column: pa.Array, file: FileTypes, name: str) -> pa.Array:
    """A file's column in the Gregorian calendar, with the same year, month and day. Spark 2 and Hive wrote Julian dates.

    Raises ValueError for dates or times that cannot be converted.
    """
    legacy = file.legacy_int96 if name in file.int96 else file.legacy
    if t.is_timestamp(column.type) and name in file.int96:
        column = column.cast(UTC_TIMES)
    if not legacy or not _is_legacy(column.type):
        if legacy and t.is_nested(column.type) and _has_days(column.type):
            raise ValueError("dates or times inside of other values")
        return column
    if t.is_date32(column.type):
        days = column.cast(pa.int32())
        return _plus_days(days, np.asarray(days.fill_null(0)), 1).cast(pa.int32()).cast(column.type)
    per_us = {"ms": 1000, "us": 1}.get(column.type.unit)
    if per_us is None:
        raise ValueError(f"the unit {column.type.unit}")
    times = column.cast(pa.int64())
    values = np.asarray(times.fill_null(0))
    if file.zone not in ("UTC", "Z", "Etc/UTC", "GMT") and (values < NEW_CLOCKS_US // per_us).any():
        raise ValueError(f"a time before 1900 that was written in time zone {file.zone}")
    day = DAY_US // per_us
    return _plus_days(times, np.floor_divide(values, day), day).cast(column.type)


def _plus_days(column: pa.Array, days: np.ndarray, day: int) -> pa.Array:
    """Numbers plus `day` times the difference between the calendars on these days."""
    apart = np.where(days < NEW_CALENDAR_DAY, 3 - np.searchsorted(SWITCH_DAYS, days, "right"), 0)
    return pc.add(column.cast(pa.int64()), pa.array(apart.astype(np.int64) * day))


def _has_days(kind: pa.DataType) -> bool:
    if t.is_nested(kind):
        return any(_has_days(kind.field(i).type) for i in range(kind.num_fields))
    return _is_legacy(kind)


def _is_legacy(kind: pa.DataType) -> bool:
    """Whether values of a type may be in the Julian calendar. Times without a zone are newer than its use."""
    return bool(t.is_date32(kind) or (t.is_timestamp(kind) and kind.tz is not None))
