"""From topic to topic: the same counts by each system, looked at from outside (`topics.py`)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path

from bench.parts.latency import ferry_case
from bench.parts.latency.case import Bench, Measured
from bench.parts.latency.feed import IN, OUT, PARTITIONS
from bench.parts.latency.topics import Topics
from bench.shared import ferry_paced, fetching, flink_paced
from bench.shared.ferry_job import ROOT, FerryJob, RunFailed, environment, job_document
from bench.shared.flink import FlinkCluster, compiled, installed

JARS = ROOT / "build" / "spark-kafka"
NEEDED = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0", "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.2.0",
    "org.apache.kafka:kafka-clients:3.9.2", "org.apache.commons:commons-pool2:2.13.1",
)  # fmt: skip
"""The newest connector that there is; it works with Spark 4.3."""

BEFORE = 1.0
"""Seconds from the order to write until the first record is due."""

FLINK_KAFKA = "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2"
FLINK_JOB = Path(__file__).parent / "flink" / "CountsJob.java"

REALTIME = "1 minute"
"""Batches of Real-time Mode: so often it checkpoints."""

UP_SECONDS = BACKLOG_SECONDS = 180.0

Watch = Callable[[float], list[tuple[float, str]]]
"""Waits for the end of the measured time from its begin on; what was done to the system, and when."""


def measure(bench: Bench, query: str, rate: int, *, system: str) -> Iterator[Measured]:
    """Run it; a system with two names, twice."""
    for name, started in SYSTEMS[system].items():
        yield _one(bench, query, rate, name, started)


def _one(
    bench: Bench, query: str, rate: int, name: str, started: Callable[..., AbstractContextManager[Watch]]
) -> Measured:
    a = bench.a
    work = bench.work / "topics"
    shutil.rmtree(work, ignore_errors=True)
    with Topics(work / "kafka") as topics, started(bench, work, topics.servers, rate) as watch:
        until(topics, UP_SECONDS, "counts of the first records")
        first = time.time() + BEFORE
        begin, seconds = first + a.warm, a.minutes * 60
        topics.feed(rate, first, a.warm + seconds)
        done = watch(begin)
        # What still waits counts, too: else a loss at the end would not be seen.
        until(topics, BACKLOG_SECONDS, "end of the backlog")
        steps = topics.counts.between(begin, begin + seconds)
    return Measured(name, query, rate, steps, done)


def until(topics: Topics, seconds: float, what: str) -> None:
    """Wait for all counts that are to come. Raises RunFailed."""
    deadline = time.monotonic() + seconds
    while not topics.are_counted:
        if time.monotonic() > deadline:
            raise RunFailed(f"no {what} within {seconds:g} s")
        time.sleep(0.05)


@contextmanager
def ferry(
    bench: Bench, work: Path, servers: str, rate: int, *, mode: str, exactly_once: bool = True
) -> Iterator[Watch]:
    """A job of Ferry."""
    a = bench.a
    arguments = {"servers": servers, "exactly_once": exactly_once}
    job = job_document(
        "latency-counts", {"module": "bench.parts.latency.counts", "args": arguments}, workers=2, cores=a.cores,
        state={"virtualNodes": a.vnodes, "replicas": 1}, driver={"standby": "driver" in a.disturb},
        epoch={"mode": mode, "interval": a.interval, "maxRows": max(rate, 10_000) * 2},
    )  # fmt: skip
    with FerryJob(job, work / "ferry") as run:
        yield lambda begin: ferry_paced.watch(run, begin, a.minutes * 60, ferry_case.plan(run, a.minutes, a.disturb))
        ferry_paced.keep(
            run.directory / "timeline.jsonl", a.keep, f"counts-{rate}-{mode}{'' if exactly_once else '-repeating'}"
        )


@contextmanager
def spark(bench: Bench, work: Path, servers: str, rate: int, *, realtime: bool) -> Iterator[Watch]:
    """A query of Spark; in Real-time Mode all its tasks, of all stages, run at once and for as long as a batch takes."""
    a, directory = bench.a, work / "spark"
    directory.mkdir(parents=True)
    jars = [str(fetching.artifact(one, JARS)) for one in NEEDED]
    conf = {
        "directory": str(directory), "checkpoint": str(directory / "checkpoint"), "partitions": a.cores, "tuned_files": True,
        "cores": PARTITIONS + a.cores + 1 if realtime else a.cores, "servers": servers,
        "realtime": REALTIME if realtime else None,
        "spark": {"spark.jars": ",".join(jars)},
    }  # fmt: skip
    (directory / "conf.json").write_text(json.dumps(conf))
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.parts.latency.spark_counts", str(directory / "conf.json")], env=environment(),
            cwd=ROOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def watch(begin: float) -> list[tuple[float, str]]:
        while time.time() < begin + a.minutes * 60:
            if process.poll() is not None:
                raise RunFailed("Spark ended")
            time.sleep(0.2)
        return []

    try:
        yield watch
    except RunFailed as failed:
        raise RunFailed(f"{failed}\n" + (directory / "log").read_text(errors="replace")[-2000:]) from failed
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def flink(bench: Bench, work: Path, servers: str, rate: int, *, guarantee: str) -> Iterator[Watch]:
    """A job of Flink, `flink/CountsJob.java`, in a cluster of its own, whose sink gives this guarantee."""
    a, home = bench.a, installed(bench.a.flink)
    jars = [fetching.artifact(FLINK_KAFKA, ROOT / "build" / "flink-kafka")]
    jar = compiled(home, bench.work, FLINK_JOB, jars)
    cluster = FlinkCluster(
        work / "flink", home, flink_paced.MANAGERS, flink_paced.settings(work, a.cores, a.flink_checkpoint), jars=jars
    )
    try:
        cluster.launch()
        cluster.submit(jar, FLINK_JOB.stem, a.cores, [servers, IN, OUT, guarantee])

        def watch(begin: float) -> list[tuple[float, str]]:
            cluster.until(
                lambda: time.time() >= begin + a.minutes * 60, "end of the time", a.minutes * 60 + a.warm + 60
            )
            return []

        yield watch
    finally:
        cluster.kill()


SYSTEMS: dict[str, dict[str, Callable[..., AbstractContextManager[Watch]]]] = {
    "continuous": {
        "Ferry, continuous": partial(ferry, mode="continuous"),
        "Ferry, at least once": partial(ferry, mode="continuous", exactly_once=False),
    },
    "micro-batch": {"Ferry, micro-batch": partial(ferry, mode="micro-batch")},
    "spark": {"Spark, micro-batch": partial(spark, realtime=False)},
    "spark-realtime": {"Spark, Real-time Mode": partial(spark, realtime=True)},
    "flink": {
        "Flink, at least once": partial(flink, guarantee="AT_LEAST_ONCE"),
        "Flink, exactly once": partial(flink, guarantee="EXACTLY_ONCE"),
    },
}
"""By the names of the command line: what is measured, and how it is started."""
