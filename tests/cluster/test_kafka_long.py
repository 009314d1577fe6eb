"""From topic to topic for minutes, at 50,000 records a second, while everything is killed in turns: each result comes once.

`FERRY_KAFKA_SECONDS` says for how long (600).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.cluster import bids, runner
from tests.kafka import KafkaBroker

SECONDS = float(os.environ.get("FERRY_KAFKA_SECONDS", "600"))

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(SECONDS + 900)]

PIPELINE = Path(__file__).parent / "pipelines" / "bids_per_second.py"
SINK, SINK_PARTITIONS = "counts", 2
CALM_SECONDS = max(4.0, min(SECONDS / 40, 12.0))
"""Between the end of one disturbance and the next one."""


class Reader:
    """A consumer that reads committed records of the sink's topic as they come, and counts each result."""

    def __init__(self, broker: KafkaBroker) -> None:
        cells = (int(SECONDS) + 2) * bids.AUCTIONS
        self.times = np.zeros(cells, np.int64)
        """by second and auction, how often it came"""
        self.num = np.zeros(cells, np.int64)
        self.others: list[dict[str, Any]] = []
        """results that are none of these"""
        self.results, self.newest = 0, 0
        self.gap, self.delay = 0.0, 0.0
        self.began = 0.0
        """when the bids began, by the clock; 0: they have not"""
        self._at = time.monotonic()
        settings = {"bootstrap.servers": broker.servers, "group.id": "reader", "enable.auto.commit": False}
        settings |= {"auto.offset.reset": "earliest", "isolation.level": "read_committed", "enable.partition.eof": True}
        self._consumer = Consumer({**settings, "reconnect.backoff.max.ms": 1_000, "log_level": 0})
        self._consumer.assign([TopicPartition(SINK, one, 0) for one in range(SINK_PARTITIONS)])
        self._next = dict.fromkeys(range(SINK_PARTITIONS), 0)
        self.ended: set[int] = set()
        """partitions that were read to their ends"""

    def poll(self) -> None:
        """What comes within a moment."""
        for one in self._consumer.consume(5_000, 0.2):
            partition, offset = one.partition(), one.offset()
            if (error := one.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    self.ended.add(partition)
                continue
            assert offset >= self._next[partition], f"the client gave offset {offset} of {partition} again"
            self._next[partition] = offset + 1
            self._count(json.loads(one.value()))

    def close(self) -> None:
        """Give up the connections."""
        self._consumer.close()

    def _count(self, row: dict[str, Any]) -> None:
        second, rest = divmod(row["window_start"] - bids.BASE_MS, 1000)
        cell = second * bids.AUCTIONS + row["auction"]
        if rest or not 0 <= row["auction"] < bids.AUCTIONS or not 0 <= cell < len(self.times):
            self.others.append(row)
            return
        self.times[cell] += 1
        self.num[cell] = row["num"]
        self.results, now = self.results + 1, time.monotonic()
        if self.results > 1:
            self.gap = max(self.gap, now - self._at)
        self._at = now
        if second > self.newest:
            self.newest = second
            self.delay = time.time() - self.began - second - 1

    def difference(self, expected: np.ndarray[Any, Any]) -> dict[str, int]:
        """Results that are missing, came again, are wrong, or are none; {} if there are none of these."""
        wanted = expected.reshape(-1)
        found = {
            "missing": int(np.sum((wanted > 0) & (self.times == 0))),
            "again": int(np.sum(np.maximum(self.times - 1, 0))),
            "wrong": int(np.sum((self.times > 0) & (self.num != wanted))),
            "others": len(self.others),
        }
        return {what: many for what, many in found.items() if many}


class Timeline:
    """Records of a run, each read once."""

    def __init__(self, running: runner.Running) -> None:
        self._running = running
        self._at = 0
        self.rows: dict[int, int] = {}
        """by epoch"""
        self.ends: list[float] = []
        self.stages: dict[str, float] = {}
        self.others: list[dict[str, Any]] = []

    def read(self) -> None:
        """What is new."""
        if self._running.directory is None:
            return
        with open(self._running.directory / "timeline.jsonl", "rb") as file:
            file.seek(self._at)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._at += len(whole) + len(newline)
        for record in map(json.loads, whole.splitlines()):
            if record["kind"] == "epoch":
                self.rows[record["epoch"]] = record["rows"]
                self.ends.append(record["end"])
                self.stages = record["stages"]
            else:
                self.others.append(record)


class Story:
    """A run while it is disturbed, and what is told of it."""

    def __init__(self, running: runner.Running, broker: KafkaBroker, bidder: subprocess.Popen[str], log: Path) -> None:
        self.running, self.broker, self.bidder = running, broker, bidder
        self.timeline, self.reader = Timeline(running), Reader(broker)
        self.made: dict[str, int] = {}
        self.told: dict[str, Any] = {"sent": 0, "waiting": 0}
        self.lag_most = 0
        self.failed: BaseException | None = None
        self.over = threading.Event()
        self._log = log
        self._began = time.monotonic()
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._listen, self._read)]
        for thread in self._threads:
            thread.start()

    def say(self, text: str) -> None:
        """A line of the log."""
        line = f"{time.monotonic() - self._began:6.1f} s  {text}"
        print(line, flush=True)
        with open(self._log, "a") as file:
            file.write(line + "\n")

    def _listen(self) -> None:
        """To the bidder, until it ends."""
        assert self.bidder.stdout is not None
        for line in self.bidder.stdout:
            self.told |= json.loads(line)
            self.reader.began = self.told["began"]

    def _read(self) -> None:
        said, rows, epochs, most = time.monotonic(), 0, 0, 0.0
        try:
            while not self.over.is_set():
                self.reader.poll()
                self.timeline.read()
                most = max(most, self.reader.delay)
                if (now := time.monotonic()) > said + 10:
                    done, many = sum(self.timeline.rows.values()), len(self.timeline.ends)
                    self.lag_most = max(self.lag_most, self.lag())
                    self.say(
                        f"sent {self.told['sent']} (of them {self.told['waiting']} wait in the producer), "
                        f"counted {done} ({(done - rows) / (now - said):.0f}/s), lag {self.lag()}, "
                        f"epochs {many} ({(many - epochs) / (now - said):.1f}/s), results {self.reader.results}, "
                        f"{self.reader.delay:.1f} s (at most {most:.1f} s) after their second; {self.timeline.stages}"
                    )
                    said, rows, epochs, most = now, done, many, 0.0
        except BaseException as error:
            self.failed = error

    def end(self) -> None:
        """Nothing of it goes on."""
        self.over.set()
        self.bidder.kill()
        self.bidder.wait()
        for thread in self._threads:
            thread.join()

    def lag(self) -> int:
        """Records that were sent and are not counted yet."""
        return max(int(self.told["sent"]) - sum(self.timeline.rows.values()), 0)

    def wait(self, true: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
        """As `Running.await_that`, but that the end of the run is an error."""

        def checked() -> bool:
            if self.failed is not None:
                raise self.failed
            return true()

        self.running.await_that(checked, what, seconds)
        assert self.running.process.poll() is None, f"the run ended before {what}"

    def goes_on(self) -> None:
        """Return after some epochs more, or when there is nothing left to do."""
        target = len(self.timeline.ends) + 3

        def true() -> bool:
            return len(self.timeline.ends) >= target or (self.bidder.poll() is not None and self.lag() == 0)

        self.wait(true, "further epochs")

    def settled(self, workers: int | None = None) -> None:
        """Return when each virtual node has its copy in sync, and with `workers` all of them and no others hold some."""

        def true() -> bool:
            time.sleep(0.3)
            status = None
            with contextlib.suppress(OSError):
                status = runner.ask(self.running, "GET", "/job").get("status")
            if not status or not status["settled"]:
                return False
            held = {int(one.split(".")[0]) for members, _ in status["groups"] for one in members}
            whole = all(len(members) == 2 for members, _ in status["groups"])
            return whole and (workers is None or held == set(range(workers)))

        self.wait(true, "copies of everything in sync", 120)

    def did(self, what: str, text: str = "") -> None:
        """Count it, and say it."""
        self.made[what] = self.made.get(what, 0) + 1
        self.say(f"{what} {text}".rstrip())


def kill_broker(story: Story) -> None:
    story.broker.kill()
    story.did("broker killed")
    time.sleep(1)
    story.broker.start()
    story.say("broker is back")


def cut(story: Story) -> None:
    story.broker.wire.cut()
    story.did("broker cut off")
    time.sleep(2)
    story.broker.wire.heal()


def kill_worker(story: Story) -> None:
    story.settled()
    number = story.made.get("worker killed", 0) % 2
    story.running.signal(f"worker-{number}", signal.SIGKILL)
    story.did("worker killed", str(number))


def kill_driver(story: Story) -> None:
    story.running.signal("driver", signal.SIGKILL)
    story.did("driver killed")


def scale(workers: int) -> Callable[[Story], None]:
    def change(story: Story) -> None:
        runner.ask(story.running, "PATCH", "/spec", {"workers": workers})
        story.did(f"scaled to {workers}")
        story.settled(workers)
        story.say(f"{workers} workers hold everything")

    return change


TURNS = kill_broker, kill_worker, scale(4), cut, kill_driver, kill_worker, scale(2)


def disturb(story: Story) -> None:
    """In turns, until the bids are nearly over; each one begins when the job goes on after the one before."""
    turn = 0
    end = story.reader.began + SECONDS - CALM_SECONDS
    while time.time() < end or (turn < len(TURNS) and story.bidder.poll() is None):
        began = time.monotonic()
        TURNS[turn % len(TURNS)](story)
        story.goes_on()
        story.say(f"goes on, {time.monotonic() - began:.1f} s after the beginning of that; lag {story.lag()}")
        turn += 1
        time.sleep(CALM_SECONDS)
    assert turn >= min(len(TURNS), SECONDS // 25), f"there were {turn} turns"


def job(folder: Path, servers: str) -> Path:
    file = folder / "job.yaml"
    document = {
        "apiVersion": "ferry.dev/v1alpha1",
        "kind": "StreamJob",
        "metadata": {"name": "long"},
        "spec": {
            "workers": 2,
            "pipeline": {"file": str(PIPELINE), "args": {"servers": servers}},
            "epoch": {"interval": "200ms", "maxRows": 200_000},
            "state": {"virtualNodes": 16, "replicas": 1},
        },
    }
    file.write_text(json.dumps(document))
    return file


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    one = KafkaBroker(tmp_path / "kafka")
    yield one
    one.kill()
    shutil.rmtree(tmp_path / "kafka")  # gigabytes


def test_each_result_comes_once_whatever_is_killed_for_minutes(tmp_path: Path, broker: KafkaBroker) -> None:
    broker.create(bids.TOPIC, bids.PARTITIONS)
    broker.create(SINK, SINK_PARTITIONS)
    expected = bids.counts(SECONDS)
    every = bids.blocks(SECONDS) * bids.BLOCK + bids.PARTITIONS
    stories: list[Story] = []

    def meanwhile(running: runner.Running) -> None:
        running.await_that(lambda: any(r["kind"] == "ready" for r in running.records()), "a job", 120)
        command = [sys.executable, "-m", "tests.cluster.bids", broker.servers, str(SECONDS)]
        bidder = subprocess.Popen(command, cwd=runner.ROOT, stdout=subprocess.PIPE, text=True)
        story = Story(running, broker, bidder, tmp_path / "progress.log")
        stories.append(story)
        story.goes_on()
        disturb(story)
        story.wait(lambda: story.bidder.poll() is not None, "end of the bids", SECONDS)
        story.say(f"all bids are sent, lag {story.lag()}")
        assert story.bidder.returncode == 0, story.told
        ends = broker.ends(bids.TOPIC)
        assert sum(ends.values()) == every == story.told["sent"], "the topic holds each bid once"
        wanted = int(np.sum(expected > 0))
        story.wait(lambda: story.reader.results >= wanted, f"all of {wanted} results", 240)
        story.say(f"all {wanted} results are there")
        time.sleep(3)
        runner.stop(running)

    try:
        result = runner.run(job(tmp_path, broker.servers), tmp_path, meanwhile=meanwhile)
    finally:
        for story in stories:
            story.end()
    (story,) = stories
    assert result.code == 0 and not result.left, result.story()
    assert {r["text"] for r in result.kinds("mode")} == {"continuous"}, result.story()
    again = Reader(broker)
    end = time.monotonic() + 120
    while len(again.ended) < SINK_PARTITIONS and time.monotonic() < end:
        again.poll()
    rows = sum(story.timeline.rows.values())
    story.say(
        f"{every} records in (each at most {story.told['late']} s late), counted {rows}, {again.results} results read; "
        f"{story.made}; longest gap between results {story.reader.gap:.1f} s, greatest lag {story.lag_most}; "
        f"differences {again.difference(expected)}"
    )
    assert again.difference(expected) == story.reader.difference(expected) == {}, result.story()
    assert rows == every and result.summary.get("late", 0) == 0
    story.reader.close()
    again.close()
