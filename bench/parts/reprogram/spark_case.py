"""Spark's side: the query is stopped, and the other one is started with the same checkpoint; the process stays."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.parts.reprogram import programs
from bench.parts.reprogram.case import PROGRAMS, Act, Bench, Refused, Reprogrammed, acted, keys_of
from bench.shared.ferry_job import RunFailed
from bench.shared.ferry_paced import Step
from bench.shared.spark_batches import BACKLOG_GONE, SPARK, aged, batches
from bench.shared.spark_job import SparkJob

NAME = "spark"
FILL_SECONDS = 1800.0
CHANGED = "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE", "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"
"""How Spark refuses another aggregate."""


def measure(bench: Bench, query: str, act: str) -> Reprogrammed:
    """Run it through all its acts."""
    directory = bench.work / NAME
    shutil.rmtree(directory, ignore_errors=True)
    keys = keys_of(query, bench.a.size)
    conf = {
        "module": "bench.parts.reprogram.spark_query", "query_name": query, "program": PROGRAMS[query, act][0],
        "arguments": programs.arguments(query, bench.a.rate, keys), "cores": bench.a.cores,
        "partitions": bench.a.cores, "tuned_files": True, "spark": SPARK,
    }  # fmt: skip
    with SparkJob(conf, directory) as job:
        return _measure(bench, job, query, act, keys)


def _measure(bench: Bench, job: SparkJob, query: str, act: str, keys: int) -> Reprogrammed:
    pair, checkpoint = PROGRAMS[query, act], Path(job.conf["checkpoint"])
    job.ask("start")
    job.wait_commit(int(BACKLOG_GONE))
    deadline = time.monotonic() + FILL_SECONDS
    while read(checkpoint, job) < keys:
        if time.monotonic() > deadline:
            raise RunFailed(f"Spark: not all keys within {FILL_SECONDS:g} s")
        time.sleep(0.2)

    def wait(until: float) -> None:
        while time.time() < until:
            job.ask("alive")
            time.sleep(min(0.5, max(0.0, until - time.time())))

    def acts(number: int) -> Act:
        asked = time.time()
        job.ask("stop")
        last = job.last_commit()[0]
        job.ask("start", program=pair[1 - number % 2])
        while job.last_commit()[0] <= last:
            try:
                job.ask("alive")
            except RunFailed as failed:
                if any(word in str(failed) for word in CHANGED):
                    raise Refused(str(failed)) from failed
                raise
            if time.time() > asked + 300:
                raise RunFailed("Spark: no batch within 300 s after the act")
            time.sleep(0.01)
        return Act(asked, job.commits()[last + 1])

    begin, done, end = acted(bench, wait, acts)
    job.ask("stop")
    steps = [*steps_of(checkpoint, query, bench.a.rate, keys)]
    outputs = [t for t, _ in steps if t <= end]
    return Reprogrammed("Spark", query, act, begin, end, done, outputs, steps, "not counted")


def read(checkpoint: Path, job: SparkJob) -> int:
    """Arrivals that the last batch has read up to."""
    text = (checkpoint / "offsets" / str(job.last_commit()[0])).read_text()
    return int(json.loads(text.splitlines()[-1])["read"])


def steps_of(checkpoint: Path, query: str, rate: int, keys: int) -> Iterator[Step]:
    """Each batch that had arrivals by the clock, and how long these took."""
    before = keys
    for end, offset in batches(checkpoint):
        stop = int(offset["read"])
        if stop > before:
            yield end, aged(offset["since"] / 1e6 + (np.arange(before, stop) - keys) / rate, end)
            before = stop
