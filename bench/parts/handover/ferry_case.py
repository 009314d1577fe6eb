"""Ferry's side of the handover benchmark: fill, move and move back, lose a worker, lose the driver."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise

from bench.parts.handover.case import USUAL_GAPS, Bench
from bench.shared import bigstate
from bench.shared.ferry_job import FerryJob, RunFailed, job_document
from bench.shared.processes import Watch

READY = "ready to take over"
"""What a standby says when it is."""

NOTICED_SECONDS = 0.5
"""A loss that nobody has noticed by then has cost nothing."""


class FerryCase:
    """All acts of Ferry at one size."""

    def __init__(self, bench: Bench, size: str) -> None:
        a = bench.a
        self.a, self.bench, self.size, self.keys = a, bench, size, bigstate.SIZES[size] // bigstate.STATE_BYTES
        pipeline = {"file": bigstate.__file__, "args": {"keys": self.keys}}
        self.job = job_document(
            "bigstate", pipeline, workers=2, cores=a.cores, state={"virtualNodes": 64, "replicas": 1},
            epoch={"maxRows": a.rows, "interval": a.interval}, driver={"standby": a.standby},
        )  # fmt: skip
        self.run: FerryJob
        self.watch: Watch

    def measure(self) -> None:
        """Fill, then act after act."""
        with FerryJob(self.job, self.bench.work / "ferry") as self.run, Watch(self.run.process.pid, 0.2) as self.watch:
            self._fill()
            for repeat in range(self.a.repeats):
                self._move(4, repeat)
                self._move(2, repeat)
            for repeat in range(self.a.repeats):
                self._kill("1", "recovery", repeat)
            for repeat in range(self.a.driver_kills):
                if self.a.standby:
                    self._wait_standbys(repeat + 1)
                self._kill("driver", "kill driver, standby" if self.a.standby else "kill driver", repeat)

    def _fill(self) -> None:
        begin = time.time()
        with self.bench.console.status(f"Ferry: filling {self.size} ({self.keys:,} keys)"):
            self.run.wait_for(
                lambda: sum(e["rows"] for e in self.run.epochs()) >= self.keys, f"all {self.keys:,} keys", 900
            )
            self.run.wait_epochs(self.a.settle)
            self._wait_placed(2)
        state = sum(
            f.stat().st_blocks * 512 for f in self.run.directory.glob("workers/*/*/state-*/**/*") if f.is_file()
        )
        self.bench.add("Ferry", "fill", "seconds", time.time() - begin, "s", self.size)
        self.bench.add("Ferry", "fill", "state files per copy", state / 2, "bytes", self.size)

    def _move(self, workers: int, repeat: int) -> None:
        self.run.wait_epochs(USUAL_GAPS + 1)
        usual, asked = self._usual(), time.time()
        self.run.scale(workers)
        with self.bench.console.status(f"Ferry: {self.size}: to {workers} workers"):
            self._wait_placed(workers)
            self.run.wait_epochs(3)
        changes = [r for r in self.run.records if r["kind"] == "groups" and r["t"] >= asked]
        if not any(c[1] == "switched" for r in changes for c in r["changes"]):
            raise RunFailed(f"scaling to {workers} workers switched nothing over")
        begin, end = changes[0]["t"], changes[-1]["t"]
        pause, whole = self._longest(begin, end), self._longest(asked, end)
        time.sleep(1.0)
        case, add = f"move to {workers}", self.bench.add
        add("Ferry", case, "pause", pause, "s", self.size, repeat)
        add("Ferry", case, "usual", usual, "s", self.size, repeat)
        add("Ferry", case, "pause / usual", pause / usual, "x", self.size, repeat)
        add("Ferry", case, "pause since asked", whole, "s", self.size, repeat)
        add("Ferry", case, "seconds", end - begin, "s", self.size, repeat)
        before, after = self.watch.anonymous(asked - 4, asked), self.watch.anonymous(end + 0.2, end + 5)
        during = self.watch.anonymous(begin, end + 0.2)
        if before and after and during:
            extra = max(during) - max(statistics.median(before), statistics.median(after))
            add("Ferry", case, "extra memory", max(extra, 0.0), "bytes", self.size, repeat)
        self.bench.say(
            "Ferry", self.size, f"{case} workers: pause {pause:.3f} s, usual {usual:.3f} s, {end - begin:.2f} s"
        )

    def _kill(self, what: str, case: str, repeat: int) -> None:
        self.run.wait_epochs(USUAL_GAPS + 1)
        usual, last = self._usual(), self.run.epochs()[-1]
        at = time.time()
        self.run.kill(what)
        if what == "driver":
            self.run.wait_for(
                lambda: self.run.epochs()[-1]["generation"] > last["generation"], "an epoch of the next driver", 300
            )
        with self.bench.console.status(f"Ferry: {self.size}: warming what was lost"):
            self.run.wait_for(lambda: self.run.epochs()[-1]["end"] > at + NOTICED_SECONDS, "epochs after it", 300)
            self._wait_placed(2)
        whole = time.time()
        self.run.poll()
        # An epoch that was nearly over still ends; what the loss cost is the longest distance soon after it.
        before, end = max(self._gaps(at, at + NOTICED_SECONDS), key=lambda gap: gap[1] - gap[0])
        self.bench.add("Ferry", case, "to next epoch", end - at, "s", self.size, repeat)
        self.bench.add("Ferry", case, "pause", end - before, "s", self.size, repeat)
        self.bench.add("Ferry", case, "usual", usual, "s", self.size, repeat)
        self.bench.add("Ferry", case, "to full strength", whole - at, "s", self.size, repeat)
        self.bench.say("Ferry", self.size, f"{case}: next epoch after {end - at:.3f} s, usual {usual:.3f} s")

    def _gaps(self, begin: float, end: float) -> list[tuple[float, float]]:
        """Ends of epochs, two and two, between which some of this time lies."""
        ends = [e["end"] for e in self.run.epochs()]
        return [(a, b) for a, b in pairwise(ends) if b >= begin and a <= end]

    def _usual(self) -> float:
        ends = [e["end"] for e in self.run.epochs()][-USUAL_GAPS - 1 :]
        return float(statistics.median(b - a for a, b in pairwise(ends)))

    def _longest(self, begin: float, end: float) -> float:
        return float(max(b - a for a, b in self._gaps(begin, end)))

    def _wait_standbys(self, many: int) -> None:
        """Until so many have become ready, one after the other."""
        log = self.run.directory / "logs" / "driver.log"
        self.run.wait_for(lambda: log.read_text().count(READY) >= many, f"standby {many}")

    def _wait_placed(self, workers: int) -> None:
        """Until exactly these workers lead, each vnode has its replica, and nobody learns."""

        def placed() -> bool:
            status = self.run.status()
            if status is None or not status["settled"]:
                return False
            held = {int(i.split(".")[0]) for members, _ in status["groups"] for i in members}
            whole = all(len(members) == 2 and not learners for members, learners in status["groups"])
            return whole and held == set(range(workers))

        poll(self.run, placed, f"{workers} workers with everything in sync")


def poll(run: FerryJob, condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition that is asked over HTTP, five times a second."""
    deadline = time.monotonic() + 600
    while not condition():
        run.poll()
        if run.process.poll() is not None or time.monotonic() > deadline:
            raise RunFailed(f"no {what}:\n{run.log_end()}")
        time.sleep(0.2)
