"""Common parts of joins that keep rows: columns, tables of kept rows, and pairs of rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ferry.contract.errors import SpecRefused
from ferry.kernels.columns import indices
from ferry.kernels.grouping import NO_INTS, Ints
from ferry.process.api import Work, batch_of
from ferry.process.tables import Entries

TIME = "_time"
"""Column of a kept row's event time; not the name of a column that pipelines keep."""

SIDES = ("left", "right")
"""Tables of the rows of each input."""

HOW = ("inner", "left", "right", "full")
"""Joins by the sides whose rows are emitted without a partner, too."""

ROWS_BITS = 32
"""Low bits of the number of a kept row: its position in its epoch; the high bits are the epoch."""


def kept_schemas(
    sides: Sequence[dict[str, str]], inputs: Sequence[pa.Schema], taken: Sequence[str] = ()
) -> list[pa.Schema]:
    """The columns that are kept of each input, by their output names. Raises SpecRefused."""
    names = [*taken, *(name for side in sides for name in side)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SpecRefused(f"output columns {twice} would appear twice; rename with {{output: column}}")
    schemas = []
    for side, schema in zip(sides, inputs, strict=True):
        for column in side.values():
            if column not in schema.names:
                raise SpecRefused(f"no column {column!r}; there are {', '.join(schema.names)}")
        schemas.append(pa.schema([(name, schema.field(column).type) for name, column in side.items()]))
    return schemas


def refuse_turned(name: str, schema: pa.Schema, pairs: Iterable[tuple[str, str]]) -> None:
    """Refuses names in the order of pandas' `rename`, which is the reverse."""
    for output, column in pairs:
        if column not in schema.names and output in schema.names:
            there = ", ".join(schema.names)
            raise SpecRefused(
                f"join {name!r}: no column {column!r}; there are {there}; write {{output: column}}, "
                f"such as {{{column!r}: {output!r}}}"
            )


def keep_rows(work: Work, side: int, columns: dict[str, str], kept: Any) -> Entries:
    """Rows of an input in stored form, under numbers that are unique for their key over all epochs."""
    chosen = np.flatnonzero(kept)
    rows = work.rows(side)
    values = {TIME: work.times(side)[chosen]}
    values |= {name: rows.column(column).take(pa.array(chosen)) for name, column in columns.items()}
    key = work.key_of(side)[chosen]
    number = (work.epoch << ROWS_BITS) + chosen - work.spans(side)[key]
    schema = pa.schema([(name, _type(value)) for name, value in values.items()])
    batch = batch_of(values, schema, "keep")
    return Entries(key, pa.array(number), batch)


def _type(values: Any) -> pa.DataType:
    return values.type if isinstance(values, pa.Array) else pa.int64()


def times_of(rows: Entries) -> Ints:
    """Event times of kept rows."""
    return rows.values.column(TIME).to_numpy(zero_copy_only=False)


def null_keys(work: Work) -> Any:
    """Mask of the touched keys that have a null, which equals nothing: their rows have no partners."""
    found = np.zeros(work.count, np.bool_)
    for column in work.keys.columns:
        found |= column.is_null().to_numpy(zero_copy_only=False)
    return found


def pairs_of(left: Ints, right: Ints, how: str, apart: Any) -> tuple[Ints, Ints]:
    """Pairs of rows with the same group and, by `how`, rows without a partner: the partner is -1.

    Groups of each side ascend; `apart` is a mask of the groups whose rows have no partners.
    """
    begins, ends = np.searchsorted(right, left, "left"), np.searchsorted(right, left, "right")
    ends = np.where(apart[left], begins, ends)
    lefts = np.repeat(np.arange(left.size), ends - begins)
    rights = indices(begins, ends) if left.size else NO_INTS
    alone = np.flatnonzero(begins == ends) if how in ("left", "full") else NO_INTS
    has_left = np.zeros(apart.size, np.bool_)
    has_left[left] = True
    others = np.flatnonzero(~has_left[right] | apart[right]) if how in ("right", "full") else NO_INTS
    nobody = np.full(alone.size + others.size, -1)
    return (
        np.concatenate([lefts, alone, nobody[: others.size]]),
        np.concatenate([rights, nobody[: alone.size], others]),
    )


def group_of(groups: Sequence[Ints], lefts: Ints, rights: Ints) -> Ints:
    """The group of each pair of rows, one of which may be -1."""
    found = np.empty(lefts.size, np.int64)
    for group, rows in zip(groups, (lefts, rights), strict=True):
        found[rows >= 0] = group[rows[rows >= 0]]
    return found


def beside(rows: Entries, numbers: Ints) -> list[pa.Array]:
    """The columns of kept rows with these numbers; null for -1."""
    values = rows.values.select(rows.values.schema.names[1:])
    if not values.num_rows:
        return [pa.nulls(numbers.size, kind) for kind in values.schema.types]
    return values.take(pa.array(np.maximum(numbers, 0), mask=numbers < 0)).columns


def check_how(how: str) -> None:
    """Raises SpecRefused."""
    if how not in HOW:
        raise SpecRefused(f"how={how!r}: a join is one of {', '.join(HOW)}")
