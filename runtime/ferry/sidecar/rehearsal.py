"""Loads compiled functions before they are needed: each takes 50 ms, which no epoch and no restore should wait for."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa

from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Window
from ferry.contract.epoch_times import EpochTimes
from ferry.kernels.columns import binary_array, split_by_vnode
from ferry.kernels.keys import stored
from ferry.kernels.schemas import partials_schema
from ferry.store.aggregate import AggregateState

OPERATOR = OperatorDescriptor(
    "rehearsal", 0, "aggregate", (("k", "string"),), Window(10, 10), (Aggregate("n", "count"),)
)


def rehearse(directory: Path) -> None:
    """Run an epoch of a windowed aggregate before the job's operators are known; nothing of it is kept."""
    shutil.rmtree(directory, ignore_errors=True)
    state = AggregateState(OPERATOR, 2, directory)
    keys = stored(OPERATOR, [pa.array(["a", "b"])])
    zero, one = (pa.array([n, n], pa.int64()) for n in (0, 1))
    columns = [zero, pa.array(keys.hashes), binary_array(keys.offsets, keys.data, pa.binary()), one]
    schema = partials_schema(OPERATOR)
    batch = pa.RecordBatch.from_arrays(columns + [one] * (len(schema) - len(columns)), schema=schema)
    times, vnodes = EpochTimes(-10, 20), np.arange(2)
    for _ in range(2):
        delta, _ = state.delta([state.combine([batch])], times, vnodes)
        split_by_vnode(delta, 2)
        state.apply(delta)
        state.apply_absent(delta)
    assert sum(rows.num_rows for rows in (*state.snapshot(vnodes), *state.fired(times, vnodes))) == 4
    shutil.rmtree(directory)
