"""Watches the processes of one run from outside: processor time of all, and memory of those that hold state.

It reads /proc; must never touch the processes.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise

import psutil

from bench.shared.proc import anonymous_bytes


@dataclass(frozen=True, slots=True)
class Sample:
    """One look."""

    t: float
    cpu_seconds: float
    """of all processes of the tree so far, also of those that have ended"""
    sidecar_cpu_seconds: float
    anonymous_bytes: int
    """of the sidecars: memory that no file backs. Pages of mapped state files belong to the page cache, not to this"""
    sidecars: int


@dataclass(slots=True)
class _Seen:
    sidecar: bool
    cpu: float = 0.0


@dataclass(slots=True)
class Watch:
    """Samples a process and all that it started, on a thread; use as a context."""

    pid: int
    every: float = 0.5
    samples: list[Sample] = field(default_factory=list)
    _seen: dict[tuple[int, float], _Seen] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Watch:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self.every):
            try:
                self.samples.append(self._look())
            except psutil.NoSuchProcess:
                return

    def _look(self) -> Sample:
        root = psutil.Process(self.pid)
        anonymous = sidecars = 0
        for process in [root, *root.children(recursive=True)]:
            try:
                key = process.pid, process.create_time()
                if key not in self._seen:
                    self._seen[key] = _Seen("ferry.sidecar" in " ".join(process.cmdline()))
                seen, times = self._seen[key], process.cpu_times()
                seen.cpu = times.user + times.system
                if seen.sidecar:
                    anonymous += anonymous_bytes(process.pid)
                    sidecars += 1
            except psutil.Error:
                continue
        cpu = sum(s.cpu for s in self._seen.values())
        return Sample(time.time(), cpu, sum(s.cpu for s in self._seen.values() if s.sidecar), anonymous, sidecars)

    # ---- what was seen
    def cpu_between(self, begin: float, end: float, sidecars: bool = False) -> float:
        """Processor seconds between two times (seconds since 1970), from the samples next to them."""
        values = [(s.t, s.sidecar_cpu_seconds if sidecars else s.cpu_seconds) for s in self.samples]
        return _at(values, end) - _at(values, begin)

    def anonymous(self, begin: float, end: float) -> list[int]:
        """Anonymous memory of the sidecars at each look between two times."""
        return [s.anonymous_bytes for s in self.samples if begin <= s.t <= end]


def _at(values: list[tuple[float, float]], t: float) -> float:
    """Linear between samples; the first or last one outside of them."""
    if not values:
        return 0.0
    for (t0, v0), (t1, v1) in pairwise(values):
        if t0 <= t <= t1:
            return v0 + (v1 - v0) * (t - t0) / max(t1 - t0, 1e-9)
    return values[0][1] if t < values[0][0] else values[-1][1]
