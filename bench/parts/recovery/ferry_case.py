"""Ferry's side of the recovery benchmark: a worker of four, an instance without a copy elsewhere, everything."""

from __future__ import annotations

import contextlib
import re
import time
from datetime import datetime
from typing import Any

import psutil

from bench.parts.recovery.case import ONE, PAYLOAD, STORE, Bench, Recovery
from bench.shared import bigstate
from bench.shared.ferry_job import FERRY, FerryJob, RunFailed, job_document

LOADED = re.compile(
    r"^(\S+ \S+) .* \d+ bytes of \d+ virtual nodes loaded in ([\d.]+) s, of which ([\d.]+) s fetching", re.MULTILINE
)
UP = re.compile(r"^(\S+ \S+) .* instance (\d+\.\d+) is up", re.MULTILINE)
REPLICA, OWN = "in-sync replica", "own files"


class FerryCase:
    """All losses at one size."""

    def __init__(self, bench: Bench, gigabytes: float) -> None:
        self.a, self.bench, self.gigabytes = bench.a, bench, gigabytes
        self.keys = int(gigabytes * 1e9 / PAYLOAD)
        self.store = bench.store()
        apart = bench.apart()
        self.command = FERRY if apart is None else apart.ferry

    def measure(self) -> None:
        """A job with copies loses a worker, then all; one without an instance that comes back, then a worker's files."""
        with FerryJob(self._job(1), self.bench.work / "ferry", command=self.command) as run:
            self._fill(run)
            for repeat in range(self.a.repeats):
                self._kill(run, "3", REPLICA, repeat)
            self._wait_checkpoints(run, 2)
            lose_everything(run)
        for repeat in range(self.a.repeats):
            self._restore(repeat)
        with FerryJob(self._job(0), self.bench.work / "ferry", command=self.command) as run:
            self._fill(run)
            for repeat in range(self.a.repeats):
                self._kill(run, "3.0", OWN, repeat)
            for repeat in range(self.a.repeats):
                self._lose_one(run, repeat)

    def _job(self, replicas: int) -> dict[str, Any]:
        a = self.a
        checkpoint = {"location": self.store.location, "every": f"{a.every}s"}
        state = {"virtualNodes": 64, "replicas": replicas, "checkpoint": checkpoint}
        pipeline = {"file": bigstate.__file__, "args": {"keys": self.keys}}
        epoch = {"maxRows": a.rows, "interval": a.interval}
        return job_document("recovery", pipeline, workers=a.workers, cores=a.cores, state=state, epoch=epoch)

    def _fill(self, run: FerryJob) -> None:
        with self.bench.console.status(f"Ferry: filling {self.gigabytes:g} GB ({self.keys:,} keys)"):
            run.wait_for(lambda: sum(e["rows"] for e in run.epochs()) >= self.keys, f"all {self.keys:,} keys", 1800)
            run.wait_epochs(self.a.settle)
            self._wait_settled(run)

    def _wait_checkpoints(self, run: FerryJob, more: int) -> None:
        """The second one is begun after now."""
        target = len(checkpoints(run)) + more
        run.wait_for(lambda: len(checkpoints(run)) >= target, f"{more} checkpoints", 1800)

    def _wait_settled(self, run: FerryJob) -> None:
        deadline = time.monotonic() + 900
        while True:
            run.poll()
            status = run.status()
            if status is not None and status["settled"]:
                return
            if run.process.poll() is not None or time.monotonic() > deadline:
                raise RunFailed(f"the groups are not what is desired:\n{run.log_end()}")
            time.sleep(0.2)

    def _kill(self, run: FerryJob, what: str, case: str, repeat: int) -> None:
        run.wait_epochs(self.a.settle)
        at, last = time.time(), run.epochs()[-1]["epoch"]
        run.kill(what)
        run.wait_for(lambda: after(run, at, last) is not None, f"an epoch after the kill of {what}", 300)
        end = after(run, at, last)
        assert end is not None
        # What is promoted, or has come back, has the state: nothing is fetched, and files of it are mapped, not read.
        known = [r["t"] for r in run.records if r["kind"] == "groups" and at < r["t"] <= end]
        known += [t for t in lives(run, what) if at < t <= end]
        scheduling = max(known) - at if known else None
        self.bench.add("Ferry", case, self.gigabytes, repeat, Recovery(end - at, scheduling, 0.0, 0.0))
        with self.bench.console.status("Ferry: until it is whole again"):
            self._wait_settled(run)

    def _lose_one(self, run: FerryJob, repeat: int) -> None:
        """A worker and its files: the job begins again with its newest checkpoint, on a driver of its own accord."""
        self._wait_checkpoints(run, 2)
        lives = [r["t"] for r in run.records if r["kind"] == "ready"]
        at = time.time()
        run.kill("3")
        (run.directory / "workers" / "3").rename(run.work / f"lost-{repeat}")  # Its next life needs longer to begin.

        def end() -> float | None:
            begun = [r["t"] for r in run.records if r["kind"] == "ready"][len(lives) :]
            return next((e["end"] for e in run.epochs() if begun and e["end"] > begun[-1]), None)

        run.wait_for(lambda: end() is not None, "an epoch after the restore", 900)
        total = (end() or at) - at
        seconds, fetching = slowest(run, at)
        self.bench.add(
            "Ferry", ONE, self.gigabytes, repeat, Recovery(total, total - seconds, fetching, seconds - fetching)
        )
        with self.bench.console.status("Ferry: until it is whole again"):
            self._wait_settled(run)

    def _restore(self, repeat: int) -> None:
        """The files of all processes are gone; a new run begins with the latest checkpoint, as soon as it can."""
        begin = time.time()
        work, sets = self.bench.work / "ferry", ["restoreFrom=latest"]
        with FerryJob(self._job(1), work, sets=sets, command=self.command) as run:
            with self.bench.console.status(f"Ferry: {self.gigabytes:g} GB from the store"):
                run.wait_for(lambda: len(run.epochs()) > 0, "an epoch after the restore", 900)
            end = run.epochs()[0]["end"]
            seconds, fetching = slowest(run, begin)
            # What is neither is processes that start, plans, and the first epoch.
            rest = Recovery(end - begin, end - begin - seconds, fetching, seconds - fetching)
            self.bench.add("Ferry", STORE, self.gigabytes, repeat, rest)
            self._wait_checkpoints(run, 1)
            lose_everything(run)


def after(run: FerryJob, t: float, epoch: int) -> float | None:
    """End of the first epoch that is behind this one and ended after this time."""
    return next((e["end"] for e in run.epochs() if e["end"] > t and e["epoch"] > epoch), None)


def lives(run: FerryJob, instance: str) -> list[float]:
    """When an instance said that it is up; it has looked through its files then."""
    return [moment(t) for t, who in UP.findall(logs(run)) if who == instance]


def slowest(run: FerryJob, since: float) -> tuple[float, float]:
    """Of the instances that loaded something since then: (seconds, of which fetching)."""
    found = [
        (float(seconds), float(fetching)) for t, seconds, fetching in LOADED.findall(logs(run)) if moment(t) > since
    ]
    if not found:
        raise RunFailed("no instance says that it has loaded anything of the checkpoint")
    return max(found)


def logs(run: FerryJob) -> str:
    """What all workers have printed."""
    return "\n".join(f.read_text(errors="replace") for f in (run.directory / "logs").glob("worker-*.log*"))


def moment(text: str) -> float:
    """As logs tell it."""
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f").timestamp()


def checkpoints(run: FerryJob) -> list[dict[str, Any]]:
    """Those that are complete."""
    return [r for r in run.records if r["kind"] == "checkpoint"]


def lose_everything(run: FerryJob) -> None:
    """kill -9 of all processes of a run at once; their files go when the next run begins."""
    root = psutil.Process(run.process.pid)
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            process.kill()
    run.process.wait()
