"""Topics of Kafka: what is written to one at the pace of the clock, and when its counts came out of another.

All systems are looked at from outside: a count n of a key, read as a committed record, tells of all records of that key up
to its n-th one, and when these were due follows from their numbers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
from confluent_kafka import Consumer, TopicPartition

from bench.parts.latency.feed import IN, KEYS, OUT, PARTITIONS, producer, write
from bench.shared.ferry_job import ROOT, RunFailed, environment
from bench.shared.ferry_paced import Step
from bench.shared.spark_batches import aged
from tests.kafka import KafkaBroker


class Counts:
    """What counts that have come say of records: when they came, and when they were due."""

    def __init__(self, begin: float = 0.0, rate: int = 1) -> None:
        self.begin, self.rate = begin, rate
        self.newest = np.zeros(KEYS, np.int64)
        """by key"""
        self._steps: list[tuple[float, np.ndarray]] = []

    def add(self, now: float, rows: list[dict[str, int]]) -> None:
        """These have come, `{"k": key, "n": count}`."""
        newest: dict[int, int] = {}
        for row in rows:
            newest[row["k"]] = max(newest.get(row["k"], 0), row["n"])
        keys = np.array(list(newest), np.int64)
        before = self.newest[keys]
        more = np.maximum(np.array(list(newest.values()), np.int64) - before, 0)
        self.newest[keys] = before + more
        # Behind the records that came first, the n-th one (from 1) of a key is number (n - 2) * KEYS + key.
        nth = np.arange(more.sum()) - np.repeat(np.cumsum(more) - more, more) + np.repeat(before, more) + 1
        numbers = ((nth - 2) * KEYS + np.repeat(keys, more))[nth > 1]
        if len(numbers):
            self._steps.append((now, self.begin + numbers / self.rate))

    def between(self, begin: float, end: float) -> list[Step]:
        """Steps of the records that were due from then to then."""
        made = []
        for now, due in self._steps:
            mine = due[(due >= begin) & (due < end)]
            if len(mine):
                made.append((now, aged(mine, now)))
        return made


class Topics:
    """A broker, its two topics, and whoever writes and reads them. Use as a context: nothing of it is left at the end."""

    def __init__(self, directory: Path) -> None:
        self.counts = Counts()
        self._expected = KEYS
        self._feed: subprocess.Popen[bytes] | None = None
        try:
            self._broker = KafkaBroker(directory, wired=False)
        except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
            raise RunFailed(f"no broker of Kafka: {error}; leave it out: see --queries") from error
        self.servers = self._broker.servers
        self._failed: BaseException | None = None
        self._over = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Topics:
        try:
            for topic in (IN, OUT):
                self._broker.create(topic, PARTITIONS)
            # A record of each key comes first: when all their counts are read the system is up.
            to = producer(self.servers)
            write(to, range(KEYS))
            to.flush(30)
        except BaseException:
            self._broker.kill()
            raise
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._feed is not None:
            self._feed.kill()
            self._feed.wait()
        self._over.set()
        self._reader.join()
        self._broker.kill()

    def feed(self, rate: int, begin: float, seconds: float) -> None:
        """Begin to write, at that time."""
        self.counts.begin, self.counts.rate = begin, rate
        self._expected = int(rate * seconds) + KEYS
        arguments = [self.servers, str(rate), str(begin), str(seconds)]
        self._feed = subprocess.Popen(
            [sys.executable, "-m", "bench.parts.latency.feed", *arguments], cwd=ROOT, env=environment()
        )

    @property
    def are_counted(self) -> bool:
        """Whether the counts of all records that were asked for have come. Raises RunFailed."""
        if self._failed is not None:
            raise RunFailed(f"what came from the sink: {self._failed!r}")
        if self._feed is not None and self._feed.poll():
            raise RunFailed(f"whoever writes the records ended (exit code {self._feed.returncode})")
        return int(self.counts.newest.sum()) >= self._expected

    def _read(self) -> None:
        consumer = Consumer(
            {"bootstrap.servers": self.servers, "group.id": "latency", "enable.auto.commit": False,
             "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        )  # fmt: skip
        consumer.assign([TopicPartition(OUT, one, 0) for one in range(PARTITIONS)])
        try:
            while not self._over.is_set():
                if (first := consumer.poll(0.05)) is None:
                    continue
                messages = [first, *consumer.consume(10_000, 0)]
                now = time.time()
                values = [one.value() for one in messages if one.error() is None]
                self.counts.add(now, json.loads(b"[" + b",".join(values) + b"]"))
        except Exception as error:
            self._failed = error
        finally:
            consumer.close()
