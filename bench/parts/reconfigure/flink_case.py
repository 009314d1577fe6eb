"""Flink's side: it moves no single key groups, so it is given another parallelism, whatever the act is.

Tuned, its adaptive scheduler takes the job down at a checkpoint and brings it up from there. Flink's default scheduler
cannot do that: the job is stopped with a savepoint and submitted again with that.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from bench.parts.reconfigure import profile
from bench.parts.reconfigure.case import NONE, WORKERS, Bench, Reconfigured, counted, refuse_late
from bench.shared.flink import AT_ONCE, FlinkCluster, compiled, installed
from bench.shared.flink_paced import MANAGERS, SOURCE, SYSTEMS, first_records, is_behind, settings, steps_of
from bench.shared.links import links

DEFAULT, TUNED = "flink", "flink-tuned"
TITLES = {DEFAULT: "Flink", TUNED: "Flink, tuned"}
BEFORE_SECONDS = 10.0
"""The clock of the stream begins so long after the job is asked for."""


def measure(bench: Bench, query: str, *, system: str) -> list[Reconfigured]:
    """Run it once: what its sinks show at once, and what only when a checkpoint has made it durable."""
    a, work = bench.a, bench.work / f"{system}-{query}"
    shutil.rmtree(work, ignore_errors=True)
    home = installed(a.flink)
    jar = compiled(home, bench.work, SOURCE)
    with links(a.links, MANAGERS) as apart:
        cluster = FlinkCluster(work, home, MANAGERS, chosen(system, work, a.cores, a.flink_checkpoint), apart)
        try:
            cluster.launch()
            plan = bench.plan(BEFORE_SECONDS)
            job = Job(
                cluster, jar, [query, profile.as_text(plan.steps), str(int(plan.clock * 1000)), str(work / "out")]
            )
            job.submit(WORKERS)
            cluster.until(lambda: any(True for _ in steps_of(work / "out", "committed")), "committed record", 120)
            refuse_late(plan)
            cluster.until(lambda: time.time() >= plan.middle, "middle of the time", plan.seconds + 120)
            asked, ended = time.time(), None
            if a.act != NONE:
                job.rescale(a.to, system)
                ended = job.back(asked, a.to)
            cluster.until(lambda: time.time() >= plan.end, "end of the time", plan.seconds + 120)
            for what in SYSTEMS:
                cluster.until(
                    lambda what=what: is_behind([*steps_of(work / "out", what)], plan.end),  # type: ignore[misc]
                    "end of the backlog", 120,
                )  # fmt: skip
        finally:
            cluster.kill()
    found = []
    for what, title in SYSTEMS.items():
        steps = counted([*steps_of(work / "out", what)], plan)
        found.append(Reconfigured(title.replace("Flink", TITLES[system]), query, steps, plan, asked, ended))
    shutil.rmtree(work)
    return found


class Job:
    """`PacedJob` in a cluster, through both of its lives."""

    def __init__(self, cluster: FlinkCluster, jar: Path, arguments: list[str]) -> None:
        self.cluster, self.jar, self.arguments, self.id = cluster, jar, arguments, ""

    def submit(self, parallelism: int, **more: str) -> None:
        """A life of it."""
        self.id = self.cluster.submit(self.jar, SOURCE.stem, parallelism, self.arguments, **more)

    def rescale(self, parallelism: int, system: str) -> None:
        """Give it another parallelism, as Flink of this kind can."""
        if system == TUNED:
            self.cluster.rescale(self.id, parallelism)
        else:
            self.submit(parallelism, savepointPath=self.cluster.stop(self.id))

    def back(self, asked: float, parallelism: int) -> float:
        """When the last of all sinks that were opened since has told of a record."""
        out = self.cluster.work / "out"
        self.cluster.until(lambda: len(first_records(out, asked)) == parallelism, "output of all tasks after the act")
        return max(first_records(out, asked).values())


def chosen(system: str, work: Path, cores: int, checkpoint: str) -> dict[str, str]:
    """Settings: tuned for latency and to act at once, or nothing but what checkpoints need."""
    tuned = settings(work, cores, checkpoint)
    if system == TUNED:
        return {**tuned, **AT_ONCE}
    needed = ("taskmanager.cpu.cores", "execution.checkpointing.interval", "execution.checkpointing.dir")
    return {name: tuned[name] for name in needed}
