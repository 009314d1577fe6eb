"""State of one process in one instance, for all its virtual nodes: entries of its tables, timers, rows it emitted.

The process is called in `delta`, on the leader only. Its changes and emitted rows are after-images, so that to apply a
delta twice is to apply it once; emitted rows are kept until their epoch is released. On disk: `ferry.store.entries`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ferry.contract import limits
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import RowsGone, UserCodeFailed
from ferry.contract.user_code import calling
from ferry.kernels import columns, schemas
from ferry.kernels.changes import CHANGES, EMIT, EVENT_TIMERS, PROCESSING_TIMERS, emission
from ferry.kernels.grouping import Ints
from ferry.process.aggregator import of_operator
from ferry.process.api import Clocks, Process, SideRows
from ferry.process.rounds import EpochInput, ProcessChanges, run
from ferry.process.tables import Entries
from ferry.process.timers import Timers
from ferry.process.users import users_code
from ferry.store.entries import Due, EntryStore
from ferry.store.expiry import PriorState
from ferry.store.process_tables import TouchedKeys, changed, decoded

EMITTED_BYTES = 1024 * 1024
"""Approximate bytes of a virtual node's emitted rows that are read at a time."""


class ProcessState:
    """Entries, timers and emitted rows of a process, in a file below `directory`."""

    def __init__(
        self, descriptor: OperatorDescriptor, load: Callable[[], Process], virtual_nodes: int, directory: Path
    ) -> None:
        """Open the state in `directory`, or an empty one.

        `load` returns the process, with its inputs set, when the first epoch needs it: an instance that cannot import
        it reports this to the driver, and keeps its state.
        """
        assert descriptor.kind == "process", descriptor.kind
        self.virtual_nodes = virtual_nodes
        self.expired = limits.WATERMARK_NONE
        self._entries = EntryStore(directory, virtual_nodes)
        self._given_up = directory / "given-up"
        self.broken = self._given_up.read_text() if self._given_up.exists() else ""
        """Why it cannot be used; empty: it can."""
        self.descriptor = descriptor
        self._take(descriptor, load)

    def _take(self, descriptor: OperatorDescriptor, load: Callable[[], Process]) -> None:
        self.descriptor, self._load = descriptor, load
        self._fragments = schemas.fragment_schema(descriptor)
        self._numbers = {name: number for number, (name, _, _) in enumerate(descriptor.shape.tables)}
        self.__dict__.pop("_process", None)

    def give_up(self, why: str) -> None:
        """Never use this state: it is not whole, also for a process that is started again. '' takes it back."""
        self.broken = why
        self._given_up.write_text(why)

    def run_as(self, descriptor: OperatorDescriptor, load: Callable[[], Process]) -> None:
        """Use the process of another program from now on. It has the same tables."""
        if descriptor != self.descriptor:
            self._take(descriptor, load)

    @cached_property
    def _process(self) -> Process:
        with calling("where it is constructed again"):
            return self._load()

    @property
    def is_made(self) -> bool:
        """Whether the process could be constructed here and matches the pipeline's declaration."""
        return "_process" in self.__dict__

    # -- merging of batches -----------------------------------------------------------------------------------------

    def combine(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        """All rows, sorted by hash, hence by virtual node. Reads no state."""
        batches = [b for b in batches if b.num_rows]
        return columns.sorted_by_hash(batches) if batches else columns.empty(self._fragments)

    def delta(
        self, parts: list[pa.RecordBatch], times: EpochTimes, vnodes: Ints | None = None
    ) -> tuple[pa.RecordBatch, int]:
        """The output of the process for these rows and the due timers of these virtual nodes, and the number of late
        records.

        Raises UserCodeFailed, with the operator's name; then no state has changed, and a retry is possible.
        """
        if self.broken:
            raise UserCodeFailed(self.broken)
        led = np.arange(self.virtual_nodes) if vnodes is None else np.asarray(vnodes, np.int64)
        rows = self.combine(parts)
        due = [
            self._entries.due(table, until, led)
            for table, until in ((EVENT_TIMERS, times.high), (PROCESSING_TIMERS, times.now))
        ]
        if not rows.num_rows and not any(d.keys for d in due):
            return columns.empty(CHANGES), 0
        keys = TouchedKeys.of(self.descriptor, rows, due)
        with of_operator(self.descriptor.name):
            changes = self._run(self._input(keys, rows, due, times))
        batches = [
            changed(keys, self._numbers[name], self._process.tables[name], table)
            for name, table in changes.tables.items()
        ]
        batches += keys.timers_changed(EVENT_TIMERS, changes.timers)
        batches += keys.timers_changed(PROCESSING_TIMERS, changes.processing_timers)
        batches.append(self._emitted(keys, changes, times.epoch))
        return columns.sorted_by_hash(batches), changes.late

    def _run(self, epoch: EpochInput) -> ProcessChanges:
        try:
            process = self._process
            with users_code(f"process() of {type(process).__name__}", process.process):
                return run(process, epoch)
        except UserCodeFailed as failed:
            raise UserCodeFailed(f"{failed}, operator {self.descriptor.name!r}") from failed

    def _input(self, keys: TouchedKeys, rows: pa.RecordBatch, due: list[Due], times: EpochTimes) -> EpochInput:
        sides = tuple(self._side(rows, keys.of_rows, side) for side in range(self.descriptor.inputs))
        timers = _sorted_timers(keys.of_timers, due[0].times)
        processing = _sorted_timers(keys.of_processing, due[1].times)
        clocks = Clocks(times.epoch, times.low, times.high, times.now)
        read = partial(self._read, keys)
        return EpochInput(clocks, keys.columns(), sides, timers, processing, read)

    def _side(self, rows: pa.RecordBatch, numbers: Ints, side: int) -> SideRows:
        if self.descriptor.inputs > 1:
            mine = np.flatnonzero(rows.column("side").to_numpy(zero_copy_only=True) == side)
            rows, numbers = rows.take(pa.array(mine)), numbers[mine]
        fields = schemas.process_rows(self.descriptor)[side]
        batch = pa.RecordBatch.from_arrays([rows.column(f"{side}_{name}") for name in fields.names], schema=fields)
        time, order = (columns.integers(rows.column(name)) for name in ("time", "order"))
        keys, orders = np.diff(numbers), np.diff(order)
        if ((keys > 0) | ((keys == 0) & (orders >= 0))).all():
            return SideRows(batch, numbers, time)
        return SideRows.arranged(batch, numbers, time, order)

    def _read(self, keys: TouchedKeys, name: str, wanted: Ints) -> Entries:
        table = self._process.tables[name]
        places, hashes = keys.prefixes(self._numbers[name], wanted), keys.hashes[wanted]
        if table.entry is None:
            found = self._entries.values(hashes, places)
            numbers = np.flatnonzero([value is not None for value in found])
            return decoded(keys, table, wanted[numbers], None, [value for value in found if value is not None])
        numbers, rests, values = self._entries.below(hashes, places)
        return decoded(keys, table, wanted[numbers], rests, values)

    def _emitted(self, keys: TouchedKeys, changes: ProcessChanges, epoch: int) -> pa.RecordBatch:
        """One message for each virtual node, or several for many rows."""
        hashes = keys.hashes[changes.emitted_key]
        of = pa.RecordBatch.from_arrays([pa.array(hashes)], ["hash"])
        bounds = columns.split_by_vnode(of, self.virtual_nodes)
        step = max(1, EMITTED_BYTES * changes.emitted.num_rows // max(1, changes.emitted.nbytes))
        places: list[bytes] = []
        values: list[bytes] = []
        firsts: list[int] = []
        for vnode in np.flatnonzero(np.diff(bounds)).tolist():
            for begin in range(bounds[vnode], bounds[vnode + 1], step):
                piece = changes.emitted.slice(begin, min(step, bounds[vnode + 1] - begin))
                places.append(emission(epoch, len(places), piece.num_rows))
                values.append(piece.serialize().to_pybytes())
                firsts.append(begin)
        kinds = pa.array([EMIT] * len(places), pa.int8())
        arrays = [pa.array(hashes[firsts]), kinds, pa.array(places, pa.binary()), pa.array(values, pa.binary())]
        return pa.RecordBatch.from_arrays(arrays, schema=CHANGES)

    # -- changing ---------------------------------------------------------------------------------------------------

    def apply(self, delta: pa.RecordBatch, epoch: int, source: str, hints: Ints | None = None) -> None:
        """Make the changes; idempotent. Raises Exhausted without room."""
        self._entries.apply(delta)

    def apply_absent(self, chunk: pa.RecordBatch) -> None:
        """Set missing entries, unless a delta has removed them since their virtual node was dropped."""
        self._entries.apply_absent(chunk)

    def release(self, epoch: int, watermark: int) -> None:
        """Delete rows emitted up to this epoch."""
        self.expired = max(self.expired, watermark)
        self._entries.release(epoch)

    def drop(self, vnodes: Ints) -> None:
        """Forget these virtual nodes. Their snapshot may come from now on."""
        self._entries.drop(np.asarray(vnodes, np.int64))

    def whole(self, vnodes: Ints) -> None:
        """These virtual nodes are complete: no snapshot comes any more."""
        self._entries.whole(np.asarray(vnodes, np.int64))

    def work(self) -> bool:
        """Free a piece of dropped state; False when there was none."""
        return self._entries.work()

    # -- reading ----------------------------------------------------------------------------------------------------

    def fired(self, times: EpochTimes, vnodes: Ints) -> Iterator[pa.RecordBatch]:
        """Rows emitted in the epoch, in pieces. Raises RowsGone when they were released, before or between two
        pieces."""
        schema = schemas.fired_schema(self.descriptor)
        messages = self._entries.emitted(times.epoch, np.unique(np.asarray(vnodes, np.int64)))
        while True:
            if times.epoch <= self._entries.released:
                raise RowsGone(f"operator {self.descriptor.name}: rows of epoch {times.epoch} are released")
            message = next(messages, None)
            if message is None:
                return
            yield pa.ipc.read_record_batch(pa.py_buffer(message), schema)

    def next_timer(self) -> int | None:
        """When the first timer of the clock is due; None: there is no timer."""
        return self._entries.next_timer(PROCESSING_TIMERS)

    def will_fire(self, delta: pa.RecordBatch, times: EpochTimes, vnodes: Ints) -> int:
        """Number of rows in the delta: all rows of its epoch."""
        emitted = delta.filter(pa.array(delta.column("change").to_numpy() == EMIT))
        return sum(int.from_bytes(place[-4:]) for place in emitted.column("place").to_pylist())

    def snapshot(self, vnodes: Ints, chunk_bytes: int = limits.CHUNK_BYTES) -> Iterator[pa.RecordBatch]:
        """The whole state of these virtual nodes, in chunks, while deltas are applied."""
        return self._entries.snapshot(np.unique(np.asarray(vnodes, np.int64)), chunk_bytes)

    def changes(self, vnodes: Ints, chunk_bytes: int = limits.CHUNK_BYTES) -> Iterator[pa.RecordBatch]:
        """A snapshot, and removed entries: all changes by deltas to virtual nodes that were dropped before."""
        return self._entries.changes(np.unique(np.asarray(vnodes, np.int64)), chunk_bytes)

    def prior_state(self, vnodes: Ints) -> PriorState | None:
        """The present entries and timers of these virtual nodes; None: there are too many."""
        return self._entries.prior_state(np.unique(np.asarray(vnodes, np.int64)))

    def statistics(self, vnodes: Ints | None = None) -> dict[str, Any]:
        """`bytes` and `entries` int64 per virtual node (of `vnodes`, or all); timers count as entries."""
        return self._entries.statistics(vnodes)


def _sorted_timers(key: Ints, time: Ints) -> Timers:
    order = np.lexsort((time, key))
    return Timers(key[order], time[order])
