"""Flink 2's side of the recovery benchmark: kill -9 of one of its task managers, or of its whole cluster.

The job is `bench/shared/CountJob.java`.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

from bench.parts.recovery.case import ONE, PAYLOAD, STORE, Bench, Recovery
from bench.shared.flink import FAST, FlinkCluster, installed
from bench.shared.flink_count import ROCKSDB, FlinkCount

DEFAULTS, TUNED = "flink", "flink-tuned"
SETTLE_SECONDS = 2.0
"""After the last sink has put something out: traces come by then."""

SPAN = re.compile(r"max(Download|Restore)StateDurationMs=(\d+)")
KINDS = ("Download", "Restore")
TRACES = "org.apache.flink.traces.slf4j.Slf4jTraceReporterFactory"


class FlinkCase:
    """A cluster of its own, one job, one loss after another."""

    def __init__(self, bench: Bench, gigabytes: float, system: str) -> None:
        self.a, self.bench, self.gigabytes, self.store = bench.a, bench, gigabytes, bench.store()
        self.keys, self.system = int(gigabytes * 1e9 / PAYLOAD), system
        work = bench.work / f"{system}-{gigabytes:g}"
        home = installed(self.a.flink, s3=True)
        self.cluster = FlinkCluster(work, home, self.a.workers, self._settings(), bench.apart())

    def measure(self) -> None:
        """Fill, then loss after loss."""
        try:
            self.cluster.launch()
            self._fill()
            for repeat in range(self.a.repeats):
                self._lose(repeat)
            for repeat in range(self.a.repeats):
                self._lose_all(repeat)
        finally:
            self.cluster.kill()

    def _settings(self) -> dict[str, str]:
        place = self.store.location if self.store.endpoint is None else "s3://checkpoints/jobs"
        made = {
            "taskmanager.cpu.cores": str(self.a.cores),
            **ROCKSDB, "execution.checkpointing.interval": f"{self.a.every}s",
            "execution.checkpointing.dir": f"{'' if '://' in place else 'file://'}{place}/flink",
            "traces.reporters": "log", "traces.reporter.log.factory.class": TRACES,
        }  # fmt: skip
        if self.store.endpoint is not None:
            made |= {
                "s3.endpoint": f"http://{self.store.endpoint}", "s3.path.style.access": "true",
                "s3.endpoint.region": "us-east-1", "s3.directory.marker.retention": "keep",
                "s3.access-key": os.environ["AWS_ACCESS_KEY_ID"],
                "s3.secret-key": os.environ["AWS_SECRET_ACCESS_KEY"],
            }  # fmt: skip
        return made | (FAST if self.system == TUNED else {})

    def _fill(self) -> None:
        rate = int(self.a.rows * 1000 / float(self.a.interval.removesuffix("ms")))
        self.count = FlinkCount(self.cluster, self.keys, PAYLOAD, rate, self.a.workers)
        with self.bench.console.status(f"{self.system}: filling {self.gigabytes:g} GB ({self.keys:,} keys)"):
            self.count.submit()
            self.count.until_filled()
            self.count.until_checkpoints(2)

    def _lose(self, repeat: int) -> None:
        self.count.until_checkpoints(2)
        victim, logs, at = self.count.busy(), self._logs(), time.time()
        self.cluster.kill_manager(victim)
        back = self._back(at, "the kill of a task manager")
        self._add(ONE, repeat, back - at, logs)
        self.cluster.start_manager(victim)
        self.cluster.until_slots()

    def _lose_all(self, repeat: int) -> None:
        """The newest checkpoint is begun with as soon as there are slots."""
        self.count.until_checkpoints(2)
        newest = self.count.newest_checkpoint()
        logs, at = self._logs(), time.time()
        self.cluster.kill()
        shutil.rmtree(self.cluster.work / "tmp")
        (self.cluster.work / "tmp").mkdir()
        self.cluster.launch()
        self.count.submit(savepointPath=newest)
        back = self._back(at, "the kill of everything")
        self._add(STORE, repeat, back - at, logs)

    def _logs(self) -> dict[Path, int]:
        """Those of the master, and how long they are."""
        return {file: file.stat().st_size for file in self.cluster.logs()}

    def _add(self, case: str, repeat: int, seconds: float, before: dict[Path, int]) -> None:
        """With the parts that the traces say since."""
        text = "".join(file.read_text(errors="replace")[before.get(file, 0) :] for file in self._logs())
        spans = {
            what: max((int(ms) / 1000 for w, ms in SPAN.findall(text) if w == what), default=None) for what in KINDS
        }
        download, restore = spans["Download"], spans["Restore"]
        rest = None if restore is None else seconds - restore - (download or 0.0)
        self.bench.add(self.system, case, self.gigabytes, repeat, Recovery(seconds, rest, download, restore))

    def _back(self, at: float, what: str) -> float:
        back = self.count.back(at, what)
        time.sleep(SETTLE_SECONDS)
        return back
