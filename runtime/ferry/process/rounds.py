"""One epoch of a process: called with rows and timers, and again for timers that it set and that are already due.

Shared by all owners of process state: they provide the epoch's input and the table reads, and apply the changes.
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
from ferry.process.api import Clocks, EpochLog, Process, SideRows, Work
from ferry.process.groups import distinct
from ferry.process.tables import Entries, TableChanges
from ferry.process.timers import TimerChanges, TimerLog, Timers

TIMER_ROUNDS_MAX = 64
"""Largest number of rounds in one epoch for timers that are due at once and not later than the timers before."""


@dataclass(frozen=True, slots=True)
class EpochInput:
    """The input of an epoch for a process."""

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
    """Rows of a table before the epoch, of some of the touched keys (ascending indices); each key is read once."""


@dataclass(frozen=True, slots=True)
class ProcessChanges:
    """The changes of an epoch of a process, as after-images; keys are indices of the touched keys."""

    tables: dict[str, TableChanges]
    timers: TimerChanges
    processing_timers: TimerChanges
    emitted_key: Ints
    emitted: pa.RecordBatch
    """Sorted by key; rows of one key are in the order in which they were emitted."""
    late: int


def run(process: Process, epoch: EpochInput) -> ProcessChanges:
    """Call the process until no timer is due any more. No side effects.

    Raises: SpecRefused, for invalid actions of the process, or timers that keep setting timers that are already due.
    """
    clocks = epoch.clocks
    timers = TimerLog(epoch.timers, clocks.watermark)
    processing_timers = TimerLog(epoch.processing_timers, clocks.now)
    flush = clocks.watermark >= WATERMARK_END
    numbers = np.arange(epoch.keys.num_rows)
    collected = EpochLog(process, numbers.size, epoch.read, timers, processing_timers, flush)
    call = Work(clocks, epoch.keys, numbers, epoch.sides, epoch.timers, epoch.processing_timers, collected)
    first, rounds = None, 0
    while rounds < TIMER_ROUNDS_MAX:
        process.process(call)
        due, due_processing = timers.settle(), processing_timers.settle()
        if not (due.key.size or due_processing.key.size):
            return _changes(collected, process.output)
        call = _later(epoch, due, due_processing, collected)
        # A timer that sets itself again, later each time, reaches the watermark.
        earliest = tuple(int(t.time.min()) for t in (due, due_processing) if t.time.size)
        rounds, first = (0 if first is not None and earliest > first else rounds + 1), earliest
    raise SpecRefused(
        f"timers that were due already were set {TIMER_ROUNDS_MAX} times in one epoch, last at {due.time[:1].tolist()}, and "
        "never for later: set them after work.watermark, or handle what is due in the same call"
    )


def _later(epoch: EpochInput, due: Timers, due_processing: Timers, collected: EpochLog) -> Work:
    """A round of timers: it sees the keys of the timers only."""
    numbers = distinct(np.concatenate([due.key, due_processing.key]), epoch.keys.num_rows)
    keys = epoch.keys.take(pa.array(numbers))
    own, own_processing = (t._replace(key=np.searchsorted(numbers, t.key)) for t in (due, due_processing))
    none = [SideRows(side.batch.slice(0, 0), NO_INTS, NO_INTS) for side in epoch.sides]
    return Work(epoch.clocks, keys, numbers, none, own, own_processing, collected)


def _changes(collected: EpochLog, output: pa.Schema) -> ProcessChanges:
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
