"""Joins of two inputs by key and by how far apart they are in time; pairs are emitted when their later record arrives.

A pair has left.ts + lower <= right.ts < left.ts + upper. A row is kept until the watermark excludes further matches
with the other input. A match depends only on the watermark before the epoch, not on when the row is removed: rows are
removed in batches, at most an eighth of the interval late. Without bounds no row is late or ever removed.

Outer joins also emit rows without a partner, in the epoch in which the watermark reaches their end: these rows have
timers of their own. The entry of a row includes whether it has had a partner, so every copy of the row has it.
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
from ferry.process.joins import SIDES, TIME, beside, check_how, keep_rows, kept_schemas, null_keys, times_of
from ferry.process.tables import Entries, StateTable

COMPARISONS = {
    "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal, "=": pc.equal, "!=": pc.not_equal,
}  # fmt: skip

MATCHED = "_matched"
"""Column of a kept row of an outer join: it has had a partner."""

REMOVALS = 8
"""Number of removals of old rows per interval."""


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
        """Set the tables and the output from the kept columns."""
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
        """Emit pairs of new rows with kept ones and with each other; then keep new rows, and remove old ones."""
        old = [self._matching(work, side) for side in (0, 1)]
        nobody = null_keys(work)
        new = [self._rows(work, side, self._on_time(work, side) & ~nobody[work.key_of(side)]) for side in (0, 1)]
        for lefts, rights in ((new[0], old[1]), (new[0], new[1]), (old[0], new[1])):
            self._emit(work, lefts, rights)
        for side in (0, 1):
            self._keep(work, side, new[side])
        if self.upper_ms is not None:
            self._remove(work)

    def _ends(self, side: int, times: Ints) -> Ints:
        """For rows with these times: the watermark from which on no row of the other input can match them."""
        if self.lower_ms is None or self.upper_ms is None:
            return np.full(times.size, WATERMARK_END + 1)
        return times + self.upper_ms if side == 0 else times - self.lower_ms + 1

    def _matching(self, work: Work, side: int) -> Entries:
        """Kept rows of an input for keys with new rows of the other input."""
        found = work.read(SIDES[side], work.key_of(1 - side))
        return found.at(self._ends(side, times_of(found)) > work.low)

    def _on_time(self, work: Work, side: int) -> Any:
        """Mask of new rows of an input that can still match; the others are late."""
        times = work.times(side)
        if self.lower_ms is None or self.upper_ms is None:
            return np.ones(times.size, np.bool_)
        # The last time of the other input that it matches, and whether rows of that time are removed.
        last = times + self.upper_ms - 1 if side == 0 else times - self.lower_ms
        timely = self._ends(1 - side, last) > work.low
        work.late(int(timely.size - timely.sum()))
        return timely

    def _rows(self, work: Work, side: int, chosen: Any) -> Entries:
        return keep_rows(work, side, (self.left, self.right)[side], chosen)

    def _keep(self, work: Work, side: int, rows: Entries) -> None:
        ends = self._ends(side, times_of(rows))
        waiting = ends > work.watermark
        wait = rows.at(waiting)
        work.put(SIDES[side], wait.key, wait.values, wait.entry)
        if self.lower_ms is not None:
            self._wait(work, wait.key, self._removals(ends[waiting]))

    def _removals(self, ends: Ints) -> Ints:
        """Times at which rows with these ends are removed."""
        assert self.lower_ms is not None and self.upper_ms is not None
        step = max(1, (self.upper_ms - self.lower_ms) // REMOVALS)
        return -(-ends // step) * step

    def _wait(self, work: Work, key: Ints, times: Ints) -> None:
        keys, times, _ = distinct_pairs(key, times)
        work.set_timer(keys, times)

    def _remove(self, work: Work) -> None:
        due = work.timers().key
        for side, table in enumerate(SIDES):
            if due.size:
                rows = work.read(table, due)
                over = rows.at(self._ends(side, times_of(rows)) <= work.watermark)
                work.remove(table, over.key, over.entry)
                self._removed(work, side, over)

    def _removed(self, work: Work, side: int, over: Entries) -> None:
        """An inner join emits nothing for removed rows."""

    def _emit(self, work: Work, lefts: Entries, rights: Entries) -> tuple[Ints, Ints]:
        """Emit the pairs of these rows; returns their row numbers on both sides."""
        left, right = self._pairs(lefts, rights)
        columns = [*beside(lefts, left), *beside(rights, right)]
        rows = pa.RecordBatch.from_arrays(columns, schema=self.output)
        kept: Any = np.ones(left.size, np.bool_)
        for a, sign, b in self.where:
            holds = COMPARISONS[sign](rows.column(a), rows.column(b)).fill_null(False)
            kept &= holds.to_numpy(zero_copy_only=False)
        work.emit(lefts.key[left][kept], rows.filter(pa.array(kept)))
        return left[kept], right[kept]

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


@dataclass
class OuterIntervalJoin(IntervalJoin):
    """The pairs of `IntervalJoin`, and each row without a partner, once the watermark excludes further partners.

    Output: the left columns, the right columns, nulls in place of a partner. A row whose key has a null never has a
    partner, and is emitted at once.

    Parameters:
        left, right, lower_ms, upper_ms, where: as of IntervalJoin, with bounds. Rows that fail `where` are no pair.
        how: "left", "right" or "full": the inputs whose records are emitted without a partner, too, with nulls.
    """

    how: str = "full"

    def open(self, key: pa.Schema, inputs: Sequence[pa.Schema]) -> None:
        """Set the tables and the output; rows that may be emitted alone are kept with a mark."""
        check_how(self.how)
        if self.lower_ms is None:
            raise SpecRefused(f"how={self.how!r} needs within=: without bounds a partner may come at any time")
        super().open(key, inputs)
        if MATCHED in self.output.names:
            raise SpecRefused(f"output column {MATCHED!r} has a name of Ferry's own; rename with {{output: column}}")
        marked = {SIDES[side] for side in (0, 1) if self._is_preserved(side)}
        mark = pa.field(MATCHED, pa.bool_())
        self.tables = {
            name: StateTable(table.values.append(mark), table.entry) if name in marked else table
            for name, table in self.tables.items()
        }

    def process(self, work: Work) -> None:
        """The same, and mark rows that have found a partner."""
        kept = [self._matching(work, side) for side in (0, 1)]
        nobody = null_keys(work)
        timely = [self._on_time(work, side) for side in (0, 1)]
        new = [self._rows(work, side, timely[side] & ~nobody[work.key_of(side)]) for side in (0, 1)]
        rows = [(_bare(old), fresh) for old, fresh in zip(kept, new, strict=True)]
        met = [[np.zeros(part.key.size, np.bool_) for part in side] for side in rows]
        for left, right in ((1, 0), (1, 1), (0, 1)):  # 0: kept rows, 1: new ones
            pairs = self._emit(work, rows[0][left], rows[1][right])
            met[0][left][pairs[0]] = True
            met[1][right][pairs[1]] = True
        for side in (0, 1):
            if not self._is_preserved(side):
                self._keep(work, side, new[side])
                continue
            first = met[side][0] & ~_marks(kept[side])
            self._put(work, side, rows[side][0].at(first), np.ones(int(first.sum()), np.bool_))
            self._keep_marked(work, side, new[side], met[side][1])
            self._alone(work, side, self._rows(work, side, timely[side] & nobody[work.key_of(side)]))
        self._remove(work)

    def _is_preserved(self, side: int) -> bool:
        return self.how in (SIDES[side], "full")

    def _put(self, work: Work, side: int, rows: Entries, met: Any) -> None:
        table = SIDES[side]
        columns = [*rows.values.columns, pa.array(met, pa.bool_())]
        values = pa.RecordBatch.from_arrays(columns, schema=self.tables[table].values)
        work.put(table, rows.key, values, rows.entry)

    def _keep_marked(self, work: Work, side: int, rows: Entries, met: Any) -> None:
        """As `_keep`; an unmatched row is emitted exactly at its end."""
        ends = self._ends(side, times_of(rows))
        waiting = ends > work.watermark
        wait = rows.at(waiting)
        self._put(work, side, wait, met[waiting])
        self._wait(work, wait.key, np.where(met, self._removals(ends), ends)[waiting])
        self._alone(work, side, rows.at(~waiting & ~met))

    def _removed(self, work: Work, side: int, over: Entries) -> None:
        if self._is_preserved(side):
            self._alone(work, side, _bare(over.at(~_marks(over))))

    def _alone(self, work: Work, side: int, rows: Entries) -> None:
        if not rows.key.size:
            return
        mine, count = rows.values.columns[1:], rows.key.size
        kinds = self.output.types[len(self.left) :] if side == 0 else self.output.types[: len(self.left)]
        nulls = [pa.nulls(count, kind) for kind in kinds]
        columns = [*mine, *nulls] if side == 0 else [*nulls, *mine]
        work.emit(rows.key, pa.RecordBatch.from_arrays(columns, schema=self.output))


def _bare(rows: Entries) -> Entries:
    """Kept rows without their marks."""
    names = [name for name in rows.values.schema.names if name != MATCHED]
    return rows._replace(values=rows.values.select(names))


def _marks(rows: Entries) -> Any:
    return rows.values.column(MATCHED).to_numpy(zero_copy_only=False)


def _places(key: Ints, time: Ints, wanted: Ints, times: Ints) -> Ints:
    """Insert position of each (key, time), before equal ones; rows are sorted by both."""
    order = np.lexsort((np.arange(key.size + wanted.size) < key.size, np.append(time, times), np.append(key, wanted)))
    is_row = order < key.size
    before = np.cumsum(is_row)
    found = np.empty(wanted.size, np.int64)
    found[order[~is_row] - key.size] = before[~is_row]
    return found
