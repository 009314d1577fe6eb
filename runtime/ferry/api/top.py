"""The operator that keeps the greatest rows of each key and window."""

from __future__ import annotations

from collections.abc import Sequence

from ferry.api.declare import Keyed, StreamT, declare_process
from ferry.contract.descriptors import Window
from ferry.contract.errors import SpecRefused
from ferry.process.top import BOUNDS, TopRows

N_MAX = 1000
"""Most rows of a key and pane. A new row rewrites every kept row behind it."""


def top_rows(
    keyed: Keyed[StreamT],
    window: Window,
    name: str,
    n: int,
    by: str | Sequence[str],
    columns: dict[str, str] | None,
    descending: bool,
    rank: str | None,
) -> StreamT:
    """Add the operator. Raises SpecRefused."""
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= N_MAX:
        raise SpecRefused(f"top_n {name!r}: n={n!r} is not a number of rows; give a number from 1 to {N_MAX}")
    by = [by] if isinstance(by, str) else by
    if not isinstance(by, list | tuple) or not by or not all(isinstance(column, str) for column in by):
        raise SpecRefused(f'top_n {name!r}: by={by!r} has to be the column that orders rows, or several: by="price"')
    if columns is None:
        taken = {*keyed.stream.input.key, *BOUNDS}
        columns = {column: column for column in keyed.stream.input.schema.names if column not in taken}
    if not columns:
        raise SpecRefused(f"top_n {name!r}: columns= is empty; name at least one column")
    process = TopRows(window.size_ms, window.slide_ms, n, list(by), columns, descending, rank)
    return declare_process(keyed, name, process, columns=[list(dict.fromkeys([*by, *columns.values()]))])
