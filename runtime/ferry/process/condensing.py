"""Processes whose tasks condense records before they send them, as tasks do for aggregates of windows."""

from __future__ import annotations

from abc import abstractmethod

import pyarrow as pa

from ferry.kernels.columns import empty
from ferry.kernels.grouping import NO_INTS
from ferry.process.api import Process, SideRows


class Condensing(Process):
    """A process of one input whose rows are not records but parts, which its tasks have made of some records each.

    Attributes:
        parts: columns of a part; None: rows are records, and nothing is condensed. `open` says it.
    """

    parts: pa.Schema | None = None

    @abstractmethod
    def condense(self, rows: SideRows, low: int) -> SideRows:
        """Parts of records of one task, sorted as these are. There is one record at least, and no state.

        Parameters:
            rows: records, sorted by key, then event time; keys are numbered.
            low: the operator's watermark before the epoch, or one beyond it.
        Returns: columns `parts`, for each the number of its key, and its event time.
        """


def parts_of(process: Process) -> pa.Schema | None:
    """What tasks make of its records; None: they go as they are."""
    return process.parts if isinstance(process, Condensing) else None


def condensed(process: Process, rows: SideRows, low: int) -> SideRows:
    """The rows as the process is to have them."""
    parts = parts_of(process)
    if parts is None:
        return rows
    assert isinstance(process, Condensing)
    return process.condense(rows, low) if rows.key.size else SideRows(empty(parts), NO_INTS, NO_INTS)
