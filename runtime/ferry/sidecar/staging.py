"""Fragments that tasks have streamed to this helper, until the epoch is final.

In memory up to a bound, in files of the instance's directory beyond it. Must never decide which fragment wins: the
Prepare message says so.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa

from ferry.contract import limits
from ferry.contract.errors import Refusal
from ferry.contract.names import Fragment


class Staging:
    """Fragments by name. Thread-safe: tasks add them on Flight's threads, the instance's loop takes them."""

    def __init__(self, directory: Path, memory_bytes: int = limits.FRAGMENT_MEMORY_BYTES) -> None:
        self._directory = directory
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._held: dict[Fragment, list[pa.RecordBatch]] = {}
        self._files: dict[Fragment, Path] = {}
        self._claimed: set[Fragment] = set()
        self._released = -1
        self._bytes = 0
        directory.mkdir(parents=True, exist_ok=True)
        for left in directory.iterdir():
            left.unlink()

    def claim(self, fragment: Fragment) -> None:
        """Announce a fragment once, before its first byte; raises Refusal the second time.

        A fragment is never added again: a task that could not finish it fails, and the next run uses other names.
        """
        with self._lock:
            if fragment.step.epoch <= self._released:
                raise Refusal(f"epoch {fragment.step.epoch} is over: the ticket has ended with it")
            if fragment in self._claimed:
                raise Refusal(f"{fragment} was begun before: a ticket to stage is good for one use")
            self._claimed.add(fragment)

    def add(self, fragment: Fragment, batches: list[pa.RecordBatch]) -> None:
        """Keep a complete fragment; the same name again replaces it."""
        size = sum(b.nbytes for b in batches)
        with self._lock:
            if self._bytes + size <= self._memory_bytes or not batches:
                self._bytes += size
                self._held[fragment] = batches
                return
        step = fragment.step
        path = (
            self._directory / f"{step.epoch}-{step.operator}-{fragment.generation}-{fragment.run}-{fragment.task}.arrow"
        )
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        with self._lock:
            self._files[fragment] = path

    def take(self, fragment: Fragment) -> list[pa.RecordBatch]:
        """The batches of a staged fragment (it stays staged)."""
        with self._lock:
            held = self._held.get(fragment)
            if held is not None:
                return held
            path = self._files[fragment]
        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_file(source)
            return [reader.get_batch(i) for i in range(reader.num_record_batches)]

    def release(self, epoch: int) -> None:
        """Forget fragments of epochs up to this one."""
        with self._lock:
            self._released = max(self._released, epoch)
            self._claimed = {f for f in self._claimed if f.step.epoch > epoch}
            for fragment in [f for f in self._held if f.step.epoch <= epoch]:
                self._bytes -= sum(b.nbytes for b in self._held.pop(fragment))
            for fragment in [f for f in self._files if f.step.epoch <= epoch]:
                self._files.pop(fragment).unlink()
