"""The data of one instance without its network: the steps that its loop would make, each of them timed alone."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ferry.contract import limits
from ferry.contract import messages as m
from ferry.contract.descriptors import GLOBAL, Aggregate, OperatorDescriptor, Side, Window
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.names import InstanceId
from ferry.contract.settings import RunSettings
from ferry.protocol import instance as core
from ferry.sidecar.data import Data
from ferry.spark.tasks.fragment import Fragmenter

WINDOW = Window(3_600_000, 3_600_000)
SIDE = Side((("k", "k", "int64"), ("text", "text", "string")))
OPERATORS = {
    "join": OperatorDescriptor("j", 0, "join", (("k", "int"),), WINDOW, (), SIDE, SIDE),
    "aggregate": OperatorDescriptor("a", 0, "aggregate", (("text", "string"),), WINDOW, (Aggregate("n", "count"),)),
    "unbounded": OperatorDescriptor("u", 0, "aggregate", (("k", "int"),), GLOBAL, (Aggregate("n", "count"),)),
}
ROWS = 50_000
"""records of one epoch"""
TEXT_BYTES = 100


class Clock:
    """How long each kind of step took."""

    def __init__(self) -> None:
        self.steps: dict[str, list[tuple[float, float]]] = defaultdict(list)
        """seconds of the clock, seconds of the processor"""

    def __call__(self, kind: str, step: Callable[[], Any]) -> Any:
        begun, computed = time.perf_counter(), time.thread_time()
        result = step()
        self.steps[kind].append((time.perf_counter() - begun, time.thread_time() - computed))
        return result


def settings_of(directory: Path, vnodes: int) -> RunSettings:
    """Of a run with instances below this directory."""
    return RunSettings(
        job="bench", run="bench-1", directory=str(directory), secret="", redis="", pipeline_module=None,
        pipeline_file=None, pipeline_args={}, virtual_nodes=vnodes, replicas=1, workers=2, instances_per_worker=1,
        memory_bytes=1 << 40, epoch_interval_ms=1000, epoch_max_rows=ROWS, cores=1,
    )  # fmt: skip


class Loop:
    """One instance's data, and the steps that its loop would make."""

    def __init__(self, name: InstanceId, kind: str, directory: Path, clock: Clock, vnodes: int) -> None:
        self.descriptor, self.clock, self.epoch = OPERATORS[kind], clock, 0
        self.sent: list[tuple[m.Chunk, Any]] = []
        self.data = Data(
            settings_of(directory, vnodes), name, directory, [self.descriptor], lambda *_: None, self._send
        )
        self.data.saved()
        self.state = self.data.states[0]

    def _send(self, send: core.Send, body: Any) -> bool:
        assert isinstance(send.message, m.Chunk)
        self.sent.append((send.message, body))
        return True

    @property
    def keys(self) -> int:
        return int(self.state.statistics()["entries"].sum())

    @property
    def bytes(self) -> int:
        return int(self.state.statistics()["bytes"].sum())

    def epoch_of(self, seed: int) -> pa.RecordBatch:
        random = np.random.default_rng(seed)
        keys = random.integers(0, 1 << 40, ROWS)
        columns: dict[str, Any] = {"k": keys, "t": np.ones(ROWS, np.int64)}
        if self.descriptor is not OPERATORS["unbounded"]:
            columns["text"] = [f"{k:0{TEXT_BYTES}d}" for k in keys.tolist()]
        fragmenter = (
            Fragmenter(self.descriptor, seed % 2) if self.descriptor.kind == "join" else Fragmenter(self.descriptor)
        )
        fragmenter.add(pa.record_batch(columns), [self.descriptor.key[0][0]], "t")
        return self.state.combine(fragmenter.drain())

    def apply(self, seed: int) -> None:
        rows = self.epoch_of(seed)
        self.epoch += 1
        delta, _ = self.clock(
            "compute", lambda: self.state.delta([rows], EpochTimes(limits.WATERMARK_NONE, limits.WATERMARK_NONE))
        )
        self.clock("apply of an epoch", lambda: self.state.apply(delta, self.epoch, "leader"))
        self.clock("report", lambda: self.state.statistics())
        for _ in range(4):
            self.clock("upkeep", self.data.work)

    def rest(self) -> None:
        while self.clock("upkeep", self.data.work):
            pass

    def fill(self, size: int) -> None:
        while self.bytes < size:
            self.apply(self.epoch)

    def perform(self, kind: str, effect: core.Effect) -> None:
        self.clock(kind, lambda: self.data.perform(effect))
