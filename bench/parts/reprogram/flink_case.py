"""Flink's side: stopped with a savepoint, and submitted again with the other program, which its REST interface can run."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from pathlib import Path

from bench.parts.reprogram import exact
from bench.parts.reprogram.case import PROGRAMS, Act, Bench, Reprogrammed, acted, keys_of, share
from bench.shared.flink import FlinkCluster, compiled, installed
from bench.shared.flink_count import ROCKSDB
from bench.shared.flink_paced import MANAGERS, first_records, is_behind, settings, steps_of

FLINK = "flink"
SOURCE = Path(__file__).with_name("ReprogramJob.java")
PARALLELISM = 2
FILL_SECONDS = 1800.0


def measure(bench: Bench, query: str, act: str) -> Reprogrammed:
    """Run it through all its acts."""
    a, work = bench.a, bench.work / FLINK
    shutil.rmtree(work, ignore_errors=True)
    home = installed(a.flink)
    jar = compiled(home, bench.work, SOURCE)
    more = ROCKSDB if keys_of(query, a.size) else {}
    cluster = FlinkCluster(work, home, MANAGERS, settings(work, a.cores, a.flink_checkpoint) | more)
    try:
        cluster.launch()
        return Lives(bench, cluster, jar, query, act).measure()
    finally:
        cluster.kill()
        shutil.rmtree(work, ignore_errors=True)


class Lives:
    """A job; each act begins another life of it."""

    def __init__(self, bench: Bench, cluster: FlinkCluster, jar: Path, query: str, act: str) -> None:
        self.bench, self.a, self.cluster, self.jar, self.query, self.act = bench, bench.a, cluster, jar, query, act
        self.programs, self.keys = PROGRAMS[query, act], keys_of(query, bench.a.size)
        self.out, self.clock, self.id = cluster.work / "out", cluster.work / "clock", ""

    def measure(self) -> Reprogrammed:
        """All of it."""
        self._submit(self.programs[0])
        if self.keys:
            self.cluster.until(lambda: self._counted() >= self.keys, "keys", FILL_SECONDS)
        clock = int(time.time() * 1000) + 1000
        self.clock.write_text(str(clock))
        self.cluster.until(lambda: any(True for _ in steps_of(self.out, "committed")), "committed record", 120)
        begin, acts, end = acted(self.bench, self._wait, self._acted)
        self.cluster.until(lambda: is_behind([*steps_of(self.out, "committed")], end), "the end of the backlog", 300)
        steps = [*steps_of(self.out, "at-once")]
        outputs = [t for t, _ in steps if t <= end]
        plan = exact.Plan(self.a.rate, clock, end)
        checked = exact.created(committed(self.out), self.programs, plan, acts)
        return Reprogrammed("Flink, tuned", self.query, self.act, begin, end, acts, outputs, steps, checked)

    def _submit(self, program: str, **more: str) -> None:
        columns = 2 if program.endswith("_columns") else 1
        words = [self.query, share(program), columns, self.a.rate, self.keys, self.out, self.clock]
        self.id = self.cluster.submit(self.jar, SOURCE.stem, PARALLELISM, [*map(str, words)], **more)

    def _counted(self) -> int:
        vertices = self.cluster.get(f"/jobs/{self.id}")["vertices"]
        return int(next(v for v in vertices if "counts" in v["name"])["metrics"]["read-records"] or 0)

    def _wait(self, until: float) -> None:
        self.cluster.until(lambda: time.time() >= until, "the end of a pause", 3600)

    def _acted(self, number: int) -> Act:
        asked = time.time()
        self._submit(self.programs[1 - number % 2], savepointPath=self.cluster.stop(self.id, formatType="NATIVE"))
        self.cluster.until(lambda: len(first_records(self.out, asked)) == PARALLELISM, "output after the act")
        return Act(asked, min(first_records(self.out, asked).values()))


def committed(out: Path) -> Counter[int]:
    """Records that checkpoints have made durable, by the millisecond in which they were created.

    What is committed again after a restart, under the same number, counts once.
    """
    made, known = Counter[int](), set[str]()
    lines = [line for file in out.glob("*-committed.txt") for line in file.read_text().splitlines(keepends=True)]
    for line in sorted(lines):
        now, number, *ages = line.split()
        if line.endswith("\n") and number not in known:
            known.add(number)
            for age, count in (each.split(":") for each in ages):
                made[int(now) - int(age)] += int(count)
    return made
