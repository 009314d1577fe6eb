"""One epoch of a process: it is called with rows and timers, and again for timers that were set and are due already.

Shared by all that keep state for processes: they say what the epoch touches and read tables, and apply the changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ferry.contract.errors import SpecRefused
from ferry.contract.limits import WATERMARK_END
from ferry.kernels.columns import empty
from ferry.kernels.grouping import NO_INTS, Ints
from ferry.process.api import Clocks, Collected, Process, SideRows, Work
from ferry.process.groups import distinct
from ferry.process.tables import Entries, TableChanges
from ferry.process.timers import TimerChanges, TimerLog, Timers

STANDING_MAX = 64
"""How often in one epoch timers may set timers that are due at once and not later than those before."""


@dataclass(frozen=True, slots=True)
class Touched:
    """What an epoch has for a process."""

    clocks: Clocks
    keys: pa.RecordBatch
    """The key's columns of the touched keys, each once."""
    sides: tuple[SideRows, ...]
    """Rows of each input; `SideRows.arranged` sorts them."""
    timers: Timers
    """Event-time timers up to the watermark."""
    processing_timers: Timers
    """Processing-time timers up to now."""
    read: Callable[[str, Ints], Entries]
    """Rows of a table before the epoch, of some of the touched keys (ascending indices); never twice of the same key."""


@dataclass(frozen=True, slots=True)
class ProcessChanges:
    """What an epoch of a process leaves behind, as after-images; keys are indices of the touched keys."""

    tables: dict[str, TableChanges]
    timers: TimerChanges
    processing_timers: TimerChanges
    emitted_key: Ints
    emitted: pa.RecordBatch
    """Sorted by key; those of a key in the order in which they were emitted."""
    late: int


def run(process: Process, touched: Touched) -> ProcessChanges:
    """Call the process until no timer is due any more. Changes nothing but what it returns.

    Raises: SpecRefused, the process does what it may not, or its timers set timers that are due already, again and again.
    """
    clocks = touched.clocks
    timers = TimerLog(touched.timers, clocks.watermark)
    processing_timers = TimerLog(touched.processing_timers, clocks.now)
    flush = clocks.watermark >= WATERMARK_END
    numbers = np.arange(touched.keys.num_rows)
    collected = Collected(process, numbers.size, touched.read, timers, processing_timers, flush)
    call = Work(clocks, touched.keys, numbers, touched.sides, touched.timers, touched.processing_timers, collected)
    first, standing = None, 0
    while standing < STANDING_MAX:
        process.process(call)
        due, due_processing = timers.settle(), processing_timers.settle()
        if not (due.key.size or due_processing.key.size):
            return _changes(collected, process.output)
        call = _later(touched, due, due_processing, collected)
        # A timer that sets itself again, later each time, comes to the watermark.
        earliest = tuple(int(t.time.min()) for t in (due, due_processing) if t.time.size)
        standing, first = (0 if first is not None and earliest > first else standing + 1), earliest
    raise SpecRefused(
        f"timers that were due already were set {STANDING_MAX} times in one epoch, last at {due.time[:1].tolist()}, and "
        "never for later: set them after work.watermark, or handle what is due in the same call"
    )


def _later(touched: Touched, due: Timers, due_processing: Timers, collected: Collected) -> Work:
    """A round of timers: it sees their keys only."""
    numbers = distinct(np.concatenate([due.key, due_processing.key]), touched.keys.num_rows)
    keys = touched.keys.take(pa.array(numbers))
    own, own_processing = (t._replace(key=np.searchsorted(numbers, t.key)) for t in (due, due_processing))
    none = [SideRows(side.batch.slice(0, 0), NO_INTS, NO_INTS) for side in touched.sides]
    return Work(touched.clocks, keys, numbers, none, own, own_processing, collected)


def _changes(collected: Collected, output: pa.Schema) -> ProcessChanges:
    keys = np.concatenate([NO_INTS, *(key for key, _ in collected.emitted)])
    order = np.argsort(keys, kind="stable")
    rows = pa.concat_batches([empty(output), *(batch for _, batch in collected.emitted)])
    return ProcessChanges(
        collected.changes(),
        collected.timers.changes(),
        collected.processing_timers.changes(),
        keys[order],
        rows.take(pa.array(order)),
        collected.late,
    )
