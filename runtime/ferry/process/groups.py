"""Groups of equal numbers, in the few ways that processes need them: by sorting, or by marking small numbers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferry.kernels.grouping import Ints

BYTES_AT_ONCE = 256 * 1024 * 1024
"""Bytes of rows in several groups that are put together at a time, at most: a column of texts holds 2 GiB."""


def begins_of(*ascending: Ints) -> Ints:
    """First positions of groups of adjacent rows that are equal in all columns."""
    opens = np.zeros(ascending[0].size, np.bool_)
    opens[:1] = True
    for column in ascending:
        opens[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(opens)


def at_once(rows: pa.RecordBatch, most: int) -> int:
    """How many of these rows, each perhaps repeated, are put together at a time: fewer than `most` when they are
    long."""
    longest = [pc.max(pc.binary_length(column)).as_py() or 0 for column in rows.columns if _counted(column.type)]
    return max(1, min(most, BYTES_AT_ONCE // (8 * max(1, rows.num_columns) + sum(longest))))


def _counted(kind: pa.DataType) -> bool:
    """Whether values of this type have lengths."""
    types = pa.types
    return any(of(kind) for of in (types.is_string, types.is_binary, types.is_large_string, types.is_large_binary))


def distinct(numbers: Ints, bound: int) -> Ints:
    """The distinct numbers, from 0 up to a bound, ascending."""
    found = np.zeros(bound, np.bool_)
    found[numbers] = True
    return np.flatnonzero(found)


def distinct_pairs(first: Ints, second: Ints) -> tuple[Ints, Ints, Ints]:
    """The distinct pairs, sorted, and for each row the number of its pair."""
    order = np.lexsort((second, first))
    firsts, seconds = first[order], second[order]
    begins = begins_of(firsts, seconds)
    opens = np.zeros(order.size, np.int64)
    opens[begins] = 1
    group = np.empty(order.size, np.int64)
    group[order] = np.cumsum(opens) - 1
    return firsts[begins], seconds[begins], group
