"""Rows of any columns as texts and as 64-bit digests, to compare two results as multisets.

Equal rows have equal texts; a value without a text of Arrow's, such as a list, has Python's.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferry.kernels.hashing import Ints, hash_bytes

_KIND = re.compile(r"(?:large_)?(\w+)")
"""Of a type, such as `list` of `list<item: int64>`: units and names of elements depend on the maker of the batch."""


def texts(rows: pa.Table) -> pa.Array:
    """One large_string per row.

    Example:
        >>> texts(pa.table({"k": [1, None], "v": ["a", "b"]})).to_pylist()
        ['k=1, v=a', 'k=null, v=b']
    """
    return _joined(rows, [f"{', ' * bool(number)}{name}=" for number, name in enumerate(rows.schema.names)], "null")


def _joined(rows: pa.Table, heads: list[str], null: str) -> pa.Array:
    """The columns of each row, each behind its head."""
    if not heads or not rows.num_rows:
        return pa.array([""] * rows.num_rows, pa.large_string())
    columns = [(pa.scalar(head, pa.large_string()), _column(rows.column(n))) for n, head in enumerate(heads)]
    parts, end = [part for pair in columns for part in pair], pa.scalar("", pa.large_string())
    return pc.binary_join_element_wise(*parts, end, null_handling="replace", null_replacement=null)


def _column(column: pa.ChunkedArray) -> pa.Array:
    column = column.combine_chunks()
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return pa.array([None if value is None else value.hex() for value in column.to_pylist()], pa.large_string())
    try:
        return column.cast(pa.large_string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.array([None if value is None else str(value) for value in column.to_pylist()], pa.large_string())


def digests(rows: pa.Table) -> Ints:
    """Of each row, int64[n]; two of 2^32 different rows have the same one with a probability of one half."""
    kinds = [_KIND.match(str(field.type)) for field in rows.schema]
    heads = [f"\x1f{f.name}\x1f{kind[1] if kind else ''}=" for f, kind in zip(rows.schema, kinds, strict=True)]
    lines = _joined(rows, heads, "\x00")
    if not len(lines):
        return np.empty(0, np.int64)
    _, offsets, data = lines.buffers()
    bounds = np.frombuffer(offsets, np.int64)[lines.offset : lines.offset + len(lines) + 1]
    letters = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return hash_bytes(bounds, letters).view(np.int64)
