"""A real job with fifty epochs a second for an hour: memory, descriptors and threads of all its processes stay flat."""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from rich.console import Console

from bench.parts.scale.flat import Trend, trend
from bench.shared.ferry_job import FerryJob, RunFailed, job_document, work_directory
from bench.shared.results import Panel, Results, draw, show

EVERY = 5.0
"""seconds between two samples"""

ROLES = {
    "ferry_operator.cli": "supervisor",
    "valkey-server": "redis",
    "redis-server": "redis",
    "ferry.driver": "driver",
    "java": "jvm",
    "pyspark.worker": "python worker",
    "resource_tracker": "tracker",
    "forkserver": "instance",
    "ferry.sidecar": "sidecar",
}
"""A word of the command line of a process -> what the process is; the first that is found."""

ALL = "all"


@dataclass(slots=True)
class Samples:
    """What each process used, from the first sample on."""

    epochs: list[tuple[float, float]] = field(default_factory=list)
    """(seconds, epochs so far)"""
    series: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """(process, what) -> (seconds, value)"""
    _names: dict[tuple[int, float], str] = field(default_factory=dict)
    _begin: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since the first one."""
        return time.monotonic() - self._begin

    def look(self, pid: int, epochs: int) -> None:
        """Of a process and all that it started."""
        now, totals = self.seconds, defaultdict[str, float](float)
        self.epochs.append((now, epochs))
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with suppress(psutil.Error, OSError):
                for what, value in _used(process).items():
                    self.series[self._name(process), what].append((now, value))
                    totals[what] += value
                totals["processes"] += 1
        for what, value in totals.items():
            self.series[ALL, what].append((now, value))

    def _name(self, process: psutil.Process) -> str:
        key = process.pid, process.create_time()
        if key not in self._names:
            line = " ".join(process.cmdline())
            role = next((role for word, role in ROLES.items() if word in line), process.name())
            self._names[key] = f"{role} {sum(name.startswith(role) for name in self._names.values()) + 1}"
        return self._names[key]

    def trends(self) -> dict[tuple[str, str], Trend]:
        """Of the processes that were there for at least half of the time, and to its end."""
        end = self.epochs[-1][0]
        return {
            key: trend(key[1], found)
            for key, found in sorted(self.series.items())
            if found[-1][0] == end and found[0][0] <= end / 2 and len(found) > 3
        }


def _used(process: psutil.Process) -> dict[str, float]:
    with process.oneshot():
        used = {
            "descriptors": process.num_fds(),
            "threads": process.num_threads(),
            "resident": process.memory_info().rss,
        }
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii", errors="replace")
    anonymous = next((line for line in status.splitlines() if line.startswith("RssAnon:")), None)
    if anonymous is None:
        raise psutil.ZombieProcess(process.pid)
    return {**used, "anonymous": int(anonymous.split()[1]) * 1024}


def measure(a: argparse.Namespace, console: Console, results: Results) -> bool:
    """Run it, or as much of it as one waits for; whether all was flat."""
    job = job_document(
        "endurance", {"module": "ferry_workloads.jobs.nbq5", "args": {"pace": a.rate, "delay_ms": 0}},
        workers=2, cores=2, state={"virtualNodes": a.vnodes, "replicas": 1},
        epoch={"mode": "continuous", "interval": a.interval, "maxRows": 100_000},
    )  # fmt: skip
    with work_directory("endurance") as work, FerryJob(job, work / "ferry") as run:
        run.wait_epochs(10)
        samples, epochs = Samples(), 0
        with suppress(KeyboardInterrupt):
            while samples.seconds < a.minutes * 60:
                epochs += len(run.epochs())
                run.records.clear()
                samples.look(run.process.pid, epochs)
                time.sleep(EVERY)
                if run.process.poll() is not None:
                    raise RunFailed(f"the job ended after {samples.seconds:.0f} s\n{run.log_end()}")
                run.poll()
        report(samples, console, results)
        if a.json is not None:
            picture(a.json.with_name(f"{a.json.stem}-endurance.png"), samples)
    return all(found.flat for found in samples.trends().values())


def report(samples: Samples, console: Console, results: Results) -> None:
    """Records of what each process used, and a table."""
    (begin, first), (end, last) = samples.epochs[0], samples.epochs[-1]
    pace = (last - first) / max(end - begin, 1e-9)
    results.add("ferry", "endurance", "epochs", pace, "1/s", minutes=end / 60)
    rows = []
    for (process, what), found in samples.trends().items():
        unit = "bytes" if what in ("anonymous", "resident") else ""
        told = {"first": found.first, "last": found.last, "slope per hour": found.per_hour, "flat": int(found.flat)}
        for metric, value in told.items():
            results.add("ferry", "endurance", f"{what}, {metric}", value, unit, process=process)
        for t, value in samples.series[process, what][:: max(1, int(60 / EVERY))]:
            results.add("ferry", "endurance", what, value, unit, process=process, second=round(t))
        scale = 1 << 20 if unit else 1
        numbers = (f"{value / scale:,.1f}" for value in (found.first, found.last, found.per_hour))
        rows.append([process, what, *numbers, "flat" if found.flat else "grows"])
    columns = ["process", "what (MiB, count)", "first", "last", "per hour", ""]
    show(console, f"{end / 60:.1f} minutes, {pace:.1f} epochs/s; the last two thirds", columns, rows)


def picture(file: Path, samples: Samples) -> None:
    """Lines over time, of each process that was there to the end."""
    kept = samples.trends()
    panels = []
    for what, scale in (("anonymous", 1 << 20), ("resident", 1 << 20), ("descriptors", 1), ("threads", 1)):
        times = [t for t, _ in samples.epochs]
        series = {}
        for process in sorted({p for p, w in kept if w == what} - {ALL}):
            found = dict(samples.series[process, what])
            series[process] = [found[t] / scale if t in found else None for t in times]
        panels.append(Panel(what, "MiB" if scale > 1 else "", times, series, kind="times"))
    draw(file, "An hour of many short epochs", panels)
