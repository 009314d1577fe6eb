"""The first record of each key within some event time; its repeats go no further.

A record goes on at once, unless one of its key that went on is nearer than `within`, earlier or later. What went on is kept
as long as a record that is not late can be near it: for twice `within`. A record is late when what it would repeat may be
forgotten, that is when the watermark is `within` beyond it. So neither depends on when rows are removed, which is done some
at a time.
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
"""Table: by key the times of the records that went on."""

REMOVALS = 8
"""So many times in `within` what is too old is removed."""


@dataclass
class Distinct(Process):
    """The first record of each key within some event time. Output: all columns.

    Parameters:
        within_ms: a record this far from another one of its key, in milliseconds, is no repeat.
    """

    within_ms: int

    def open(self, key: pa.Schema, inputs: Sequence[pa.Schema]) -> None:
        """Records come out as they are."""
        self.tables = {WENT: StateTable(pa.schema([("there", pa.bool_())]), pa.int64())}
        self.output = inputs[0]

    def process(self, work: Work) -> None:
        """Let records go on; forget what nothing can repeat any more."""
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
        """From which watermark on no record that is not late is near these."""
        return np.minimum(times + 2 * self.within_ms - 1, WATERMARK_END)

    def _keep(self, work: Work, key: Ints, times: Ints) -> None:
        waits = self._ends(times) > work.watermark
        key, times = key[waits], times[waits]
        work.put(WENT, key, {"there": np.ones(key.size, np.bool_)}, times)
        step = max(1, self.within_ms // REMOVALS)
        keys, at, _ = distinct_pairs(key, np.minimum(-(-self._ends(times) // step) * step, WATERMARK_END))
        work.set_timer(keys, at)
