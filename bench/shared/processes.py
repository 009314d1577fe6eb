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

SIDECARS, TASKS, DRIVER, JVM, OTHERS = "sidecars", "tasks", "driver", "JVM", "others"
KINDS = (SIDECARS, TASKS, DRIVER, JVM, OTHERS)
"""Kinds of processes. Tasks: Python workers of Spark; others: the supervisor, Redis, or a program that is not Ferry."""

_WORDS = {"ferry.sidecar": SIDECARS, "daemon": TASKS, "ferry.driver": DRIVER, "java": JVM}
"""Words of a command line, in this order of search."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look."""

    t: float
    cpu_seconds: dict[str, float]
    """by kind, of all processes of the tree so far, also of ended ones"""
    anonymous_bytes: int
    """of the sidecars: memory that no file backs. Pages of mapped state files belong to the page cache, not to this"""
    sidecars: int


@dataclass(slots=True)
class _Seen:
    kind: str
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
                    self._seen[key] = _Seen(kind_of(" ".join(process.cmdline())))
                seen, times = self._seen[key], process.cpu_times()
                seen.cpu = times.user + times.system
                if seen.kind == SIDECARS:
                    anonymous += anonymous_bytes(process.pid)
                    sidecars += 1
            except psutil.Error:
                continue
        cpu = {kind: sum(s.cpu for s in self._seen.values() if s.kind == kind) for kind in KINDS}
        return Sample(time.time(), cpu, anonymous, sidecars)

    # ---- what was seen
    def cpu_between(self, begin: float, end: float, *kinds: str) -> float:
        """Processor seconds of these kinds, or of all, between two times (seconds since 1970), from the samples next to
        them."""
        values = [(s.t, sum(s.cpu_seconds[kind] for kind in kinds or KINDS)) for s in self.samples]
        return _at(values, end) - _at(values, begin)

    def anonymous(self, begin: float, end: float) -> list[int]:
        """Anonymous memory of the sidecars at each look between two times."""
        return [s.anonymous_bytes for s in self.samples if begin <= s.t <= end]


def kind_of(command: str) -> str:
    """The kind of a process with this command line."""
    return next((kind for word, kind in _WORDS.items() if word in command), OTHERS)


def _at(values: list[tuple[float, float]], t: float) -> float:
    """Linear between samples; the first or last one outside of them."""
    if not values:
        return 0.0
    for (t0, v0), (t1, v1) in pairwise(values):
        if t0 <= t <= t1:
            return v0 + (v1 - v0) * (t - t0) / max(t1 - t0, 1e-9)
    return values[0][1] if t < values[0][0] else values[-1][1]
