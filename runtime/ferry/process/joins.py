"""What joins that keep rows have in common: columns, tables of kept rows, and pairs of rows."""

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
"""Rows of which side are there without a partner, too."""

ROWS_BITS = 32
"""Of the number of a kept row: its place among those of its epoch; the epoch stands before."""


def kept_schemas(
    sides: Sequence[dict[str, str]], inputs: Sequence[pa.Schema], taken: Sequence[str] = ()
) -> list[pa.Schema]:
    """The columns that are kept of each input, by their output names. Raises SpecRefused."""
    names = [*taken, *(name for side in sides for name in side)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SpecRefused(f"output columns {twice} would appear twice; rename with {{output: column}}")
    found = []
    for side, schema in zip(sides, inputs, strict=True):
        for column in side.values():
            if column not in schema.names:
                raise SpecRefused(f"no column {column!r}; there are {', '.join(schema.names)}")
        found.append(pa.schema([(name, schema.field(column).type) for name, column in side.items()]))
    return found


def refuse_turned(name: str, schema: pa.Schema, pairs: Iterable[tuple[str, str]]) -> None:
    """Names that stand the wrong way round, as pandas has them in `rename`, are refused."""
    for output, column in pairs:
        if column not in schema.names and output in schema.names:
            there = ", ".join(schema.names)
            raise SpecRefused(
                f"join {name!r}: no column {column!r}; there are {there}; write {{output: column}}, "
                f"such as {{{column!r}: {output!r}}}"
            )


def keep_rows(work: Work, side: int, columns: dict[str, str], kept: Any) -> Entries:
    """Rows of an input as they are kept, under numbers that no other row of their key has in all epochs."""
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
    """Rows of both sides that have the same group, and by `how` those that have no partner: beside them stands -1.

    Groups of each side ascend; `apart` is a mask of the groups in which nothing has a partner.
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
    """The group of each pair of rows, of which one may be -1."""
    found = np.empty(lefts.size, np.int64)
    for group, rows in zip(groups, (lefts, rights), strict=True):
        found[rows >= 0] = group[rows[rows >= 0]]
    return found


def beside(rows: Entries, numbers: Ints) -> list[pa.Array]:
    """The columns of kept rows with these numbers; null where there is none."""
    values = rows.values.select(rows.values.schema.names[1:])
    if not values.num_rows:
        return [pa.nulls(numbers.size, kind) for kind in values.schema.types]
    return values.take(pa.array(np.maximum(numbers, 0), mask=numbers < 0)).columns


def check_how(how: str) -> None:
    """Raises SpecRefused."""
    if how not in HOW:
        raise SpecRefused(f"how={how!r}: a join is one of {', '.join(HOW)}")
