"""What has changed since the last checkpoint: states of their own, to which only the deltas since then are applied.

    loop: apply, release, drop, begin_anew, freeze --> [queue] --> shadow of each operator --> frozen

Must never make the loop wait, nor give out changes of which some are missing: these are `lost`, and all begins anew.
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
"""Memory of the shadow of one operator; more of it stays in files."""

WAITING_BYTES = 256 * 1024 * 1024
"""Of deltas that wait for the shadow. With more all is scanned anew: the loop does not wait."""


@dataclass(slots=True, eq=False)
class FrozenChanges:
    """Frozen shadows, on their way to the store."""

    number: int
    epoch: int
    watermarks: tuple[int, ...]
    directory: Path | None = None
    shadows: list[State] = field(default_factory=list)
    lost: bool = False
    """some of them are not here: no chain may have them"""
    files: list[StoredFile] | None = None
    """in the store"""
    sizes: Ints | None = None
    """bytes of each virtual node, as they are kept here: once it is frozen, until they are counted"""

    def chunks(self, operator: int, virtual_nodes: int) -> Iterator[pa.RecordBatch]:
        """What was applied to a shadow, each key once. Nobody waits between two chunks: each is a part."""
        state, vnodes = self.shadows[operator], np.arange(virtual_nodes)
        scan = state.changes if isinstance(state, ProcessState) else state.snapshot
        return scan(vnodes, PART_BYTES)

    def forget(self) -> None:
        """They are in the store, or of no use: nothing of them stays here."""
        self.shadows.clear()
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)


def bytes_by_vnode(states: Sequence[State], virtual_nodes: int) -> Ints:
    """Of all operators together."""
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
    """The shadows of all operators. Its methods are for the loop of the instance; `frozen` is called on another thread."""

    def __init__(
        self,
        descriptors: Sequence[OperatorDescriptor],
        virtual_nodes: int,
        directory: Path,
        frozen: Callable[[FrozenChanges], None],
    ) -> None:
        """What is in `directory` is of an earlier life, and goes."""
        self._descriptors = descriptors
        self._virtual_nodes = virtual_nodes
        self._directory = directory
        self._frozen = frozen
        shutil.rmtree(directory, ignore_errors=True)
        self._queue: queue.SimpleQueue[_Delta | _Release | _Drop | _Anew | FrozenChanges] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting_bytes = 0
        self._life = 0
        """how often all began anew"""
        self._lost = -1
        """the last such life of which something is lost"""
        self._folders = itertools.count()
        threading.Thread(target=self._run, name="archive-shadow", daemon=True).start()

    @property
    def lost(self) -> bool:
        """Whether something is missing: nothing is collected before all begins anew."""
        return self._lost == self._life

    def apply(self, operator: int, epoch: int, source: str, batch: pa.RecordBatch) -> None:
        """A delta that was applied to the state."""
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
        """What is final is not needed; else a shadow would grow as long as the store is away."""
        self._queue.put(_Release(epoch, watermarks))

    def drop(self, vnodes: Sequence[int]) -> None:
        """Forget these virtual nodes."""
        self._queue.put(_Drop(np.array(vnodes, np.int64)))

    def begin_anew(self) -> None:
        """Forget all, also that something was lost."""
        self._life += 1
        self._queue.put(_Anew(self._life))

    def freeze(self, changes: FrozenChanges) -> None:
        """These are all until now; others begin."""
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
            except (
                Exception
            ) as error:  # Of the disk and of libraries, too: this thread goes on, or nobody is ever answered.
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
                if not now.shadows:
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
        now.directory = self._directory / str(next(self._folders))
        for descriptor in self._descriptors:
            state = open_state(descriptor, self._virtual_nodes, now.directory / str(descriptor.index), SHADOW_BYTES)
            if isinstance(state, ProcessState):
                state.drop(np.arange(self._virtual_nodes))  # what is removed has to be known
            now.shadows.append(state)
