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
from ferry.kernels.kinds import type_of
from ferry.kernels.schemas import fired_schema, fragment_schema, partials_schema
from ferry.process.shapes import process_of
from ferry.store.aggregate import AggregateState
from ferry.store.state import open_state

OPERATOR = OperatorDescriptor(
    "rehearsal", 0, "aggregate", (("k", "string"),), Window(10, 10), (Aggregate("n", "count"),)
)


def rehearse_operator(descriptor: OperatorDescriptor, directory: Path) -> None:
    """Run an epoch of an operator to its fired rows, with a record in each of two panes; nothing of it is kept.

    The user's code is not called: of a process only its construction is tried. Raises SpecRefused.
    """
    shutil.rmtree(directory, ignore_errors=True)
    if descriptor.kind == "process":
        process_of(descriptor)
    state = open_state(descriptor, 2, directory, 1 << 20)
    end = descriptor.window.size_ms if descriptor.windowed else 1
    times, vnodes = EpochTimes(-1, end), np.arange(2)
    batches = [pa.RecordBatch.from_pylist([], schema=fragment_schema(descriptor))]
    if descriptor.kind != "process":
        batches += [_one_record(descriptor, pane) for pane in (0, descriptor.window.pane_ms)]
    delta, _ = state.delta([state.combine(batches)], times, vnodes)
    split_by_vnode(delta, 2)
    state.apply(delta, 0, "rehearsal")
    for rows in state.fired(times, vnodes):
        assert rows.schema.equals(fired_schema(descriptor))
    shutil.rmtree(directory, ignore_errors=True)


def _one_record(descriptor: OperatorDescriptor, pane: int) -> pa.RecordBatch:
    """A fragment with one record of the slice from `pane` on; all its values are zeros, empty texts, or null."""
    keys = stored(descriptor, [pa.nulls(1, type_of(kind)) for _, kind in descriptor.key])
    key = pa.array(keys.keys) if descriptor.int_key else binary_array(keys.offsets, keys.data, pa.binary())
    known = {"slice": pa.array([pane]), "hash": pa.array(keys.hashes), "key": key, "n": pa.array([1])}
    known["side"] = pa.array([0], pa.int8())
    schema = fragment_schema(descriptor)
    return pa.RecordBatch.from_arrays([known.get(one.name, _zero(one.type)) for one in schema], schema=schema)


def _zero(kind: pa.DataType) -> pa.Array:
    if pa.types.is_fixed_size_binary(kind):
        return pa.array([bytes(kind.byte_width)], kind)
    return pa.array([0], kind) if pa.types.is_integer(kind) or pa.types.is_floating(kind) else pa.nulls(1, kind)


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
        delta, _ = state.delta([state.combine([batch, batch])], times, vnodes)
        split_by_vnode(delta, 2)
        state.apply(delta, hints=state.hints)
        state.apply_absent(delta)
    assert sum(rows.num_rows for rows in (*state.snapshot(vnodes), *state.fired(times, vnodes))) == 4
    shutil.rmtree(directory)
