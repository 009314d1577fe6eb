"""The first record of each key within some event time; its repeats go no further.

A record is emitted at once, unless an emitted record of its key is nearer than `within`, earlier or later. An emitted
record is kept as long as a record that is not late can be near it: for twice `within`. A record is late when the record
that it would repeat may be forgotten, that is when the watermark is `within` beyond it. So the output does not depend
on when rows are removed, which happens in batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ferry.contract.limits import WATERMARK_END
from ferry.kernels.grouping import Ints
from ferry.kernels.repeats import goes_on
from ferry.process.api import Process, Work
from ferry.process.groups import distinct_pairs
from ferry.process.tables import StateTable

WENT = "went"
"""Table: by key the times of the emitted records."""

REMOVALS = 8
"""Number of removals of old rows per `within`."""


@dataclass
class Distinct(Process):
    """The first record of each key within some event time. Output: all columns.

    Parameters:
        within_ms: a record this far from another one of its key, in milliseconds, is no repeat.
    """

    within_ms: int

    def open(self, key: pa.Schema, inputs: Sequence[pa.Schema]) -> None:
        """Records are emitted unchanged."""
        self.tables = {WENT: StateTable(pa.schema([("there", pa.bool_())]), pa.int64())}
        self.output = inputs[0]

    def process(self, work: Work) -> None:
        """Emit records; forget rows that no record can repeat any more."""
        before = work.read(WENT)
        assert before.entry is not None
        held = before.entry.to_numpy(zero_copy_only=False)
        timely = work.times() + self.within_ms > work.low
        work.late(int(timely.size - timely.sum()))
        new = np.flatnonzero(timely)
        key, times = np.concatenate([before.key, work.key_of()[new]]), np.concatenate([held, work.times()[new]])
        order = np.lexsort((times, key))
        went = order < held.size
        first = np.sort(new[order[goes_on(key[order], times[order], went, self.within_ms)] - held.size])
        work.emit(work.key_of()[first], work.rows().take(pa.array(first)))
        self._keep(work, work.key_of()[first], work.times()[first])
        over = np.isin(before.key, work.timers().key) & (self._ends(held) <= work.watermark)
        work.remove(WENT, before.key[over], pa.array(held[over]))

    def _ends(self, times: Ints) -> Ints:
        """The watermark from which on no record that is not late is near these."""
        return np.minimum(times + 2 * self.within_ms - 1, WATERMARK_END)

    def _keep(self, work: Work, key: Ints, times: Ints) -> None:
        waits = self._ends(times) > work.watermark
        key, times = key[waits], times[waits]
        work.put(WENT, key, {"there": np.ones(key.size, np.bool_)}, times)
        step = max(1, self.within_ms // REMOVALS)
        keys, at, _ = distinct_pairs(key, np.minimum(-(-self._ends(times) // step) * step, WATERMARK_END))
        work.set_timer(keys, at)
