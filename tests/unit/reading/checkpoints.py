"""Checkpoints of one operator, as leaders would upload them: epochs through a real state, scans and changes of it as files."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.manifest import Chain, Manifest, StoredFile
from ferry.contract.names import Attempt, CommitId, Step
from ferry.contract.results import StepResult
from ferry.durable.catalog import CheckpointCatalog
from ferry.durable.location import Location
from ferry.durable.parts import PartWriter
from ferry.kernels import columns
from ferry.store.state import open_state

VNODES = 8


def stored(
    where: Location, batches: Sequence[pa.RecordBatch], vnodes: np.ndarray, kind: str, epoch: int, index: int
) -> StoredFile:
    """A file of the rows of these virtual nodes."""
    writer = PartWriter(where, f"files/{uuid.uuid4().hex}", index, kind, epoch, VNODES)  # type: ignore[arg-type]
    for batch in batches:
        ordered = columns.sorted_by_hash([batch])
        writer.add(columns.take_vnodes(ordered, columns.split_by_vnode(ordered, VNODES), vnodes))
    return writer.finish()


def publish(
    where: Location,
    descriptor: OperatorDescriptor,
    epochs: Sequence[tuple[Sequence[pa.RecordBatch], EpochTimes]],
    directory: Path,
    number: int = 1,
) -> Manifest:
    """A checkpoint after these epochs. Half of the virtual nodes were scanned after the first; the others have all changes."""
    state = open_state(descriptor, VNODES, directory, 1 << 30)
    even, odd = np.arange(0, VNODES, 2), np.arange(1, VNODES, 2)
    index = descriptor.index
    chains: dict[str, list[StoredFile]] = {"even": [], "odd": []}
    for count, (fragments, times) in enumerate(epochs):
        delta, _ = state.delta([state.combine(list(fragments))], times)
        state.apply(delta, times.epoch, "leader")
        if count:
            chains["even"].append(stored(where, [delta], even, "changes", times.epoch, index))
        else:
            chains["even"].append(stored(where, [*state.snapshot(even)], even, "scan", times.epoch, index))
        chains["odd"].append(stored(where, [delta], odd, "changes", times.epoch, index))
    last = epochs[-1][1]
    result = StepResult(Attempt(1, 1), last.low, last.high)
    made = Manifest(
        number=number,
        job="job",
        run="run",
        lineage="run",
        generation=1,
        made_at=5.0,
        commit_id=CommitId(Step(last.epoch, index), Attempt(1, 1)),
        results=(result,) * (index + 1),
        meta=b"",
        virtual_nodes=VNODES,
        operators=(descriptor,),
        chains=tuple(
            Chain(tuple(int(v) for v in vnodes), tuple(chains[name])) for name, vnodes in (("even", even), ("odd", odd))
        ),
    )
    CheckpointCatalog(where).publish(made)
    return made
