"""Columns, bounds and sides of joins in a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pyarrow as pa

from ferry.api.declare import Keyed, StreamT, declare, declare_process, key_of
from ferry.contract.descriptors import OperatorDescriptor, Side, Window
from ferry.contract.durations import Duration, milliseconds
from ferry.contract.errors import SpecRefused
from ferry.kernels.kinds import plain_type
from ferry.kernels.values import named_type
from ferry.process.interval import IntervalJoin
from ferry.process.joins import refuse_turned
from ferry.process.sessions import SessionJoin
from ferry.process.window_join import WindowJoin


def kept(columns: dict[str, str] | Sequence[str]) -> dict[str, str]:
    """The kept columns by output name."""
    return dict(columns) if isinstance(columns, dict) else {column: column for column in columns}


def bounds_of(within: Duration | tuple[Duration, Duration] | None) -> tuple[int | None, int | None]:
    """Bounds of an interval join in milliseconds, the upper bound exclusive. Raises SpecRefused."""
    if within is None:
        return None, None
    lower, upper = within if isinstance(within, tuple) else (0, within)
    if lower is None or upper is None:
        raise SpecRefused(f"within={within!r}: both bounds are needed, such as ('-10s', '10s'), or none")
    return _signed(lower), _signed(upper)


def _signed(value: Duration) -> int:
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    text = str(value).strip()
    if text.startswith("-"):
        return -milliseconds(text[1:], "within")
    return milliseconds(value, "within")


def join_of(
    keyed: Keyed[StreamT], name: str, other: Keyed[StreamT], join: IntervalJoin | SessionJoin | WindowJoin
) -> StreamT:
    """Add a join that runs as a process. The process sees only the columns that the join keeps."""
    for side, of_side in ((join.left, keyed), (join.right, other)):
        refuse_turned(name, of_side.stream.input.schema, side.items())
    columns = [[*dict.fromkeys(side.values())] for side in (join.left, join.right)]
    read = [kept or [of_side.stream.input.key[0]] for kept, of_side in zip(columns, (keyed, other), strict=True)]
    return declare_process(keyed, name, join, other, columns=read)


def window_join_of(
    keyed: Keyed[StreamT],
    name: str,
    other: Keyed[StreamT],
    window: Window,
    left: dict[str, str] | Sequence[str],
    right: dict[str, str] | Sequence[str],
) -> StreamT:
    """Add an inner join of windows. Its state is the rows of both sides. Raises SpecRefused."""
    key, theirs = key_of(keyed, name), key_of(other, name)
    if [kind for _, kind in key] != [kind for _, kind in theirs]:
        raise SpecRefused(
            f"join {name!r}: keys differ in type: {dict(key)} and {dict(theirs)}; cast the key of one stream in "
            ".map_batches(...)"
        )
    sides = _side(name, keyed.stream.input.schema, left), _side(name, other.stream.input.schema, right)
    names = ["window_start", "window_end", *(n for side in sides for n, _, _ in side.columns)]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise SpecRefused(f"join {name!r}: output columns {twice} would appear twice; rename with {{output: column}}")
    descriptor = OperatorDescriptor(name, len(keyed.stream.build.operators), "join", key, window, (), *sides)
    return declare(keyed, descriptor, other)


def _side(name: str, schema: pa.Schema, columns: dict[str, str] | Sequence[str]) -> Side:
    pairs = list(columns.items()) if isinstance(columns, dict) else [(c, c) for c in columns]
    refuse_turned(name, schema, pairs)
    out = []
    for output, column in pairs:
        if column not in schema.names:
            raise SpecRefused(f"join {name!r}: no column {column!r}; there are {', '.join(schema.names)}")
        kind = plain_type(schema.field(column).type)
        try:
            named_type(str(kind))
        except ValueError:
            raise SpecRefused(
                f"join {name!r}: column {column!r} is {kind}, which a join cannot keep; leave it out, or make it a "
                "string before the operator"
            ) from None
        out.append((output, column, str(kind)))
    return Side(tuple(out))
