"""Join of two inputs by key and by how far apart they are in time; pairs are emitted when their later record arrives.

A pair has left.ts + lower <= right.ts < left.ts + upper. A row is kept until the watermark says that no row of the other
input can still match it. Whether it is has to do with the watermark before the epoch only, and not with when it is removed:
rows are removed some at a time, an eighth of the interval late at most. Without bounds nothing is late, and nothing is
ever removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferry.contract.errors import SpecRefused
from ferry.contract.limits import WATERMARK_END
from ferry.kernels.columns import indices
from ferry.kernels.grouping import NO_INTS, Ints
from ferry.process.api import Process, Work
from ferry.process.groups import distinct_pairs
from ferry.process.joins import SIDES, TIME, keep_rows, kept_schemas, null_keys, times_of
from ferry.process.tables import Entries, StateTable, merged

COMPARISONS = {
    "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal, "=": pc.equal, "!=": pc.not_equal,
}  # fmt: skip

REMOVALS = 8
"""So many times in an interval rows that are too old are removed."""


@dataclass
class IntervalJoin(Process):
    """Pairs of rows with the same key and left.ts + lower <= right.ts < left.ts + upper, emitted on arrival.

    Output: the left columns, the right columns.

    Parameters:
        left, right: columns that are kept of each input: {output name: column}.
        lower_ms, upper_ms: bounds in milliseconds. Both None: pairs of any times, and rows are kept for ever.
        where: further conditions on output columns: [column, one of < <= > >= = !=, column].
    """

    left: dict[str, str]
    right: dict[str, str]
    lower_ms: int | None = None
    upper_ms: int | None = None
    where: list[list[str]] = field(default_factory=list)

    def open(self, key: pa.Schema, inputs: Sequence[pa.Schema]) -> None:
        """Columns follow from those that are kept."""
        sides = kept_schemas((self.left, self.right), inputs)
        stored = [StateTable(pa.schema([(TIME, pa.int64()), *side]), pa.int64()) for side in sides]
        self.tables = dict(zip(SIDES, stored, strict=True))
        self.output = pa.schema([*sides[0], *sides[1]])
        if (self.lower_ms is None) != (self.upper_ms is None):
            raise SpecRefused("an interval join needs both bounds, or none")
        if self.lower_ms is not None and self.upper_ms is not None and self.lower_ms >= self.upper_ms:
            raise SpecRefused(
                f"from {self.lower_ms} to before {self.upper_ms} ms there is no time: nothing would match"
            )
        for a, sign, b in self.where:
            if sign not in COMPARISONS or not {a, b} <= set(self.output.names):
                raise SpecRefused(
                    f"condition {a} {sign} {b}: give two of {', '.join(self.output.names)}, and one of "
                    f"{' '.join(COMPARISONS)}"
                )

    def process(self, work: Work) -> None:
        """Pairs of new rows with kept ones and with each other; then new rows are kept, and old ones removed."""
        old = [self._matching(work, side) for side in (0, 1)]
        new = [self._kept(work, side) for side in (0, 1)]
        self._emit(work, new[0], merged(old[1], new[1]))
        self._emit(work, old[0], new[1])
        if self.upper_ms is not None:
            self._remove(work)

    def _ends(self, side: int, times: Ints) -> Ints:
        """Of rows of these times: from which watermark on no row of the other input can match them any more."""
        if self.lower_ms is None or self.upper_ms is None:
            return np.full(times.size, WATERMARK_END + 1)
        return times + self.upper_ms if side == 0 else times - self.lower_ms + 1

    def _matching(self, work: Work, side: int) -> Entries:
        """Kept rows of an input, of the keys of which the other one has new rows."""
        found = work.read(SIDES[side], work.key_of(1 - side))
        return found.at(self._ends(side, times_of(found)) > work.low)

    def _kept(self, work: Work, side: int) -> Entries:
        """New rows of an input that can match anything; those that cannot are late."""
        times = work.times(side)
        timely = np.ones(times.size, np.bool_)
        if self.lower_ms is not None and self.upper_ms is not None:
            # The last time of the other input that it matches, and whether rows of that time are gone.
            last = times + self.upper_ms - 1 if side == 0 else times - self.lower_ms
            timely = self._ends(1 - side, last) > work.low
            work.late(int(timely.size - timely.sum()))
        timely &= ~null_keys(work)[work.key_of(side)]
        rows = keep_rows(work, side, (self.left, self.right)[side], timely)
        ends = self._ends(side, times_of(rows))
        waiting = ends > work.watermark
        wait = rows.at(waiting)
        work.put(SIDES[side], wait.key, wait.values, wait.entry)
        if self.lower_ms is not None and self.upper_ms is not None:
            step = max(1, (self.upper_ms - self.lower_ms) // REMOVALS)
            keys, times, _ = distinct_pairs(wait.key, -(-ends[waiting] // step) * step)
            work.set_timer(keys, times)
        return rows

    def _remove(self, work: Work) -> None:
        due = work.timers().key
        for side, table in enumerate(SIDES):
            if due.size:
                rows = work.read(table, due)
                over = rows.at(self._ends(side, times_of(rows)) <= work.watermark)
                work.remove(table, over.key, over.entry)

    def _emit(self, work: Work, lefts: Entries, rights: Entries) -> None:
        left, right = self._pairs(lefts, rights)
        columns = [*lefts.values.take(pa.array(left)).columns[1:], *rights.values.take(pa.array(right)).columns[1:]]
        rows = pa.RecordBatch.from_arrays(columns, schema=self.output)
        kept: Any = np.ones(left.size, np.bool_)
        for a, sign, b in self.where:
            holds = COMPARISONS[sign](rows.column(a), rows.column(b)).fill_null(False)
            kept &= holds.to_numpy(zero_copy_only=False)
        work.emit(lefts.key[left][kept], rows.filter(pa.array(kept)))

    def _pairs(self, lefts: Entries, rights: Entries) -> tuple[Ints, Ints]:
        """Row numbers of all pairs that match by key and time."""
        if not lefts.key.size or not rights.key.size:
            return NO_INTS, NO_INTS
        times = times_of(rights)
        if self.lower_ms is None or self.upper_ms is None:
            order = np.arange(times.size)
            begins, ends = (np.searchsorted(rights.key, lefts.key, end) for end in ("left", "right"))
        else:
            order = np.lexsort((times, rights.key))
            begins, ends = (
                _places(rights.key[order], times[order], lefts.key, times_of(lefts) + bound)
                for bound in (self.lower_ms, self.upper_ms)
            )
        return np.repeat(np.arange(lefts.key.size), ends - begins), order[indices(begins, ends)]


def _places(key: Ints, time: Ints, wanted: Ints, times: Ints) -> Ints:
    """Where each (key, time) would stand in front of equal ones; rows are sorted by both."""
    order = np.lexsort((np.arange(key.size + wanted.size) < key.size, np.append(time, times), np.append(key, wanted)))
    is_row = order < key.size
    before = np.cumsum(is_row)
    found = np.empty(wanted.size, np.int64)
    found[order[~is_row] - key.size] = before[~is_row]
    return found
