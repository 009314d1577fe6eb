"""Rows on the terminal, and in the log of the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from ferry.connectors.formats.json_text import shown as rows_shown
from ferry.connectors.sink import Sink
from ferry.contract.errors import SpecRefused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Console(Sink):
    """Prints the first `limit` rows of each epoch."""

    def __init__(self, limit: int = 20) -> None:
        self.limit = limit
        self.show: Callable[[str], None] = print

    def write(self, epoch: int, generation: int, rows: pa.Table | DataFrame) -> None:
        """Print the rows."""
        table = rows if isinstance(rows, pa.Table) else rows.toArrow()
        rows = (f"   {row}" for row in rows_shown(table.slice(0, self.limit)))
        self.show("\n".join([f"-- epoch {epoch}: {table.num_rows} rows", *rows]))

    def truncate_after(self, epoch: int) -> None:
        """Do nothing: printed rows cannot be removed."""


def console(limit: int = 20) -> Console:
    """Print the rows of each epoch on the terminal of `ferry run` and in the driver's log.

    Parameters:
        limit: greatest number of printed rows per epoch.
    Returns: a sink.
    Raises: SpecRefused, if the limit is negative or not an integer.
    Example:
        >>> output = counts.sink(ferry.console(limit=5))
    """
    if not isinstance(limit, int) or limit < 0:
        raise SpecRefused(f"console: limit {limit!r}; it is the number of printed rows per epoch, at least 0")
    return Console(limit)
