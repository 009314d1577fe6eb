"""Flink 2's side of the handover benchmark: another parallelism while the job runs, and kill -9 of a task manager.

Flink is tuned to act at once: its adaptive scheduler waits for no resources, heartbeats are short, state is recovered from
local copies. It takes the job down at a checkpoint and brings it up from there.
"""

from __future__ import annotations

import time

from bench.parts.handover.case import Bench
from bench.shared import bigstate
from bench.shared.ferry_job import ROOT
from bench.shared.flink import AT_ONCE, FAST, FlinkCluster, installed
from bench.shared.flink_count import ROCKSDB, FlinkCount

MANAGERS = 2
"""Of two slots each: with one of them gone there is room for a parallelism of two."""

SETTLE_SECONDS = 3.0
EVERY = "5 s"
"""Between two checkpoints."""


class FlinkCase:
    """All acts of Flink at one size."""

    def __init__(self, bench: Bench, size: str) -> None:
        a = bench.a
        self.a, self.bench, self.size = a, bench, size
        work = bench.work / f"flink-{size}"
        checkpoints = {
            **ROCKSDB,
            "execution.checkpointing.interval": EVERY,
            "execution.checkpointing.dir": f"file://{work}/cp",
        }
        settings = {"taskmanager.cpu.cores": str(a.cores), **checkpoints, **FAST, **AT_ONCE}
        self.cluster = FlinkCluster(work, installed(ROOT / "build" / "flink"), MANAGERS, settings)
        rate = int(a.rows * 1000 / max(float(a.interval.removesuffix("ms")), 1.0))
        self.count = FlinkCount(
            self.cluster, bigstate.SIZES[size] // bigstate.STATE_BYTES, bigstate.STATE_BYTES, rate, 2
        )

    def measure(self) -> None:
        """Fill, then act after act."""
        try:
            self.cluster.launch()
            self._fill()
            for repeat in range(self.a.repeats):
                self._move(4, repeat)
                self._move(2, repeat)
            for repeat in range(self.a.repeats):
                self._kill(repeat)
        finally:
            self.cluster.kill()

    def _fill(self) -> None:
        begin = time.time()
        with self.bench.console.status(f"Flink: filling {self.size} ({self.count.keys:,} keys)"):
            self.count.submit()
            self.count.until_filled()
            self.count.until_checkpoints(2)
        self.bench.add("Flink", "fill", "seconds", time.time() - begin, "s", self.size)

    def _move(self, parallelism: int, repeat: int) -> None:
        at = time.time()
        self.count.rescale(parallelism)
        self._back(at, f"move to {parallelism}", "pause", repeat)

    def _kill(self, repeat: int) -> None:
        victim, at = self.count.busy(), time.time()
        self.cluster.kill_manager(victim)
        self._back(at, "recovery", "to next epoch", repeat)
        self.cluster.start_manager(victim)
        self.cluster.until_slots()

    def _back(self, at: float, case: str, metric: str, repeat: int) -> None:
        """How long some task has put nothing out: of a move since the last output before it, of a loss since it."""
        back = self.count.back(at, case)
        pause = back - (self.count.last_row(at) if metric == "pause" else at)
        self.bench.add("Flink", case, metric, pause, "s", self.size, repeat)
        self.bench.say("Flink", self.size, f"{case}: {metric} {pause:.3f} s")
        time.sleep(SETTLE_SECONDS)
        self.count.until_checkpoints(2)
