"""Cluster monitoring (Slash): events of the tasks of a cluster, shaped like the public sample of Google's trace.

Equal value for value, and type for type, to the reference generator under tests/oracle for the same arguments.
Only the requested columns are generated. Must never generate a record in a Python loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ferry.kernels import draws
from ferry_workloads.arrivals import DisorderedArrivals, Ints, Values
from ferry_workloads.ranges import ArrivalSplits

FIRST_JOB = 6_000_000_000
JOBS_ZIPF_S = 1.1
TASKS, MACHINES, USERS = 2000, 12_500, 400
EVENT_TYPES = {0: 5318, 1: 5279, 4: 4474, 5: 973, 2: 169, 3: 79}
"""Number of occurrences of each value in the sample, in the reference's order. The same for the following tables."""
CATEGORIES = {0: 13277, 2: 2385, 1: 585, 3: 45}
PRIORITIES = {2: 11916, 0: 3854, 9: 245, 1: 205, 8: 60, 10: 12}
CONSTRAINTS = {1: 10454, 0: 5838}

_LONG, _INT, _FLOAT = pa.int64(), pa.int32(), pa.float32()
SCHEMAS = {
    "cm": pa.schema(
        [("seq", _LONG), ("ts", _LONG), ("job_id", _LONG), ("task_id", _LONG), ("machine_id", _LONG)]
        + [("event_type", _INT), ("user_id", _INT), ("category", _INT), ("priority", _INT)]
        + [("cpu", _FLOAT), ("ram", _FLOAT), ("disk", _FLOAT), ("constraints", _INT)]
    ),
}


@dataclass(frozen=True, kw_only=True)
class CmGenerator(DisorderedArrivals):
    """Stream ``cm``, with the reference generator's arguments. A few jobs have most of the tasks."""

    title = "CM"
    schemas = SCHEMAS

    jobs: int = 240

    def __post_init__(self) -> None:
        super().__post_init__()
        self._whole("jobs", 1, 10**8)

    def _column(self, stream: str, name: str, n: Ints) -> Values:
        return _COLUMNS[name](self, n)

    def _as_often(self, n: Ints, field: int, counts: dict[int, int]) -> NDArray[np.int32]:
        """Values drawn with the frequencies of `counts`."""
        return np.array(list(counts), np.int32)[self.weighted(n, field, tuple(counts.values()))]

    def _request(self, n: Ints, field: int, top: float) -> NDArray[np.float32]:
        """Shares of a machine below `top`, mostly small, in steps of 2^-16, so that sums are exact in any order."""
        u = draws.unit(n, np.uint64(self.seed), field)
        return (np.floor(u**8 * top * 65536) / 65536).astype(np.float32)


_COLUMNS: dict[str, Callable[[CmGenerator, Ints], Values]] = {
    "ts": lambda g, n: g.times(n),
    "job_id": lambda g, n: FIRST_JOB + g.zipf(n, 201, g.jobs, JOBS_ZIPF_S),
    "task_id": lambda g, n: g.below(n, 202, TASKS),
    "machine_id": lambda g, n: g.below(n, 203, MACHINES),
    "event_type": lambda g, n: g._as_often(n, 204, EVENT_TYPES),
    "user_id": lambda g, n: g.below(n, 205, USERS).astype(np.int32),
    "category": lambda g, n: g._as_often(n, 206, CATEGORIES),
    "priority": lambda g, n: g._as_often(n, 207, PRIORITIES),
    "cpu": lambda g, n: g._request(n, 208, 0.4),
    "ram": lambda g, n: g._request(n, 209, 0.3),
    "disk": lambda g, n: g._request(n, 210, 0.01),
    "constraints": lambda g, n: g._as_often(n, 211, CONSTRAINTS),
}


class CmSplits(ArrivalSplits):
    """The events of tasks, generated inside the ingest tasks: ``CmSplits(CmGenerator(rate=1e6))``."""

    def __init__(self, generator: CmGenerator, stream: str = "cm") -> None:
        super().__init__(generator, stream)
