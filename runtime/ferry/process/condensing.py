"""Processes whose tasks condense records before they send them, as for aggregates of windows."""

from __future__ import annotations

from abc import abstractmethod

import pyarrow as pa

from ferry.kernels.columns import empty
from ferry.kernels.grouping import NO_INTS
from ferry.process.api import Process, SideRows


class Condensing(Process):
    """A process of one input whose rows are parts instead of records: its tasks condense several records to one part.

    Attributes:
        parts: columns of a part; None: rows are records, and nothing is condensed. Set by `open`.
    """

    parts: pa.Schema | None = None

    @abstractmethod
    def condense(self, rows: SideRows, low: int) -> SideRows:
        """Parts of the records of one task, sorted in the same way. There is at least one record, and no state.

            Parameters:
                rows: records, sorted by key, then event time; keys are numbered.
                low: the operator's watermark before the epoch, or one beyond it.
        Returns: columns `parts`, and the key number and the event time of each part.
        """


def parts_of(process: Process) -> pa.Schema | None:
    """Schema of the parts to which tasks condense its records; None: records are sent."""
    return process.parts if isinstance(process, Condensing) else None


def condensed(process: Process, rows: SideRows, low: int) -> SideRows:
    """The rows in the form that the process expects."""
    parts = parts_of(process)
    if parts is None:
        return rows
    assert isinstance(process, Condensing)
    return process.condense(rows, low) if rows.key.size else SideRows(empty(parts), NO_INTS, NO_INTS)
