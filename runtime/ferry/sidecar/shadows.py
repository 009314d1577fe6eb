"""Changes since the last checkpoint: separate states, which only get the deltas since then.

    loop: apply, release, drop, begin_anew, freeze --> [queue] --> shadow of each operator --> frozen

Must never make the loop wait, nor return incomplete changes: these are `lost`, and everything is scanned again.
"""

from __future__ import annotations

import itertools
import logging
import queue
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.manifest import StoredFile
from ferry.durable.parts import PART_BYTES
from ferry.kernels.grouping import Ints
from ferry.store.process import ProcessState
from ferry.store.state import State, open_state

log = logging.getLogger("ferry.sidecar")

SHADOW_BYTES = 64 * 1024 * 1024
"""Memory of the shadow of one operator; the rest is in files."""

WAITING_BYTES = 256 * 1024 * 1024
"""Bytes of deltas that wait for the shadow. Beyond it everything is scanned again: the loop does not wait."""


@dataclass(slots=True, eq=False)
class FrozenChanges:
    """Frozen shadows, on their way to the store."""

    number: int
    epoch: int
    watermarks: tuple[int, ...]
    directory: Path | None = None
    shadows: list[State] = field(default_factory=list)
    lost: bool = False
    """some changes are missing: no chain may use them"""
    files: list[StoredFile] | None = None
    """in the store"""
    sizes: Ints | None = None
    """bytes of each virtual node in their stored form: from the freeze until they are counted"""

    def chunks(self, operator: int, virtual_nodes: int) -> Iterator[pa.RecordBatch]:
        """The changes of a shadow, each key once. No caller waits between two chunks: each is a part."""
        state, vnodes = self.shadows[operator], np.arange(virtual_nodes)
        scan = state.changes if isinstance(state, ProcessState) else state.snapshot
        return scan(vnodes, PART_BYTES)

    def forget(self) -> None:
        """The changes are in the store, or useless: delete their files."""
        self.shadows.clear()
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)


def bytes_by_vnode(states: Sequence[State], virtual_nodes: int) -> Ints:
    """Bytes of all operators together."""
    return np.sum([np.zeros(virtual_nodes, np.int64), *(state.statistics()["bytes"] for state in states)], axis=0)


class _Delta(NamedTuple):
    operator: int
    epoch: int
    source: str
    batch: pa.RecordBatch


class _Release(NamedTuple):
    epoch: int
    watermarks: tuple[int, ...]


class _Drop(NamedTuple):
    vnodes: Ints


class _Anew(NamedTuple):
    life: int


class Shadows:
    """The shadows of all operators. Its methods are for the instance's loop; `frozen` is called on another thread."""

    def __init__(
        self,
        descriptors: Sequence[OperatorDescriptor],
        virtual_nodes: int,
        directory: Path,
        frozen: Callable[[FrozenChanges], None],
    ) -> None:
        """Files in `directory` are of an earlier life, and are removed."""
        self._descriptors = descriptors
        self._virtual_nodes = virtual_nodes
        self._directory = directory
        self._frozen = frozen
        shutil.rmtree(directory, ignore_errors=True)
        self._queue: queue.SimpleQueue[_Delta | _Release | _Drop | _Anew | FrozenChanges] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting_bytes = 0
        self._life = 0
        """number of fresh starts"""
        self._lost = -1
        """the last such start whose changes are incomplete"""
        self._folders = itertools.count()
        threading.Thread(target=self._run, name="archive-shadow", daemon=True).start()

    @property
    def lost(self) -> bool:
        """Whether changes are missing: collection waits for a fresh start."""
        return self._lost == self._life

    def apply(self, operator: int, epoch: int, source: str, batch: pa.RecordBatch) -> None:
        """Apply a delta that was applied to the state."""
        if self.lost:
            return
        with self._lock:
            too_many = self._waiting_bytes + batch.nbytes > WAITING_BYTES
            self._waiting_bytes += 0 if too_many else batch.nbytes
        if too_many:
            self._lose(self._life, "they come faster than they are collected")
        else:
            self._queue.put(_Delta(operator, epoch, source, batch))

    def release(self, epoch: int, watermarks: tuple[int, ...]) -> None:
        """Final slices are not needed; otherwise a shadow would grow as long as the store is unreachable."""
        self._queue.put(_Release(epoch, watermarks))

    def drop(self, vnodes: Sequence[int]) -> None:
        """Forget these virtual nodes."""
        self._queue.put(_Drop(np.array(vnodes, np.int64)))

    def begin_anew(self) -> None:
        """Forget all changes, also that some were lost."""
        self._life += 1
        self._queue.put(_Anew(self._life))

    def freeze(self, changes: FrozenChanges) -> None:
        """Freeze the changes until now; a new set begins."""
        self._queue.put(changes)

    def _lose(self, life: int, why: object) -> None:
        log.warning("changes for checkpoints are lost: %s", why)
        with self._lock:
            self._lost = max(self._lost, life)

    # ---- the thread
    def _run(self) -> None:
        now, life = FrozenChanges(-1, -1, ()), 0
        while True:
            item = self._queue.get()
            try:
                match item:
                    case _Anew():
                        now.forget()
                        now, life = FrozenChanges(-1, -1, ()), item.life
                    case FrozenChanges():
                        self._release(now, _Release(item.epoch, item.watermarks))
                        item.directory, item.shadows, item.lost = now.directory, now.shadows, now.lost
                        item.sizes = bytes_by_vnode(item.shadows, self._virtual_nodes)
                        now = FrozenChanges(-1, -1, (), lost=now.lost)
                        self._frozen(item)
                    case _ if not now.lost:
                        self._take(now, item)
            except Exception as error:  # Also of the disk and of libraries: this thread must go on and answer.
                self._lose(life, f"{type(error).__name__}: {error}")
                now.forget()
                now.lost = True
                if isinstance(item, FrozenChanges):
                    item.lost = True
                    self._frozen(item)
            if isinstance(item, _Delta):
                with self._lock:
                    self._waiting_bytes -= item.batch.nbytes

    def _take(self, now: FrozenChanges, item: _Delta | _Release | _Drop) -> None:
        match item:
            case _Delta(operator, epoch, source, batch):
                self._open(now)
                now.shadows[operator].apply(batch, epoch, source)
            case _Release():
                self._release(now, item)
            case _Drop(vnodes):
                for state in now.shadows:
                    state.drop(vnodes)

    def _release(self, now: FrozenChanges, final: _Release) -> None:
        for state, watermark in zip(now.shadows, final.watermarks, strict=False):
            state.release(final.epoch, watermark)

    def _open(self, now: FrozenChanges) -> None:
        """Open the shadows of operators that have none yet: a deployed program may introduce some."""
        directory = now.directory = now.directory or self._directory / str(next(self._folders))
        for descriptor in self._descriptors[len(now.shadows) :]:
            state = open_state(descriptor, self._virtual_nodes, directory / str(descriptor.index), SHADOW_BYTES)
            if isinstance(state, ProcessState):
                state.drop(np.arange(self._virtual_nodes))  # removed entries have to be recorded
            now.shadows.append(state)
